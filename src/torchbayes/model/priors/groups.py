"""Priors by the axes of a parameter: a scale by its fan-in; variances that groups share, integrated out.

With shared variances each group has a multivariate t distribution:

    w_g | v_g ~ N(0, v_g I),    v_g ~ Scaled-Inv-χ²(ν, s²) = IG(ν/2, ν s²/2)

    log p(w_g) = log Γ((ν+d)/2) − log Γ(ν/2) − (d/2) log πν s² − ((ν+d)/2) log(1 + |w_g|²/ν s²)

for the d weights of a group. They are uncorrelated, but not independent: the larger some are, the larger the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from torchbayes.model.priors.axes import Axes
from torchbayes.model.priors.noise import LogInverseChi
from torchbayes.model.priors.sparse import Horseshoe
from torchbayes.model.priors.univariate import Normal, Prior, SampledPrior, StudentT, normals
from torchbayes.settings import Checked

Groups = Literal["layer", "rows", "columns", "weights"]


@dataclass(frozen=True)
class FanInNormal(Checked):
    """w ~ N(0, gain² / fan_in) for the weights of layers, N(0, bias_scale²) for biases and norms (Neal 1996).

    The variance of a layer's outputs then does not depend on the layer's width. The fan-in is the number of inputs that
    an output sums over. For a convolution it is channels times places of a filter, for a transposed convolution with a
    stride an average over its outputs, and 1 for an embedding, which looks up one entry. Other layers' parameters with
    two axes or more are refused: they need a prior of their own.

    Attributes:
        gain: standard deviation of a unit's input per unit of input scale; √2 suits ReLU.
        bias_scale: standard deviation of biases and of norm layers' weights.
    """

    listed: ClassVar = ("fan_in_normal", "normal with variance gain² / fan-in, biases apart (gain, bias_scale)")

    gain: float = math.sqrt(2.0)
    bias_scale: float = 1.0

    def resolve(self, axes: Axes) -> Prior:
        """Return the normal prior of a parameter with these axes; ValueError if its inputs are not known."""
        axes.check()
        return Normal(self.bias_scale if axes.inputs is None else self.gain / math.sqrt(axes.fan_in))


@dataclass(frozen=True)
class Hierarchical(Checked):
    """w ~ N(0, v), with a variance v for each group of weights that is inferred: of a layer, a unit or an input.

        v ~ Scaled-Inv-χ²(df, scale²) = IG(df/2, df scale²/2),    or √v ~ C⁺(0, scale) where df is None

    In the prior of a model the v are integrated out exactly. The weights of a group then have a multivariate t
    distribution with `df` degrees of freedom, a density of the weights that every method takes; single weights under
    half-Cauchy scales have the `Horseshoe`. `with_scales` instead makes the scales weights of the network, inferred
    with the others.

    Attributes:
        scale: typical standard deviation of the weights, in their units.
        df: degrees of freedom of v: the more, the closer the scales are to `scale`; None for half-Cauchy ones.
        groups: which weights share a variance: those of a parameter ("layer"), of each output unit or filter ("rows"),
            of each input unit or channel ("columns"), or none ("weights"). Biases, and weights of norms, are one group
            each. Which axes have units and inputs depends on the layer: see `torchbayes.model.priors.axes`.
    """

    listed: ClassVar = ("hierarchical", "normal, with a variance for each group that is inferred (scale, df, groups)")

    scale: float = 1.0
    df: float | None = 4.0
    groups: Groups = "layer"

    def grid(self, axes: Axes) -> tuple[int, int, int, int]:
        """Return how a parameter is cut up, (blocks, outer, groups, inner): group b, g is all of [b, :, g, :].

        It raises ValueError if the parameter's units or inputs are not known.
        """
        size = math.prod(axes.shape)
        if self.groups == "weights":
            return 1, 1, size, 1
        if self.groups == "layer":
            return 1, 1, 1, size
        axes.check()
        axis = axes.outputs if self.groups == "rows" else axes.inputs
        return (1, 1, 1, size) if axis is None else axes.grid(axis)

    def resolve(self, axes: Axes) -> Prior | SharedVariance:
        """Return the prior of a parameter with these axes, without the variances.

        Half-Cauchy scales of several weights have no closed form, which is a ValueError; others are as of `grid`.
        """
        blocks, outer, groups, inner = self.grid(axes)
        single = outer * inner == 1
        if self.df is None:
            if single:
                return Horseshoe(self.scale)
            raise ValueError(
                f"the half-Cauchy scale of a group of {outer * inner} weights is not integrated out. Make it a weight "
                f"of the network: `priors.with_scales(network, rules)`; or give `df`."
            )
        return (
            StudentT(self.df, self.scale)
            if single
            else SharedVariance((blocks, outer, groups, inner), self.df, self.scale)
        )

    def log_scales(self) -> Prior:
        """Return the prior of log √v of each group."""
        return LogHalfCauchy(self.scale) if self.df is None else LogInverseChi(self.df, self.scale)


@dataclass(frozen=True)
class SharedVariance:
    """A multivariate t for each group of weights: a `Hierarchical` prior of a parameter without its variances."""

    grid: tuple[int, int, int, int]  # (blocks, outer, groups, inner), as of `Hierarchical.grid`
    df: float  # ν
    scale: float  # s

    def __repr__(self) -> str:
        """Return it in the terms of `Hierarchical`, which it comes from."""
        return f"Hierarchical(scale={self.scale:g}, df={self.df:g}, grid={self.grid})"

    @property
    def group_size(self) -> int:
        """Number of weights of a group, d."""
        return self.grid[1] * self.grid[3]

    @property
    def half(self) -> float:
        """(ν + d)/2, what a group's logarithm is multiplied by."""
        return (self.df + self.group_size) / 2

    @property
    def width(self) -> float:
        """ν s², what |w_g|² is divided by."""
        return self.df * self.scale**2

    @property
    def log_constant(self) -> float:
        """The negative constant of log p(w_g), for each of the d weights."""
        gammas = math.lgamma(self.half) - math.lgamma(self.df / 2)
        return 0.5 * math.log(math.pi * self.width) - gammas / self.group_size

    @property
    def loc_D(self) -> Tensor:
        """Zeros, float64."""
        return torch.zeros(math.prod(self.grid), dtype=torch.float64)

    def stds(self) -> Tensor:
        """Return the standard deviation of every weight, scale √(df/(df − 2)), float64 (D,); infinite for df ≤ 2."""
        std = self.scale * math.sqrt(self.df / (self.df - 2)) if self.df > 2 else math.inf
        return torch.full((math.prod(self.grid),), std, dtype=torch.float64)

    def log_prob(self, weights: Tensor) -> Tensor:
        """Return log p(w), (...) float64, for weights (..., D)."""
        logs = torch.log1p(self._squares(weights) / self.width).sum((-4, -3, -2, -1))
        return -math.prod(self.grid) * self.log_constant - self.half * logs

    def add_gradient_(self, gradient: Tensor, weights: Tensor, scale: float) -> None:
        """Add scale · d log p / dw = −scale w (ν + d)/(ν s² + |w_g|²) to `gradient` in place."""
        factor = (2 * self.half / (self._squares(weights) + self.width)).to(weights)
        gradient.unflatten(-1, self.grid).addcmul_(weights.unflatten(-1, self.grid), factor, value=-scale)

    def _squares(self, weights: Tensor) -> Tensor:
        """Return |w_g|² of each group, float64 (..., blocks, 1, groups, 1)."""
        return weights.unflatten(-1, self.grid).square().sum((-3, -1), keepdim=True, dtype=torch.float64)

    def precision(self, weights: Tensor) -> Tensor:
        """Raise ValueError: the weights of a group depend on each other, so that single ones have no precision."""
        raise ValueError(
            f"under {self!r} the weights of a group have no precision of their own, so a Gaussian has none from it. "
            f"Use priors.StudentT({self.df:g}, {self.scale:g}) or priors.Normal, or sample the posterior with HMC."
        )

    def sample(self, shape: tuple[int, ...], generator: Generator) -> Tensor:
        """Return independent draws, float64 (S, D), on the CPU; `shape` is (S, D)."""
        blocks, _, groups, _ = self.grid
        log_scales = LogInverseChi(self.df, self.scale).sample((shape[0], blocks, 1, groups, 1), generator)
        return (log_scales.exp() * normals((shape[0], *self.grid), generator)).flatten(1)


@dataclass(frozen=True)
class LogHalfCauchy(Checked, SampledPrior):
    """w = log s of a scale s ~ C⁺(0, scale): p(w) = 1/(π cosh(w − log scale)), a hyperbolic secant distribution.

    Attributes:
        scale: median of s.
    """

    scale: float = 1.0

    @property
    def std(self) -> float:
        """Standard deviation of w, π/2."""
        return math.pi / 2

    @property
    def loc(self) -> float:
        """Mean of w, log scale."""
        return math.log(self.scale)

    def log_prob(self, weights: Tensor) -> Tensor:
        """Return log(2/π) − u − log(1 + e^{−2u}) with u = w − log scale, elementwise; nothing overflows."""
        u = weights - self.loc
        return math.log(2 / math.pi) - u - F.softplus(-2 * u)

    def sample(self, shape: tuple[int, ...], generator: Generator) -> Tensor:
        """Return independent draws, float64 on the CPU: log scale + log |z/z′| of two normal numbers."""
        return self.loc + normals(shape, generator).abs().log() - normals(shape, generator).abs().log()
