"""Quantiles of an average of distributions, by bisection on its distribution function."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from torchbayes.checks import check_numbers

_HALVES = 60  # more than the binary digits of a float64


def average_quantile(distribution: Distribution, levels: Sequence[float] | Tensor) -> Tensor:
    """Return quantiles (Q, B, ...) of an equal mixture of S univariate distributions, of batch shape (S, B, ...).

    They are exact to rounding. For a discrete distribution a quantile is the least value up to which the mixture has
    that probability. Levels (Q,) in (0, 1) that are plain numbers leave no inverse error function in an exported graph.
    A distribution without `cdf` raises NotImplementedError.
    """
    if type(distribution).cdf is Distribution.cdf:
        name = next(kind.__name__ for kind in type(distribution).__mro__ if not kind.__name__.startswith("_"))
        raise NotImplementedError(f"{name} has no `cdf` in torch. Take the quantiles of what `sample` gives.")
    shape = (-1, *[1] * (len(distribution.batch_shape) - 1))
    goal = (levels if isinstance(levels, Tensor) else distribution.mean.new_tensor(levels)).view(shape)
    if isinstance(distribution, Normal) and not isinstance(levels, Tensor):
        normal = distribution.loc.new_tensor(_standard(tuple(levels))).view(shape).unsqueeze(1)
        low, high = _ends(distribution.loc + distribution.scale * normal)
    else:
        low, high = _bounds(distribution, goal)
    single = low is high  # both are the quantile itself
    for _ in range(0 if single else _HALVES):
        middle = (low + high) / 2
        below = distribution.cdf(middle.unsqueeze(1)).mean(1) < goal
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    # the mixture reaches the level at `high`, by a jump at the whole number just below
    return high.floor() if is_discrete(distribution) else (low + high) / 2


def _standard(levels: tuple[float, ...]) -> list[float]:
    """Return quantiles of the standard normal."""
    return [NormalDist().inv_cdf(level) for level in levels]


def mark_constants() -> None:
    """Let quantiles of the standard normal be constants of graphs; this imports PyTorch's compiler, over a second."""
    torch.compiler.assume_constant_result(_standard)


def _bounds(distribution: Distribution, goal: Tensor) -> tuple[Tensor, Tensor]:
    """Return numbers between which the quantiles lie."""
    try:  # the mixture's quantile lies between the smallest and the largest of the draws' own
        return _ends(distribution.icdf(goal.unsqueeze(1)))
    except NotImplementedError:  # Cantelli's inequality
        mean = distribution.mean.mean(0)
        spread = (distribution.variance.mean(0) + distribution.mean.var(0, correction=0)).sqrt()
        return mean - spread * ((1 - goal) / goal).sqrt(), mean + spread * (goal / (1 - goal)).sqrt()


def _ends(each: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least and the largest of the draws' own quantiles, (Q, S, ...); the same tensor twice if S is 1."""
    return (first := each[:, 0], first) if each.shape[1] == 1 else (each.amin(1), each.amax(1))


def check_level(level: float) -> None:
    """Raise an error if the level of a central interval is no number between 0 and 1."""
    check_numbers(level=level)
    if not 0 < level < 1:
        raise ValueError(f"`level` must lie between 0 and 1; got {level:g}. 0.95 is usual.")


def is_discrete(distribution: Distribution) -> bool:
    """Return whether a distribution is one of whole numbers."""
    try:
        return bool(distribution.support.is_discrete)  # type: ignore[union-attr]
    except (AttributeError, NotImplementedError):
        return False
