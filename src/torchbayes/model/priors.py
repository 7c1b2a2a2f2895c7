"""p(w): what is believed about the weights before the data.

A prior is one univariate density for every weight that a glob names. `Model` takes a single prior, a torch
`Distribution`, or a mapping from globs to priors; the first glob that matches a parameter's name decides.
Densities are normalised, so that evidences built on them are right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution

from torchbayes.model.layout import Layout, matches


@runtime_checkable
class Prior(Protocol):
    """Anything with an elementwise log density of weights."""

    def log_prob(self, weights: Tensor) -> Tensor:
        """Return log p of each element of `weights`, same shape."""
        ...


@runtime_checkable
class ShapedPrior(Protocol):
    """A prior that depends on a parameter's shape."""

    def resolve(self, shape: tuple[int, ...]) -> Prior:
        """Return the univariate prior of a parameter of this shape."""
        ...


PriorLike = Prior | ShapedPrior | Distribution
PriorRules = PriorLike | Mapping[str, PriorLike]


def _positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"`{name}` must be positive and finite; got {value}.")


@dataclass(frozen=True)
class Normal:
    """w ~ N(loc, scale²).

    Attributes:
        scale: standard deviation (not the variance), in units of the weights.
        loc: mean.
    """

    scale: float = 1.0
    loc: float = 0.0

    def __post_init__(self) -> None:
        _positive("scale", self.scale)

    @property
    def log_constant(self) -> float:
        """log(scale √2π)."""
        return math.log(self.scale * math.sqrt(2 * math.pi))

    def log_prob(self, weights: Tensor) -> Tensor:
        """Return −½((w − loc)/scale)² − log(scale √2π), elementwise."""
        return -0.5 * ((weights - self.loc) / self.scale) ** 2 - self.log_constant

    def total(self, weights: Tensor) -> Tensor:
        """Return Σ log p over the last axis, float64, in one pass over the weights."""
        centred = weights - self.loc if self.loc else weights
        squares = torch.linalg.vector_norm(centred, dim=-1, dtype=torch.float64) ** 2
        return squares * (-0.5 / self.scale**2) - weights.shape[-1] * self.log_constant

    def add_gradient_(self, gradient: Tensor, weights: Tensor, scale: float) -> None:
        """Add scale · d log p / dw = −scale (w − loc)/scale_prior² to `gradient` in place, in one pass."""
        gradient.add_(weights - self.loc if self.loc else weights, alpha=-scale / self.scale**2)


@dataclass(frozen=True)
class Laplace:
    """w ~ Laplace(loc, scale), density exp(−|w − loc|/scale) / (2 scale).

    Attributes:
        scale: mean absolute deviation; the standard deviation is √2 scale.
        loc: mean.
    """

    scale: float = 1.0
    loc: float = 0.0

    def __post_init__(self) -> None:
        _positive("scale", self.scale)

    def log_prob(self, weights: Tensor) -> Tensor:
        """Return −|w − loc|/scale − log(2 scale), elementwise."""
        return -(weights - self.loc).abs() / self.scale - math.log(2 * self.scale)


@dataclass(frozen=True)
class StudentT:
    """w ~ loc + scale · t(df).

    Attributes:
        df: degrees of freedom; small values give heavy tails.
        scale: scale of the t distribution.
        loc: location.
    """

    df: float = 5.0
    scale: float = 1.0
    loc: float = 0.0

    def __post_init__(self) -> None:
        _positive("df", self.df)
        _positive("scale", self.scale)

    def log_prob(self, weights: Tensor) -> Tensor:
        """Return the Student-t log density, elementwise."""
        df = self.df
        constant = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi) - math.log(self.scale)
        return constant - (df + 1) / 2 * torch.log1p(((weights - self.loc) / self.scale) ** 2 / df)


@dataclass(frozen=True)
class Logistic:
    """w ~ Logistic(loc, scale), density e^{−z} / (scale (1 + e^{−z})²) with z = (w − loc)/scale.

    Attributes:
        scale: scale; the standard deviation is π scale / √3.
        loc: mean.
    """

    scale: float = 1.0
    loc: float = 0.0

    def __post_init__(self) -> None:
        _positive("scale", self.scale)

    def log_prob(self, weights: Tensor) -> Tensor:
        """Return −|z| − 2 log(1 + e^{−|z|}) − log scale, elementwise; symmetric in z, so no overflow."""
        size = ((weights - self.loc) / self.scale).abs()
        return -size - 2 * F.softplus(-size) - math.log(self.scale)


