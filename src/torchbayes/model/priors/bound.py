"""Prior rules resolved on a layout: log p(w) and its gradient on the flat vector."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from torchbayes.checks import holds
from torchbayes.linalg import Blocks, Diagonal
from torchbayes.linalg.stored import double
from torchbayes.model.layout import Layout, matches
from torchbayes.model.priors.axes import Axes
from torchbayes.model.priors.groups import SharedVariance
from torchbayes.model.priors.joint import Joint
from torchbayes.model.priors.noise import LogInverseChi
from torchbayes.model.priors.univariate import (
    Flat,
    Normal,
    Prior,
    PriorLike,
    PriorRules,
    SampledPrior,
    ShapedPrior,
    StudentT,
    Univariate,
    check_prior,
    method_of,
)
from torchbayes.native.process import differentiable
from torchbayes.randomness.seeds import Purpose, generator

_OPTIONAL = (
    "std",
    "loc",
    "improper",
    "quadratic",
    "sample",
    "total",
    "add_gradient_",
    "visit_",
    "precision",
    "expected_",
)

Together = Joint | SharedVariance
"""Priors of all weights of a run together: their log density is one number."""

Closed = Normal | LogInverseChi | StudentT | SharedVariance
"""Priors whose terms with weights the library's kernel computes, all but a `log_constant` for each weight."""


@dataclass(frozen=True)
class Segment:
    """A run of neighbouring parameters that share one univariate prior, or of weights with one prior together."""

    prior: Prior | Together
    where: slice

    @property
    def std(self) -> float | Tensor:
        """Standard deviation of its weights, or of each of them; infinite where it is not known."""
        return self.prior.stds() if isinstance(self.prior, Together) else getattr(self.prior, "std", math.inf)

    @property
    def loc(self) -> float | Tensor:
        """Mean of its weights, or of each of them; 0 where it is not known."""
        return self.prior.loc_D.double().cpu() if isinstance(self.prior, Together) else getattr(self.prior, "loc", 0.0)

    def each(self, value: float | Tensor) -> Tensor:
        """Return `std` or `loc` of each of its weights, float64."""
        return torch.as_tensor(value, dtype=torch.float64).expand(self.where.stop - self.where.start)

    def add_gradient_(self, gradient: Tensor, weights: Tensor, scale: float) -> None:
        """Add `scale` · d log p / dw of this run to `gradient` (..., D) in place."""
        segment_weights, segment_gradient = weights[..., self.where], gradient[..., self.where]
        if closed := method_of(self.prior, "add_gradient_"):
            closed(segment_gradient, segment_weights, scale)
        else:
            segment_gradient.add_(_derivative(self.prior, segment_weights, order=1), alpha=scale)

    def total(self, weights: Tensor) -> Tensor:
        """Return Σ log p of this run over its weights, of weights (..., D), float64 (...)."""
        segment_weights = weights[..., self.where]
        if isinstance(self.prior, Together):
            return self.prior.log_prob(segment_weights)
        if total := method_of(self.prior, "total"):
            return total(segment_weights)
        return self.prior.log_prob(segment_weights).sum(-1, dtype=torch.float64)

    def add_(self, gradient: Tensor, weights: Tensor, scale: float) -> Tensor:
        """Add to a gradient as `add_gradient_` does, and return Σ log p of this run over its weights, float64 (...)."""
        if visit_ := method_of(self.prior, "visit_"):
            return visit_(weights[..., self.where], gradient[..., self.where], scale)
        self.add_gradient_(gradient, weights, scale)
        return self.total(weights)


