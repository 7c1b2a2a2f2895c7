"""Gaussian posteriors over any covariance structure of `torchbayes.linalg`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from torchbayes.checks import check_flags, check_object, check_tensor, optional, seen
from torchbayes.linalg import Structure, restore
from torchbayes.model.model import Model, having_learned
from torchbayes.posteriors.functions import check_weights
from torchbayes.posteriors.point import Point
from torchbayes.posteriors.posterior import Posterior, normals, readable


def check_gaussian(posterior: Any, advice: str = "Fit by Laplace or SWAG.") -> None:
    """Raise a TypeError unless a posterior is a mixture of Gaussians; their covariances are not computed."""
    if not hasattr(type(posterior), "gaussian"):
        raise TypeError(f"`posterior` must be a Laplace posterior or a Gaussian one; got {seen(posterior)}. {advice}")


@readable
@dataclass(frozen=True, repr=False)
class Gaussian(Posterior):
    """q(w) = (1/M) Σ_m N(w; μ_m, Σ_m).

    Attributes:
        mean_MD: the means.
        covariance: Σ, one matrix per member.
        linear: whether outputs are linear in all weights with positive variance, such as those of a last layer, and
            so are normal. Predictions are then those of `Linearised` unless draws are asked for.
        log_evidence_M: estimate of the log evidence, float64 (M,), in nats; None where there is none.
    """

    mean_MD: Tensor
    covariance: Structure
    linear: bool = field(default=False, kw_only=True)
    log_evidence_M: Tensor | None = field(default=None, kw_only=True)

    kind = "gaussian"
    layer_support = ""  # the support of the layers, as in `LaplacePosterior`: unknown

    def __post_init__(self) -> None:
        check_weights(self.model, "M", mean_MD=self.mean_MD)
        check_flags(linear=self.linear)
        check_object(("sqrt_matvec", "noise_size"), "Diagonal(variance_MD)", covariance=self.covariance)
        for name, tensor in self.covariance.tensors().items():
            if tensor.is_complex():
                raise TypeError(f"`covariance` must be of real numbers; its {name} is of {tensor.dtype}.")
        optional(check_tensor, "M", log_evidence_M=self.log_evidence_M)
        if self.log_evidence_M is not None and len(self.log_evidence_M) != len(self.mean_MD):
            raise ValueError(
                f"`log_evidence_M` must have one number for each of {len(self.mean_MD)} members; got "
                f"{len(self.log_evidence_M)}."
            )
        if self.covariance.size != self.mean_MD.shape[-1]:
            raise ValueError(
                f"`covariance` must be over the {self.mean_MD.shape[-1]} weights of the means; got one over "
                f"{self.covariance.size}."
            )

    @property
    def members(self) -> int:
        return len(self.mean_MD)

    @property
    def gaussian(self) -> Gaussian:
        """This posterior itself; every mixture of Gaussians has this property."""
        return self

    @property
    def centre(self) -> Point:
        """The means."""
        return Point(self.model, self.mean_MD, buffers_M=self.buffers_M, calibration=self.calibration)

    def with_learned(self, learned: Sequence[float] | Tensor) -> Self:
        return replace(self, mean_MD=having_learned(self.mean_MD, learned))

    def sample(self, draws: int, *, seed: int = 0) -> Tensor:
        """Return weights w = μ_m + R_m z with R Rᵀ = Σ, (S, D); row s of z depends on (seed, s) alone.

        Raises:
            ValueError: if there is not one covariance for each mean, S is not a multiple of M, or the weights do
                not fit in memory.
        """
        members, draws = self.members, self.check_draws(draws)
        noise = normals(seed, draws, self.covariance.noise_size, like=self.mean_MD)
        centred = self.covariance.sqrt_matvec(noise.view(draws // members, members, -1))
        if centred.shape[1] != members:
            raise ValueError(
                f"`covariance` must have one matrix for each of the {members} members; got {centred.shape[1]}."
            )
        return centred.add_(self.mean_MD).flatten(0, 1)

    def log_prob(self, weights: Tensor) -> Tensor:
        """Return log q(w), the log density of the mixture, in nats: float64 (...) for weights (..., D)."""
        square = self.covariance.quadratic(weights.unsqueeze(-2) - self.mean_MD)
        log_norm = self.covariance.logdet() + weights.shape[-1] * math.log(2 * math.pi)
        return torch.logsumexp(-0.5 * (square + log_norm), dim=-1) - math.log(self.members)

    def log_evidence(self) -> Tensor:
        """Return the estimate of the log evidence of each member, float64 (M,), in nats.

        Raises:
            ValueError: if there is none.
        """
        if self.log_evidence_M is None:
            raise ValueError(
                "this Gaussian has no estimate of the log evidence; EP at temperature 1 gives one. Fit by EP or "
                "Laplace, or use torchbayes.evidence."
            )
        return self.log_evidence_M

    def tensors(self) -> dict[str, Tensor]:
        evidence = {} if self.log_evidence_M is None else {"log_evidence_M": self.log_evidence_M}
        parts = {f"covariance.{n}": t for n, t in self.covariance.tensors().items()}
        return {"mean_MD": self.mean_MD, **evidence, **parts}

    def settings(self) -> dict[str, Any]:
        return {"covariance": self.covariance.kind, **({"linear": True} if self.linear else {})}

    @classmethod
    def restore(cls, model: Model, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        parts = {n.removeprefix("covariance."): t for n, t in tensors.items() if n.startswith("covariance.")}
        covariance = restore(settings["covariance"], parts)
        linear, evidence_M = settings.get("linear", False), tensors.get("log_evidence_M")
        return cls(model, tensors["mean_MD"], covariance, linear=linear, log_evidence_M=evidence_M)
