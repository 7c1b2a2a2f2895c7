"""The belief about a noise scale before the data: a law that leaves no mode at zero."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, distributions

from torchbayes.model.priors.univariate import SampledPrior, Univariate, uniforms
from torchbayes.settings import Checked


@dataclass(frozen=True)
class LogInverseChi(Checked, SampledPrior):
    """w = log s of a noise scale s, with s² ~ Scaled-Inv-χ²(df, scale²): worth `df` residuals of size `scale`.

        log p(w) = −df (u + ½ e^{−2u}) + constant,    u = w − log scale

    Given N residuals with the sum of squares S, the most probable scale has s² = (S + df scale²)/(N + df). It is above
    zero even if a network interpolates its rows and S = 0 (Gelman et al. 2013, section 3.2).

    Attributes:
        df: degrees of freedom: how many residuals the prior is worth.
        scale: the most probable s, in units of the targets: one number, or one for each element of the parameter.
    """

    df: float = 1.0
    scale: float | tuple[float, ...] = 1.0

    @property
    def scales(self) -> tuple[float, ...]:
        """The scales: one, or one for each element."""
        return self.scale if isinstance(self.scale, tuple) else (self.scale,)

    @property
    def elements(self) -> int:
        """Number of elements of its parameter; 1 for any."""
        return len(self.scales)

    @property
    def std(self) -> float:
        """Standard deviation of w, ½ √ψ′(df/2)."""
        return 0.5 * math.sqrt(float(torch.special.polygamma(1, self._half)))

    @property
    def loc(self) -> Tensor:
        """Mean of w, log scale + ½ (log(df/2) − ψ(df/2)), float64: one, or one for each element."""
        return self._centre + 0.5 * (self._half.log() - torch.special.digamma(self._half))

    @property
    def log_constant(self) -> float:
        """The negative constant of log p, log Γ(df/2) − log 2 − df/2 log(df/2)."""
        half = self.df / 2
        return math.lgamma(half) - math.log(2) - half * math.log(half)

    @property
    def _half(self) -> Tensor:
        return torch.tensor(self.df / 2, dtype=torch.float64)

    @property
    def _centre(self) -> Tensor:
        log_scales = torch.tensor(self.scales, dtype=torch.float64).log()
        return log_scales if len(log_scales) > 1 else log_scales[0]

    def log_prob(self, weights: Tensor) -> Tensor:
        """Return −df (u + ½ e^{−2u}) less `log_constant`, elementwise."""
        u = weights - self._centre.to(weights)
        return -self.df * (u + 0.5 * torch.exp(-2 * u)) - self.log_constant

    def add_gradient_(self, gradient: Tensor, weights: Tensor, scale: float) -> None:
        """Add scale · d log p / dw = scale df (e^{−2u} − 1) to `gradient` in place."""
        u = weights - self._centre.to(weights)
        gradient.add_(torch.expm1(-2 * u), alpha=scale * self.df)

    def expected_(self, mean: Tensor, variance: Tensor, *, scale: float, into: Sequence[Tensor]) -> Tensor:
        """Return Σ −df (u + ½ e^{−2u + 2v}) less constants, and add to its derivatives: see `expected.py`."""
        u = mean - torch.as_tensor(self.scales, dtype=torch.float64).log().to(mean)
        swollen = torch.exp(2 * (variance - u))
        into[0].add_(swollen - 1, alpha=scale * self.df)
        into[1].sub_(swollen, alpha=scale * self.df)
        return (-self.df * (u + 0.5 * swollen) - self.log_constant).sum(-1, dtype=torch.float64)

    def sample(self, shape: tuple[int, ...], generator: Generator) -> Tensor:
        """Return independent draws, float64 on the CPU: log scale + ½ (log(df/2) − log G) with G ~ Gamma(df/2, 1)."""
        # for few degrees of freedom G itself would underflow; it is G′ U^{2/df} with G′ ~ Gamma(df/2 + 1, 1)
        gamma = Univariate(distributions.Gamma(self._half + 1, torch.ones_like(self._half)))
        log_gamma = gamma.sample(shape, generator).log() + uniforms(shape, generator).log() / self._half
        return self._centre + 0.5 * (self._half.log() - log_gamma)