class BoundPrior:
    """Prior rules resolved on a layout: log p(w) and its gradient on the flat vector."""

    def __init__(
        self,
        layout: Layout,
        rules: PriorRules | Joint,
        *,
        axes: Mapping[str, Axes] | None = None,
        named_priors: Mapping[str, Prior] | None = None,
    ) -> None:
        """Resolve `rules` for every name of `layout`.

        The rules are one prior for all, or glob -> prior, first match wins; or a joint prior over all weights, or an
        independent one over all but those of `named_priors`: priors of the last parameters of the layout, by name.
        They go before the rules, but a joint prior over all weights replaces them. `axes` belong to the parameters in
        their full shapes, even if only some elements are random; the default are those of a linear layer, (O, I).

        It raises ValueError if a parameter matches no glob or a glob no parameter, a Distribution is not univariate or
        not over all real numbers, or a joint prior is over another number of weights; TypeError if a prior has no log
        density.
        """
        self.layout, self.rules = layout, rules
        self.segments: list[Segment] = []
        named_priors = dict(named_priors or {})
        if isinstance(rules, Joint):
            for prior, where in _joined(layout, rules, named_priors):
                _append(self.segments, prior, where)
            return
        table = rules if isinstance(rules, Mapping) else {"*": rules}
        if not table:
            raise ValueError("the `prior` is an empty mapping; got {}. Give a rule for all weights: {'*': Normal()}.")
        table = {**named_priors, **table}
        unused = [glob for glob in table if not layout.select(glob)]
        if unused:
            raise ValueError(
                f"the `prior`'s glob {', '.join(map(repr, unused))} matches no random parameter; the names are "
                f"{', '.join(layout.names)}."
            )
        for name, shape in layout.shapes.items():
            glob = next((g for g in table if matches(name, g)), None)
            if glob is None:
                raise ValueError(f"no glob of the prior matches `{name}`. Add it, or a last rule `'*'`.")
            whole = (axes or {}).get(name) or Axes.dense(shape)
            prior = _resolved(table[glob], name, whole)
            _check_support(prior, glob)
            if isinstance(prior, Together) and whole.shape != shape:
                raise ValueError(
                    f"only some weights of `{name}` are random, and {table[glob]!r} is one of all of them together. "
                    f"Let the whole parameter be random, or give it a prior such as Normal."
                )
            _append(self.segments, prior, layout.slices[name])

    def log_prob(self, weights: Tensor) -> Tensor:
        """Return log p(w) of each row of weights (..., D), in nats.

        It is float64 because a sum over a million weights in float32 is off by nats.
        """
        parts = [segment.total(weights) for segment in self.segments]
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)

    def stds(self) -> Tensor:
        """Return the prior standard deviation of every weight, float64 (D,); infinite where it is not known."""
        return torch.cat([s.each(s.std) for s in self.segments])

    @cached_property
    def joint(self) -> Joint | None:
        """The normal prior over all weights together: a given one, or one of normal segments with correlations.

        It is None for other priors.
        """
        priors = [segment.prior for segment in self.segments]
        if len(priors) == 1 and isinstance(priors[0], Joint):
            return priors[0]
        if not all(isinstance(prior, Normal | Joint) for prior in priors) or not correlated(self):
            return None
        blocks = tuple(
            prior.covariance.mapped(double) if isinstance(prior, Joint) else Diagonal(segment.each(prior.std**2)[None])
            for segment, prior in zip(self.segments, priors, strict=True)
            if isinstance(prior, Normal | Joint)
        )
        return Joint(self.locs(), Blocks(torch.arange(self.layout.size), blocks))

    def locs(self) -> Tensor:
        """Return the prior mean of every weight, float64 (D,); 0 where it is not known."""
        return torch.cat([s.each(s.loc) for s in self.segments])

    @property
    def flat(self) -> Tensor:
        """Which weights have an improper flat prior, bool (D,)."""
        sizes = torch.tensor([s.where.stop - s.where.start for s in self.segments])
        return torch.tensor([isinstance(s.prior, Flat) for s in self.segments]).repeat_interleave(sizes)

    def names(self, chosen_D: Tensor) -> str:
        """Return in words how many weights of which parameters a bool tensor (D,) selects."""
        counts = {name: int(chosen_D[where].sum()) for name, where in self.layout.slices.items()}
        sizes = zip(counts.items(), self.layout.sizes, strict=True)
        return ", ".join(f"{count} of the {size} weights of `{name}`" for (name, count), size in sizes if count)

    def precision(self, weights: Tensor) -> Tensor:
        """Return −∂² log p / ∂w² of every weight, of the shape of `weights` (..., D); 0 for flat priors.

        Correlations of a joint prior are left out. A prior that is not declared flat and has no positive, finite
        precision at a weight is a ValueError.
        """
        precisions = torch.zeros_like(weights)
        for segment in self.segments:
            segment_precisions, segment_weights = precisions[..., segment.where], weights[..., segment.where]
            if closed := method_of(segment.prior, "precision"):
                segment_precisions.copy_(closed(segment_weights))
            else:
                segment_precisions.copy_(-_derivative(segment.prior, segment_weights, order=2))
                _check_bend(self, segment, segment_precisions)
        return precisions

    def sample(self, count: int, *, seed: int = 0) -> Tensor:
        """Return independent draws of weights from the prior, float64 (S, D), on the CPU.

        It raises ValueError if a prior is improper, or has a density and no `sample`.
        """
        parts = []
        for number, segment in enumerate(self.segments):
            if not isinstance(segment.prior, SampledPrior):
                why = "is improper" if getattr(segment.prior, "improper", "") else "has no `sample`"
                raise ValueError(
                    f"weights cannot be drawn from {segment.prior!r}, which {why}. Choose a prior such as Normal, or "
                    f"give yours a method `sample(shape, generator)`."
                )
            shape = (count, segment.where.stop - segment.where.start)
            parts.append(segment.prior.sample(shape, generator(Purpose.PRIOR, seed, number)))
        return torch.cat(parts, dim=1)

    def add_gradient_(self, gradient: Tensor, weights: Tensor, scale: float) -> None:
        """Add `scale` · d log p / dw to `gradient` (..., D) in place, in closed form where a prior has one."""
        for segment in self.segments:
            segment.add_gradient_(gradient, weights, scale)

    @cached_property
    def _without_closed(self) -> tuple[float, list[Segment]]:
        """The constants of `Closed` segments together, and the segments that are neither closed nor flat."""
        constant, rest = 0.0, []
        for segment in self.segments:
            if isinstance(segment.prior, Closed):
                constant += (segment.where.stop - segment.where.start) * segment.prior.log_constant
            elif not isinstance(segment.prior, Flat):
                rest.append(segment)
        return constant, rest

    def add_rest_(self, gradient: Tensor | None, weights: Tensor, scale: float) -> Tensor:
        """Return log p(w) without the terms that depend on weights of `Closed` segments, float64 (...).

        Those terms are computed by the kernel. `scale` times the gradient of the other segments is added to `gradient`
        (..., D), unless it is None.
        """
        constant, rest = self._without_closed
        total = weights.new_full(weights.shape[:-1], -constant, dtype=torch.float64)
        for segment in rest:
            if gradient is None:
                total += segment.total(weights)
            else:
                total += segment.add_(gradient, weights, scale)
        return total