@dataclass(frozen=True)
class NormalMixture:
    """w ~ Σ_j proportion_j N(0, scale_j²): a scale mixture of normals.

    With two components this is the prior of Bayes by backprop (Blundell et al. 2015).

    Attributes:
        scales: standard deviations, one per component.
        proportions: weights of the components, positive; normalised here.
    """

    scales: tuple[float, ...] = (1.0, 0.1)
    proportions: tuple[float, ...] = (0.5, 0.5)

    def __post_init__(self) -> None:
        if len(self.scales) != len(self.proportions) or not self.scales:
            raise ValueError(
                f"`scales` and `proportions` must have the same positive length; "
                f"got {len(self.scales)} and {len(self.proportions)}."
            )
        for scale, proportion in zip(self.scales, self.proportions, strict=True):
            _positive("scales", scale)
            _positive("proportions", proportion)

    def log_prob(self, weights: Tensor) -> Tensor:
        """Return log Σ_j proportion_j N(w; 0, scale_j²) by log-sum-exp, elementwise."""
        total = sum(self.proportions)
        parts = [
            Normal(scale).log_prob(weights) + math.log(proportion / total)
            for scale, proportion in zip(self.scales, self.proportions, strict=True)
        ]
        return torch.logsumexp(torch.stack(parts), dim=0)


@dataclass(frozen=True)
class Flat:
    """An improper flat prior: log p(w) = 0. MAP with it is maximum likelihood; it has no evidence."""

    def log_prob(self, weights: Tensor) -> Tensor:
        """Return zeros, elementwise."""
        return torch.zeros_like(weights)

    def total(self, weights: Tensor) -> Tensor:
        """Return zeros, float64, without the last axis."""
        return weights.new_zeros(weights.shape[:-1], dtype=torch.float64)

    def add_gradient_(self, gradient: Tensor, weights: Tensor, scale: float) -> None:
        """Leave `gradient` as it is."""


@dataclass(frozen=True)
class FanInNormal:
    """w ~ N(0, gain² / fan_in) for tensors with two axes or more, N(0, bias_scale²) for the others (Neal 1996).

    With it the variance of a layer's outputs does not depend on the layer's width.

    Attributes:
        gain: standard deviation of a unit's input per unit of input scale; √2 suits ReLU.
        bias_scale: standard deviation of biases and of norm layers' weights.
    """

    gain: float = math.sqrt(2.0)
    bias_scale: float = 1.0

    def __post_init__(self) -> None:
        _positive("gain", self.gain)
        _positive("bias_scale", self.bias_scale)

    def resolve(self, shape: tuple[int, ...]) -> Prior:
        """Return the normal prior of a parameter of this shape; fan_in is the product of all axes but the first."""
        fan_in = math.prod(shape[1:])
        return Normal(self.gain / math.sqrt(fan_in)) if len(shape) > 1 else Normal(self.bias_scale)


@dataclass(frozen=True)
class Univariate:
    """Any univariate torch Distribution as the prior of every weight.

    Attributes:
        distribution: a Distribution with empty event and batch shape.
    """

    distribution: Distribution

    def log_prob(self, weights: Tensor) -> Tensor:
        """Return the distribution's log density, elementwise."""
        return self.distribution.log_prob(weights)


@dataclass(frozen=True)
class _Segment:
    """A run of neighbouring parameters that share one univariate prior."""

    prior: Prior
    where: slice

    def add_gradient_(self, gradient: Tensor, weights: Tensor, scale: float) -> None:
        """Add `scale` · d log p / dw of this run to `gradient` (..., D) in place."""
        part, into = weights[..., self.where], gradient[..., self.where]
        if isinstance(self.prior, Normal | Flat):
            self.prior.add_gradient_(into, part, scale)
            return
        with torch.enable_grad():
            leaf = part.detach().requires_grad_()
            (own,) = torch.autograd.grad(self.prior.log_prob(leaf).sum(), leaf)
        into.add_(own, alpha=scale)


