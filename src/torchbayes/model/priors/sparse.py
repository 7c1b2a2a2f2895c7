"""Priors that draw weights to zero and leave the large ones alone: the horseshoe, and the log-uniform prior.

Both are unbounded at zero. The horseshoe is proper, so that samplers can draw from its posterior. The log-uniform prior
is improper even with data, and serves only the divergence of variational dropout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Generator, Tensor

from torchbayes.model.priors.univariate import Prior, SampledPrior, normals, uniforms
from torchbayes.settings import Checked

_NEAREST = 1e-8  # in scales: weights closer to zero have the density at this distance
_JOINT = 1.5  # the series is used below it, the continued fraction above
_TERMS = {torch.float64: (24, 60)}  # terms of both, to rounding; fewer for float32
_FEWER = (13, 16)
_CELLS, _END = 256, 12  # cells of the table per unit of z, and the z at its end
_ASYMPTOTIC = 9


@dataclass(frozen=True)
class Horseshoe(Checked, SampledPrior):
    """w ~ N(0, λ² scale²) with λ ~ C⁺(0, 1), a scale of its own for every weight (Carvalho, Polson and Scott 2010).

        p(w) = e^x E₁(x) / (scale √(2π³)),    x = w² / (2 scale²),    E₁ the exponential integral

    The λ are integrated out, so that every method takes it as a density of the weights. At zero it goes to infinity,
    like log(1/|w|); within 1e-8 scale of zero it is taken to be constant. The mode of a posterior is thus at zero for
    every weight: `MAP` finds a local one, in which many weights are next to zero. Its tails are those of a Cauchy law.

    Attributes:
        scale: τ, the global scale that all weights share, in units of the weights; the smaller, the fewer of them are
            away from zero.
    """

    listed: ClassVar = ("horseshoe", "most weights next to zero, some far from it (scale)")

    scale: float = 1.0

    @property
    def std(self) -> float:
        """Infinite, as is even the mean of |w|."""
        return math.inf

    def log_prob(self, weights: Tensor) -> Tensor:
        """Return x + log E₁(x) − log(scale √(2π³)), elementwise."""
        constant = math.log(self.scale) + 0.5 * math.log(2 * math.pi**3)
        x = 0.5 * (weights / self.scale).square().clamp_min(_NEAREST**2)
        log_value: Any = _LogScaledE1.apply(x)
        return log_value - constant

    def add_gradient_(self, gradient: Tensor, weights: Tensor, scale: float) -> None:
        """Add scale · d log p / dw = scale (w / s²) (1 − 1/(x e^x E₁(x))) to `gradient` in place."""
        square, least = (weights / self.scale).square(), _NEAREST**2
        slope = torch.where(square > least, scaled_e1(0.5 * square.clamp_min(least))[1], 0.0)
        gradient.addcmul_(weights, slope, value=scale / self.scale**2)

    def sample(self, shape: tuple[int, ...], generator: Generator) -> Tensor:
        """Return independent draws, float64 on the CPU: λ = tan(π u / 2) times a normal number."""
        scales = (0.5 * math.pi * uniforms(shape, generator)).tan()
        return self.scale * scales * normals(shape, generator)


@dataclass(frozen=True)
class LogUniform(Prior):
    """p(w) ∝ 1/|w|, improper: log |w| is uniform. The prior of variational dropout (Kingma, Salimans, Welling 2015).

    Under q(w) = N(μ, σ²) the divergence depends on α = σ²/μ² alone, and falls to a constant as α grows: weights whose
    noise is larger than themselves can be left out (Molchanov, Ashukha and Vetrov 2017). The divergence is exact here,
    up to the constant that an improper prior leaves open: an ELBO under it compares fits, and bounds no evidence.

    The posterior is improper too, because its density goes to infinity at zero like 1/|w| (Hron, Matthews and
    Ghahramani 2018). So it cannot be sampled or maximised, and `VI` is the only method that takes it; nor can weights
    be drawn from the prior.
    """

    listed: ClassVar = ("log_uniform", "the prior of variational dropout, for VI alone; improper")

    improper: ClassVar = "log-uniform"

    @property
    def std(self) -> float:
        """Infinite."""
        return math.inf

    def log_prob(self, weights: Tensor) -> Tensor:
        """Return −log |w|, elementwise; ∞ at zero."""
        return -weights.abs().log()

    def expected_(self, mean: Tensor, variance: Tensor, *, scale: float, into: Sequence[Tensor]) -> Tensor:
        """Return Σ −log √v − E log |z + ε|, z = |μ|/√v, and add to its derivatives: see `expected.py`."""
        std = variance.sqrt()
        ratio = mean.abs() / std
        size, slope = expected_log_size(ratio)
        into[0].sub_(slope / std * mean.sign(), alpha=scale)
        into[1].add_((ratio * slope - 1) / variance, alpha=0.5 * scale)
        return -(size + std.log()).sum(-1, dtype=torch.float64)


class _Elementwise(torch.autograd.Function):
    """A function whose backward pass computes the value again, so that second derivatives are found."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)