def correlated(bound: BoundPrior) -> bool:
    """Return whether the prior correlates weights."""
    return any(isinstance(s.prior, Joint) and not s.prior.is_independent for s in bound.segments)


def _append(segments: list[Segment], prior: Prior | Together, where: slice) -> None:
    """Add a prior to segments, or make the last one longer; ValueError if its scales do not fit."""
    scales = getattr(prior, "elements", 1)
    if scales not in {1, where.stop - where.start}:
        raise ValueError(f"{prior!r} has {scales} scales for {where.stop - where.start} elements.")
    alone = scales > 1 or isinstance(prior, Together)
    if not alone and segments and segments[-1].prior == prior:
        where = slice(segments.pop().where.start, where.stop)
    segments.append(Segment(prior, where))


def _joined(layout: Layout, joint: Joint, named_priors: Mapping[str, Prior]) -> list[tuple[Prior | Joint, slice]]:
    """Return a joint prior, and those of the last parameters that it leaves out, each with its place.

    It raises ValueError if the joint prior is over another number of weights.
    """
    covered = len(joint.loc_D)
    others: list[tuple[Prior | Joint, slice]] = [
        (named_priors[name], layout.slices[name]) for name in named_priors if layout.slices[name].start >= covered
    ]
    num_others = sum(where.stop - where.start for _, where in others)
    if covered + num_others != layout.size or (others and not joint.is_independent):
        raise ValueError(f"the joint prior is over {covered} weights; the model has {layout.size}.")
    return [(joint, slice(0, covered)), *others]