class BoundPrior:
    """Prior rules resolved on a layout: log p(w) and its gradient on the flat vector."""

    def __init__(self, layout: Layout, rules: PriorRules) -> None:
        """Resolve `rules` for every name of `layout`.

        Args:
            layout: the names and shapes of the random weights.
            rules: one prior for all, or glob -> prior, first match wins.

        Raises:
            ValueError: if a parameter matches no glob or a glob no parameter, or a Distribution is not univariate.
            TypeError: if a prior has no log density.
        """
        table = rules if isinstance(rules, Mapping) else {"*": rules}
        unused = [glob for glob in table if not layout.select(glob)]
        if unused:
            raise ValueError(
                f"the prior's glob {', '.join(map(repr, unused))} matches no random parameter; the names are "
                f"{', '.join(layout.names)}."
            )
        self.segments: list[_Segment] = []
        for name, shape in layout.shapes.items():
            glob = next((g for g in table if matches(name, g)), None)
            if glob is None:
                raise ValueError(f"no glob of the prior matches `{name}`. Add it, or a last rule `'*'`.")
            self._append(_univariate(table[glob], shape), layout.slices[name])

    def _append(self, prior: Prior, where: slice) -> None:
        if self.segments and self.segments[-1].prior == prior:
            where = slice(self.segments.pop().where.start, where.stop)
        self.segments.append(_Segment(prior, where))

    def log_prob(self, weights: Tensor) -> Tensor:
        """Return log p(w) of each row.

        Args:
            weights: tensor (..., D).

        Returns:
            Float64 tensor (...), in nats: in float32 a sum over a million weights is off by nats.
        """
        parts = [_total(segment.prior, weights[..., segment.where]) for segment in self.segments]
        return torch.stack(parts).sum(0)

    def add_gradient_(self, gradient: Tensor, weights: Tensor, scale: float) -> None:
        """Add `scale` · d log p / dw to `gradient` in place: closed form where the prior has one, else autograd.

        Args:
            gradient: tensor (..., D), changed.
            weights: tensor (..., D).
            scale: factor on the prior's gradient.
        """
        for segment in self.segments:
            segment.add_gradient_(gradient, weights, scale)

    def add_rest_(self, gradient: Tensor, weights: Tensor, scale: float) -> Tensor:
        """Do what is left to do once −½ ((w − loc)/scale)² of the normal segments is done elsewhere.

        Args:
            gradient: tensor (..., D); receives the gradient of the segments that are not normal.
            weights: tensor (..., D).
            scale: factor on the prior's gradient.

        Returns:
            Float64 tensor (...): log p(w) without those squares.
        """
        total = weights.new_zeros(weights.shape[:-1], dtype=torch.float64)
        for segment in self.segments:
            if isinstance(segment.prior, Normal):
                total -= (segment.where.stop - segment.where.start) * segment.prior.log_constant
            elif not isinstance(segment.prior, Flat):
                segment.add_gradient_(gradient, weights, scale)
                total += _total(segment.prior, weights[..., segment.where])
        return total


def _total(prior: Prior, weights: Tensor) -> Tensor:
    if isinstance(prior, Normal | Flat):
        return prior.total(weights)
    return prior.log_prob(weights).sum(-1, dtype=torch.float64)


def _univariate(prior: PriorLike, shape: tuple[int, ...]) -> Prior:
    if isinstance(prior, type):
        raise TypeError(f"a prior must be an object; got the class {prior.__name__}. Write {prior.__name__}().")
    if isinstance(prior, Distribution):
        if prior.event_shape or prior.batch_shape.numel() != 1:
            raise ValueError(
                f"a prior must be univariate; got batch shape {tuple(prior.batch_shape)} and event shape "
                f"{tuple(prior.event_shape)}. Give one Distribution per glob."
            )
        return Univariate(prior)
    if isinstance(prior, ShapedPrior):
        return prior.resolve(shape)
    if not isinstance(prior, Prior):
        raise TypeError(
            f"a prior must be one of torchbayes.priors, a torch Distribution, or have a `log_prob`; got {prior!r}."
        )
    return prior
