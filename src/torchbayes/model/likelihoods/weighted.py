"""Weighted: rows that count more or less than once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.utils import _pytree as pytree

from torchbayes.checks import holds
from torchbayes.model.likelihoods.gaussian import Gaussian, as_setting, as_tuple
from torchbayes.model.likelihoods.protocol import NONE, Counted, Learned, Likelihood, Parameters, counted, scored


@dataclass(frozen=True)
class Weighted:
    """Σ_b w_b log p(y_b | f_b): targets (y, w) are those of another likelihood and a weight for each row, (B,).

    A row of weight w is w rows: fits, curvature, evidence, noise and metrics (except ece_mass) are those of data in
    which it is repeated. A row of weight 0 has no effect. `num_data`, the scale of minibatches and of the mean loss,
    stays the number of rows. Predictions are judged by targets (y, w), or by y alone, where each row counts once.
    Loaders that yield (x, y, w) are read by `Model(batch=lambda row: (row[0], (row[1], row[2])))`.

    Attributes:
        base: the likelihood of one observation.
    """

    base: Likelihood

    def __post_init__(self) -> None:
        if isinstance(self.base, type) or not isinstance(self.base, Likelihood):
            seen = f"the class {self.base.__name__}" if isinstance(self.base, type) else type(self.base).__name__
            raise TypeError(f"`base` must be a likelihood; got {seen}. Wrap functions in likelihoods.Custom.")

    def parameters(self) -> Mapping[str, Learned]:
        """Return the learned parameters of the base."""
        return self.base.parameters()

    def distribution(self, outputs: Tensor, parameters: Parameters = NONE) -> Distribution:
        """Return the distribution of one observation."""
        return self.base.distribution(outputs, parameters)

    def log_prob(self, outputs: Tensor, targets: Any, parameters: Parameters = NONE) -> Tensor:
        """Return w_b log p(y_b | f_b)."""
        values, weights = targets
        weights = weights.to(outputs.dtype)
        return torch.where(weights == 0, 0.0, weights * self.base.log_prob(outputs, values, parameters))

    def check(self, outputs: Tensor, targets: Any) -> None:
        """Check that targets are a pair with one finite weight >= 0 for each row, and that the targets fit the base."""
        if not isinstance(targets, tuple | list) or len(targets) != 2:
            raise TypeError(
                f"targets of a Weighted likelihood must be a pair (targets, weights); got {type(targets).__name__}."
            )
        values, weights = targets
        if not isinstance(weights, Tensor) or weights.shape != outputs.shape[:1]:
            seen = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
            raise ValueError(f"weights must have shape ({len(outputs)},), one for each row; got {seen}.")
        if not (torch.isfinite(weights) & (weights >= 0)).all():
            raise ValueError(
                f"weights must be finite and at least 0; got values in {float(weights.min()):g}.."
                f"{float(weights.max()):g}."
            )
        self.base.check(outputs, values)

    def counted(self, outputs: Tensor, targets: Any) -> Counted:
        """Return the base's weighted targets, times the weights of the rows."""
        return _times(counted(self.base, outputs, targets[0]), targets[1].to(outputs.dtype))

    def scored(self, outputs: Tensor, targets: Any) -> Counted:
        """Return the base's targets for metrics, times the weights of the rows; targets without weights count once."""
        if isinstance(targets, Tensor):
            return scored(self.base, outputs, targets)
        self.check(outputs, targets)
        return _times(scored(self.base, outputs, targets[0]), targets[1].to(outputs.dtype))


def _times(counted: Counted, weights: Tensor) -> Counted:
    """Return targets whose weights are multiplied by those of the rows."""
    if counted.weights is None:
        return counted._replace(weights=weights)
    return counted._replace(weights=counted.weights * weights.view(-1, *[1] * (counted.weights.ndim - 1)))


def unweighted(likelihood: Likelihood) -> Likelihood:
    """Return the likelihood of one observation: the base of a weighted one."""
    while isinstance(likelihood, Weighted) and holds(likelihood, "counted"):
        likelihood = likelihood.base
    return likelihood


