"""A Gaussian prior over weights together: the posterior of an earlier task, or one chosen weight by weight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from torchbayes.linalg import Diagonal, Structure
from torchbayes.linalg.structure import is_diagonal


@dataclass(frozen=True, eq=False)
class Joint:
    """w ~ N(μ, Σ) over the whole flat vector or a run of it, Σ any structure of `torchbayes.linalg` of one member.

    It takes weights of any floating dtype, on any device.
    """

    quadratic: ClassVar = True
    loc_D: Tensor  # μ
    covariance: Structure  # Σ

    def __post_init__(self) -> None:
        size, shape = len(self.loc_D), tuple(self.covariance.diagonal().shape)
        if shape != (1, size):
            raise ValueError(
                f"a joint prior needs one covariance over its {size} weights; got one of {shape[0]} members over "
                f"{shape[1]}. Take one member of a mixture."
            )

    @classmethod
    def independent(cls, loc_D: Tensor, variance_D: Tensor) -> Joint:
        """Return independent normals with these means and variances."""
        return cls(loc_D, Diagonal(variance_D.unsqueeze(0)))

    @cached_property
    def is_independent(self) -> bool:
        """Whether the weights are independent of each other."""
        return is_diagonal(self.covariance)

    def __repr__(self) -> str:
        """Return a description that differs where the prior does."""
        total = float(self.loc_D.double().sum())
        return f"Joint({self.covariance.kind}, {len(self.loc_D)} weights, {total!r}, {float(self._log_constant)!r})"

    def log_prob(self, weights: Tensor) -> Tensor:
        """Return log p(w) = −½ (w − μ)ᵀ Σ⁻¹ (w − μ) − ½ log det 2πΣ, (...) float64, for weights (..., D)."""
        placed = like(self, weights)
        centred = (weights - placed.loc_D).unsqueeze(-2)
        return -0.5 * placed.covariance.quadratic(centred).squeeze(-1) - self._log_constant.to(weights.device)

    def add_gradient_(self, gradient: Tensor, weights: Tensor, scale: float) -> None:
        """Add scale · d log p / dw = −scale Σ⁻¹ (w − μ) to `gradient` in place."""
        placed = like(self, weights)
        centred = (weights - placed.loc_D).unsqueeze(-2)
        gradient.sub_(placed.covariance.solve(centred).squeeze(-2), alpha=scale)

    def precision(self, weights: Tensor) -> Tensor:
        """Return the diagonal of Σ⁻¹, (D,), in the dtype of weights.

        It raises ValueError if the structure cannot give it without its dense matrix.
        """
        return like(self, weights).covariance.precision_diagonal()[0]

    def expected_(self, mean: Tensor, variance: Tensor, *, scale: float, into: Sequence[Tensor]) -> Tensor:
        """Return log N(μ; loc, Σ) − ½ Σ_i (Σ⁻¹)_ii v_i, and add to its derivatives: see `expected.py`."""
        self.add_gradient_(into[0], mean, scale)
        precision = self.precision(mean)
        into[1].sub_(precision, alpha=0.5 * scale)
        return self.log_prob(mean) - 0.5 * (variance * precision).sum(-1, dtype=torch.float64)

    def sample(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Return draws μ + R z with R Rᵀ = Σ, float64 (S, D), on the CPU; `shape` is (S, D)."""
        noise = torch.randn(shape[0], 1, self.covariance.noise_size, generator=generator, dtype=torch.float64)
        drawn = self.covariance.sqrt_matvec(noise.to(self.loc_D)).squeeze(1)
        return (self.loc_D + drawn).double().cpu()

    def stds(self) -> Tensor:
        """Return the standard deviation of every weight, float64 (D,)."""
        return self.covariance.diagonal()[0].double().sqrt()

    @cached_property
    def _log_constant(self) -> Tensor:
        return 0.5 * (self.covariance.logdet()[0] + len(self.loc_D) * math.log(2 * math.pi))


_ELSEWHERE: WeakKeyDictionary[Joint, dict[Any, Joint]] = WeakKeyDictionary()


def like(joint: Joint, weights: Tensor) -> Joint:
    """Return a prior with its numbers in the dtype and on the device of weights; each such copy is kept."""
    key = weights.dtype, weights.device
    if key == (joint.loc_D.dtype, joint.loc_D.device):
        return joint
    copies = _ELSEWHERE.setdefault(joint, {})
    if key not in copies:
        covariance = joint.covariance.mapped(lambda _, t: t.to(weights) if t.is_floating_point() else t.to(key[1]))
        copies[key] = Joint(joint.loc_D.to(weights), covariance)
    return copies[key]