class _LogScaledE1(_Elementwise):
    """log(e^x E₁(x)) for x > 0."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return scaled_e1(x)[0].log()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        slope: Any = _Slope.apply(x)
        return gradients[0] * slope


class _Slope(_Elementwise):
    """h = 1 − 1/(x e^x E₁(x)) for x > 0, whose derivative is (1 − h)(1/x + h)."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return scaled_e1(x)[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        slope: Any = _Slope.apply(x)
        return gradients[0] * (1 - slope) * (1 / x + slope)


def scaled_e1(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return S = e^x E₁(x), E₁(x) = ∫_x^∞ e^{−t}/t dt, of positive numbers, and the slope of log S, 1 − 1/(x S).

    By the series −γ − log x − Σ_k (−x)^k / (k k!) of E₁ where x is small, else by the continued fraction

        S = 1/(x + 1 − c),    c = 1/(x + 3 − 4/(x + 5 − 9/(x + 7 − …))),    slope = (c − 1)/x

    to rounding, in both: 1 and 1/(x S) would cancel where x is large.
    """
    series, fraction = _TERMS.get(x.dtype, _FEWER)
    small, large = x.clamp_max(_JOINT), x.clamp_min(_JOINT)
    total = torch.zeros_like(x)
    for k in range(series, 0, -1):
        total = (total + (-1) ** k / (k * math.factorial(k))) * small
    near = (-np.euler_gamma - small.log() - total) * small.exp()
    below = large + (2 * fraction + 1)
    for k in range(fraction, 1, -1):
        below = large + (2 * k - 1) - k**2 / below
    c, inside = 1 / below, x < _JOINT
    return torch.where(inside, near, 1 / (large + 1 - c)), torch.where(inside, 1 - 1 / (x * near), (c - 1) / large)


def expected_log_size(ratio: Tensor) -> tuple[Tensor, Tensor]:
    """Return E log |z + ε| of ε ~ N(0, 1) at z = `ratio` ≥ 0, and its derivative √2 D(z/√2), D the Dawson function.

    By cubic interpolation between exact values, to 1e-11, and beyond z = 12 by log z − Σ_k (2k − 1)!!/(2k z^{2k}).
    """
    table = _table().to(ratio.device)
    near = ratio.clamp_max(_END * (1 - 1e-7)).double() * _CELLS
    cell = near.long()
    t, ((f, df), (g, dg)) = near - cell, (table[cell].unbind(-1), table[cell + 1].unbind(-1))
    # f and g are the values at the ends of a cell, df and dg the derivatives in units of a cell
    bend, twist = 3 * (g - f) - 2 * df - dg, 2 * (f - g) + df + dg
    value = f + t * (df + t * (bend + t * twist))
    slope = (df + t * (2 * bend + t * 3 * twist)) * _CELLS
    far = ratio.clamp_min(_END).double()
    inverse = far.square().reciprocal()
    beyond, steep, factor = far.log(), torch.ones_like(far), torch.ones_like(far)
    for k in range(1, _ASYMPTOTIC):
        factor = factor * (2 * k - 1) * inverse
        beyond, steep = beyond - factor / (2 * k), steep + factor
    inside = ratio < _END
    return torch.where(inside, value, beyond).to(ratio), torch.where(inside, slope, steep / far).to(ratio)


@lru_cache(maxsize=1)
def _table() -> Tensor:
    """Return E log |z + ε| and its derivative, times the width of a cell, at the ends of cells, float64 (cells + 1, 2).

    The value is ½ (log 2 + Σ_j Pois(j; z²/2) ψ(j + ½)), the mean over j of E log χ²_{1 + 2j}; the derivative has
    Pois(j; z²/2) z in the place of the weights, and the differences ψ(j + 3/2) − ψ(j + ½) = 1/(j + ½) of ψ.
    """
    z = torch.arange(_CELLS * _END + 1, dtype=torch.float64) / _CELLS
    x, j = 0.5 * z.square().unsqueeze(1), torch.arange(240, dtype=torch.float64)
    weights = (torch.xlogy(j, x) - x - torch.lgamma(j + 1)).exp()
    value = 0.5 * (math.log(2) + (weights * torch.special.digamma(j + 0.5)).sum(1))
    slope = 0.5 * z * (weights / (j + 0.5)).sum(1)
    return torch.stack([value, slope / _CELLS], dim=-1)