def map_values(function: Callable[[Any], Any], likelihood: Likelihood, targets: Any) -> Any:
    """Return targets with `function` applied, but not to the weights of a weighted likelihood."""
    if isinstance(likelihood, Weighted) and isinstance(targets, tuple | list) and len(targets) == 2:
        return map_values(function, likelihood.base, targets[0]), targets[1]
    return function(targets)


def num_values(likelihood: Likelihood, targets: Any) -> float:
    """Return the number of values in targets (B, ...), each counted as often as its row."""
    _, targets, each = apart(likelihood, targets)
    total = sum(leaf.numel() for leaf in pytree.tree_leaves(targets))
    return float(total if each is None else total / len(each) * each.sum())


def observed(likelihood: Likelihood, targets: Any) -> Any:
    """Return targets without the weights of their rows."""
    return apart(likelihood, targets)[1]


def apart(likelihood: Likelihood, targets: Any) -> tuple[Likelihood, Any, Tensor | None]:
    """Return the likelihood of one observation, targets (B, ...) for it, and the rows' weights (B,), None if all are 1.

    Members' rows, (M, B, ...), have weights (M, B).
    """
    each: Tensor | None = None
    while isinstance(likelihood, Weighted) and holds(likelihood, "counted"):
        likelihood, (targets, weights) = likelihood.base, targets
        each = weights.double() if each is None else each * weights
    return likelihood, targets, each


def asks(likelihood: Likelihood) -> bool:
    """Return whether a likelihood, weighted or not, still needs something from targets."""
    plain = unweighted(likelihood)
    return holds(plain, "informed") and plain.asks()


def informed(likelihood: Likelihood, targets: Any) -> Likelihood:
    """Return the likelihood, weighted or not, with what it needs from targets; itself if it needs nothing."""
    if not asks(likelihood):
        return likelihood
    plain: Any
    plain, values, weights_N = apart(likelihood, targets)
    return _around(likelihood, plain.informed(values, weights_N))


def spread_of(likelihood: Likelihood) -> tuple[float, ...]:
    """Return the standard deviations of targets that a likelihood has taken from data; an empty tuple if it has not."""
    plain = unweighted(likelihood)
    return as_tuple(getattr(plain, "spread", None) if holds(plain, "informed") else None)


def having_spread(likelihood: Likelihood, spread: tuple[float, ...]) -> Likelihood:
    """Return the likelihood with these standard deviations of targets; itself if it takes none."""
    if not asks(likelihood):
        return likelihood
    plain: Any = unweighted(likelihood)
    return _around(likelihood, replace(plain, spread=as_setting(spread)))


def _around(likelihood: Likelihood, plain: Likelihood) -> Likelihood:
    """Return the likelihood with `plain` as that of single observations."""
    return replace(likelihood, base=_around(likelihood.base, plain)) if isinstance(likelihood, Weighted) else plain


def fixed_noise(likelihood: Likelihood) -> tuple[float, ...]:
    """Return the fixed scales of normal noise, weighted or not: one, or one per output; empty if there are none.

    A subclass of `Gaussian` that changes the log probability has none, because its noise is not known.
    """
    plain = unweighted(likelihood)
    return plain.scales if isinstance(plain, Gaussian) and holds(plain, "curvature_root") else ()


def rescaled(likelihood: Likelihood, factor: float) -> Likelihood:
    """Return the likelihood with its fixed noise scale multiplied by a factor; TypeError if it has none."""
    if not fixed_noise(likelihood):
        name = type(unweighted(likelihood)).__name__
        raise TypeError(
            f"{name} has no fixed noise scale to tune. Fit with one, such as likelihoods.Gaussian(0.5), or leave the "
            f"noise as it is."
        )
    return having_scales(likelihood, tuple(scale * factor for scale in fixed_noise(likelihood)))


def having_scales(likelihood: Likelihood, scales: tuple[float, ...]) -> Likelihood:
    """Return the likelihood with other fixed noise scales; itself if it has another number of them."""
    if len(fixed_noise(likelihood)) != len(scales):
        return likelihood
    plain: Any = unweighted(likelihood)
    return _around(likelihood, plain.having_scales(scales))