def _derivative(prior: Prior, weights: Tensor, *, order: int) -> Tensor:
    """Return the derivative of log p of some order, elementwise; 0 where a lower one does not depend on w."""
    with differentiable():
        leaf = weights.detach().requires_grad_()
        derivative = prior.log_prob(leaf)
        for remaining in reversed(range(order)):
            if not derivative.requires_grad:
                return torch.zeros_like(weights)
            (derivative,) = torch.autograd.grad(
                derivative.sum(), leaf, create_graph=remaining > 0, materialize_grads=True
            )
    return derivative.detach()


def _check_bend(bound: BoundPrior, segment: Segment, precision: Tensor) -> None:
    """Raise ValueError if the precision (..., n) of a segment with any prior is not positive and finite everywhere."""
    wrong = ~((precision > 0) & torch.isfinite(precision))
    if not wrong.any():
        return
    chosen_D = torch.zeros(bound.layout.size, dtype=torch.bool)
    chosen_D[segment.where] = wrong.flatten(0, -2).any(0).cpu() if wrong.ndim > 1 else wrong.cpu()
    first, std = float(precision[wrong][0]), getattr(segment.prior, "std", math.inf)
    way = "is straight" if first == 0 else "curves upwards" if first < 0 else "is not smooth"
    same = f"Normal({std:.3g}), which has its standard deviation" if math.isfinite(std) else "a Normal"
    raise ValueError(
        f"the log density of the prior {_said(segment.prior)} {way} at {bound.names(chosen_D)} (its negative second "
        f"derivative is {first + 0.0:.3g}), so a Gaussian there has no precision from it and no evidence. Fit with "
        f"the prior {same}, or sample the posterior with HMC."
    )


def _check_support(prior: Prior, glob: str) -> None:
    """Raise ValueError if a prior is a torch Distribution over a part of the real numbers."""
    if isinstance(prior, Univariate) and not prior.everywhere:
        raise ValueError(
            f"the `prior` of {glob!r} must have a density at all real numbers, where weights go; got {_said(prior)}, "
            f"whose support is {prior.distribution.support}. Use one such as Normal, Laplace or StudentT."
        )


def _said(prior: Prior) -> str:
    """Return the prior in words; a torch Distribution as the user wrote it."""
    return repr(getattr(prior, "distribution", prior))


def _resolved(prior: PriorLike, name: str, axes: Axes) -> Prior | Together:
    """Return the prior of a parameter; ValueError if these axes do not fit it, TypeError if it is no prior."""
    if isinstance(prior, Distribution):
        return Univariate(prior)
    if isinstance(prior, ShapedPrior) and not isinstance(prior, type):
        try:
            return prior.resolve(axes)
        except ValueError as error:
            raise ValueError(f"the `prior` of `{name}`: {error}") from None
    check_prior(prior=prior)
    checked: Any = prior
    return Altered(checked) if _is_altered(type(checked)) else checked


class Altered(Prior):
    """A prior that inherits members which belong to another density: they are left out here.

    A subclass of `Normal` with a `log_prob` of its own is no normal distribution, whatever its class says.
    """

    def __init__(self, prior: Prior) -> None:
        """Take what still holds of `prior`."""
        self.prior = prior
        for name in _OPTIONAL:
            if hasattr(prior, name) and not _is_stale(type(prior), name):
                setattr(self, name, getattr(prior, name))

    def log_prob(self, weights: Tensor) -> Tensor:
        return self.prior.log_prob(weights)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Altered) and self.prior == other.prior

    def __hash__(self) -> int:
        return hash(self.prior)

    def __repr__(self) -> str:
        return repr(self.prior)


@cache
def _is_altered(kind: type) -> bool:
    """Return whether a class of priors inherits what does not hold."""
    return any(name not in vars(kind) and _is_stale(kind, name) for name in _OPTIONAL)


def _is_stale(kind: type, name: str) -> bool:
    return hasattr(kind, name) and not holds(kind, name)
