"""difference: how much two model averages differ on the same rows, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from torchbayes.assess.evaluation import Evaluation, interval_of, resampled
from torchbayes.checks import check_counts, check_kind, check_text
from torchbayes.native.process import undisturbed
from torchbayes.randomness.seeds import Purpose, generator

_SHARES = frozenset({"accuracy", "coverage"})  # of rows


@dataclass(frozen=True)
class Difference:
    """A metric of one evaluation minus that of another on the same rows.

    Attributes:
        metric: its name.
        value: first minus second.
        error: its standard error over resamples of the rows.
        low: lower end of the interval.
        high: upper end.
        level: probability of the interval.
    """

    metric: str
    value: float
    error: float
    low: float
    high: float
    level: float


@undisturbed
def difference(
    first: Evaluation,
    second: Evaluation,
    metric: str = "nll",
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Difference:
    """Return the difference of a metric of two evaluations on the same rows, with standard error and interval.

    Both are resampled with the same rows, as `Evaluation.intervals` does. What is hard for both cancels, so
    differences far smaller than the intervals of each can be told from chance. For a mean over rows, such as nll,
    the standard error is that of the mean of paired differences. It says how much depends on the choice of test
    rows, and nothing about what another seed of the training would give.

    Args:
        first: evaluation of one model average.
        second: that of another on the same rows in the same order, with the same `target_scale`.
        metric: a name in the `metrics` of both.
        level: probability of the interval, in (0, 1).
        resamples: number of resamples, at least 2.
        seed: seed of the resamples.

    Returns:
        The difference, first minus second.

    Raises:
        TypeError: if `first` or `second` is no evaluation.
        ValueError: if their targets or weights differ, one lacks the metric or its terms, they are of one row, or a
            number is out of range.
    """
    check_kind(Evaluation, "an evaluation, as `evaluate` gives it", first=first, second=second)
    check_text(metric=metric)
    shared = [name for name in first.metrics if name in second.metrics]
    if metric not in shared:
        raise ValueError(f"`metric` must be one that both have, {', '.join(shared)}; got {metric!r}.")
    _check_rows(first, second)
    check_counts(least=2, resamples=resamples)
    drawn = resampled((first, second), resamples, seed)
    if any(metric not in each for each in drawn):
        raise ValueError(
            f"{metric} needs the `terms` of every row, which an evaluation made by hand lacks. Use `evaluate`."
        )
    metrics = (first.metrics, second.metrics)
    return paired(metric, metrics, drawn, rows=len(first.log_prob), level=level)


def paired(
    metric: str,
    metrics: Sequence[Mapping[str, float]],
    drawn: Sequence[Mapping[str, Tensor]],
    *,
    rows: int,
    level: float = 0.95,
) -> Difference:
    """Return the difference of a metric of two evaluations from the metrics of both on the same resamples.

    A resample holds no kind of row that was not seen. If one evaluation is right on a few rows more and the other
    never alone, the first would be ahead in all resamples. So half a row is added to each of the four kinds, both,
    one, the other or none right, as Jeffreys' prior does (Agresti and Min 2005). `drawn` are the metrics of
    resamples, from `resampled` with one seed.
    """
    apart_R = drawn[0][metric] - drawn[1][metric]
    if metric in _SHARES and bool(apart_R.any()):
        source, like = generator(Purpose.UNSEEN_ROWS, device=apart_R.device), apart_R.new_empty(len(apart_R), 4)
        half_R4 = torch.randn(like.shape, generator=source, dtype=like.dtype, device=like.device).square() / 2
        # Used with its negative too, so that exchanging the evaluations changes the sign.
        either_R = half_R4[:, 0] - half_R4[:, 1]
        apart_2R = torch.stack([rows * apart_R + either_R, rows * apart_R - either_R])
        apart_R = (apart_2R / (rows + half_R4.sum(1))).flatten()
    value = metrics[0][metric] - metrics[1][metric]
    return Difference(metric, value, float(apart_R.std()), *interval_of(apart_R, level), level)


def _check_rows(first: Evaluation, second: Evaluation) -> None:
    """Raise a ValueError unless two evaluations are of the same rows."""
    for name in ("targets", "weights", "label_weights"):
        left, right = (pytree.tree_leaves(getattr(each, name)) for each in (first, second))
        if len(left) != len(right) or not all(map(_equal, left, right)):
            raise ValueError(
                f"`first` and `second` must be evaluations of the same rows in the same order; their `{name}` differ: "
                f"{_said(left)} and {_said(right)}. Evaluate both on the same data."
            )


def _equal(ours: Any, theirs: Any) -> bool:
    if not isinstance(ours, Tensor) or not isinstance(theirs, Tensor):
        return ours is theirs
    return ours.shape == theirs.shape and bool((ours == theirs).all())


def _said(leaves: list[Any]) -> str:
    """Return a short description that tells targets apart."""
    return ", ".join(f"shape {tuple(leaf.shape)}" for leaf in leaves if isinstance(leaf, Tensor)) or "none"
