"""A mixture of normals as a prior, and its gradient in one pass.

    log p(w) = log Σ_j π_j N(w; 0, s_j²) = log π_0 N(w; 0, s_0²) + log(1 + Σ_{j>0} r_j)
    r_j      = (π_j s_0 / π_0 s_j) exp(−½ w² (s_j⁻² − s_0⁻²))
    −d/dw    = w (s_0⁻² + Σ_{j>0} r_j s_j⁻²) / (1 + Σ_{j>0} r_j)

With the widest component as 0 every r_j is largest at w = 0. So nothing overflows, and far out no small difference of
large numbers is taken, where log N(w; 0, s_j²) of a narrow component is in the hundred thousands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Generator, Tensor

from torchbayes.checks import check_each, check_positive, check_scale, plain
from torchbayes.model.priors.univariate import Normal, SampledPrior, normals, uniforms

_BLOCK = 1 << 15  # weights of a pass on a CPU, few enough for intermediate results to stay in the cache
_NOTHING = 60.0  # a component this many nats below the widest one is negligible


@dataclass(frozen=True)
class NormalMixture(SampledPrior):
    """w ~ Σ_j proportion_j N(0, scale_j²): a scale mixture of normals.

    With two components this is the prior of Bayes by backprop (Blundell et al. 2015). Fit it by `VI` with the scale of
    the narrow one as `initial_scale`: from a wider start, weights do not reach the narrow component.

    Attributes:
        scales: standard deviations, one per component.
        proportions: weights of the components, positive; normalised here.
    """

    listed: ClassVar = ("normal_mixture", "a wide and a narrow normal, mixed (scales, proportions)")

    scales: tuple[float, ...] = (1.0, 0.1)
    proportions: tuple[float, ...] = (0.5, 0.5)

    def __post_init__(self) -> None:
        plain(self)
        check_each(check_scale, scales=self.scales)
        check_each(check_positive, proportions=self.proportions)
        if len(self.scales) != len(self.proportions):
            raise ValueError(
                f"`scales` and `proportions` must have the same length; got {self.scales} and {self.proportions}."
            )

    @property
    def std(self) -> float:
        """Standard deviation, √(Σ_j proportion_j scale_j²)."""
        squares = sum(p * s**2 for p, s in zip(self.proportions, self.scales, strict=True))
        return math.sqrt(squares / sum(self.proportions))

    def log_prob(self, weights: Tensor) -> Tensor:
        """Return log Σ_j proportion_j N(w; 0, scale_j²) by log-sum-exp, elementwise."""
        total = sum(self.proportions)
        parts = [
            Normal(scale).log_prob(weights) + math.log(proportion / total)
            for scale, proportion in zip(self.scales, self.proportions, strict=True)
        ]
        return torch.logsumexp(torch.stack(parts), dim=0)

    def sample(self, shape: tuple[int, ...], generator: Generator) -> Tensor:
        """Return independent draws, float64 on the CPU, each of a component that is drawn first."""
        bounds = torch.tensor(self.proportions, dtype=torch.float64).cumsum(0)
        component = torch.searchsorted(bounds[:-1] / bounds[-1], uniforms(shape, generator))
        return torch.tensor(self.scales, dtype=torch.float64)[component] * normals(shape, generator)

    def total(self, weights: Tensor) -> Tensor:
        """Return Σ log p over the last axis, float64."""
        return self.log_prob(weights).sum(-1, dtype=torch.float64) if weights.requires_grad else self.visit_(weights)

    def add_gradient_(self, gradient: Tensor, weights: Tensor, scale: float) -> None:
        """Add scale · d log p / dw to `gradient` in place."""
        self.visit_(weights, gradient, scale)

    def visit_(self, weights: Tensor, gradient: Tensor | None = None, scale: float = 1.0) -> Tensor:
        """Return Σ log p over the last axis, float64 (...), and add scale · d log p / dw to a gradient, in one pass.

        Weights and gradient are (..., n); no gradient is added if it is None.
        """
        total = weights.new_zeros(weights.shape[:-1], dtype=torch.float64)
        block = _BLOCK if weights.device.type == "cpu" else max(1, weights.shape[-1])
        for start in range(0, weights.shape[-1], block):
            where = slice(start, start + block)
            total += self._visit_block_(
                weights[..., where], None if gradient is None else gradient[..., where], scale=scale
            )
        return total

    def _visit_block_(self, weights: Tensor, gradient: Tensor | None, *, scale: float) -> Tensor:
        """Do the same for as many weights as a cache holds."""
        logs, narrow, wide = self._relative
        shares = torch.full_like(weights, math.exp(logs[0]))  # of Σ_j π_j N(w; 0, s_j²), without exp(−w²/2s_0²)
        slopes = torch.full_like(weights, wide * math.exp(logs[0])) if gradient is not None else None
        for log, precision in zip(logs[1:], narrow, strict=True):
            share = (weights * math.sqrt(precision / 2)).square_().neg_().add_(log)
            share.clamp_min_(logs[0] - _NOTHING).exp_()  # far out exp would be subnormal, which is slow
            shares.add_(share)
            if slopes is not None:
                slopes.add_(share, alpha=wide + precision)
        if gradient is not None and slopes is not None:
            gradient.addcmul_(weights, slopes.div_(shares), value=-scale)
        squares = weights.square().sum(-1, dtype=torch.float64)
        return shares.log_().sum(-1, dtype=torch.float64) - 0.5 * wide * squares - weights.shape[-1] * self._constant

    @cached_property
    def _order(self) -> list[int]:
        """Return the components, the widest first."""
        return sorted(range(len(self.scales)), key=lambda j: -self.scales[j])

    @cached_property
    def _relative(self) -> tuple[list[float], list[float], float]:
        """Return log heights at w = 0, the highest as 0; 1/s_j² − 1/s_0² of all but the widest; and 1/s_0²."""
        heights = [math.log(self.proportions[j]) - math.log(self.scales[j]) for j in self._order]
        precisions = [self.scales[j] ** -2 for j in self._order]
        return [h - max(heights) for h in heights], [p - precisions[0] for p in precisions[1:]], precisions[0]

    @cached_property
    def _constant(self) -> float:
        """The number subtracted from the logarithm of the sum of components at each weight."""
        top = max(math.log(p) - math.log(s) for p, s in zip(self.proportions, self.scales, strict=True))
        return math.log(sum(self.proportions)) + 0.5 * math.log(2 * math.pi) - top
