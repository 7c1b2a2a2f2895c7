"""How sure the scores of a comparison are: intervals, and which methods cannot be told from the best on these rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from torchbayes.assess.difference import Difference, paired
from torchbayes.assess.evaluation import Evaluation, interval_of, resampled

BETTER: dict[str, Literal["low", "high"]] = {
    "accuracy": "high",
    "rmse": "low",
    "nll": "low",
    "brier": "low",
    "ece": "low",
}
"""Metrics of the test set that have a best value, and whether that is the lowest."""
LEVEL, RESAMPLES = 0.95, 1000


@dataclass(frozen=True)
class Certainty:
    """How sure the scores of one method are.

    Attributes:
        intervals: metric -> interval of what other test rows could have given.
        apart: metric -> its difference from the best method on the same rows, zero for the best itself.
    """

    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    apart: Mapping[str, Difference] = field(default_factory=dict)

    def is_best(self, metric: str) -> bool:
        """Return whether the method is the best by a metric, or cannot be told from it."""
        found = self.apart.get(metric)
        return found is not None and found.low <= 0 <= found.high

    def numbers(self) -> dict[str, Any]:
        """Return every number, JSON-serialisable."""
        if not self.intervals:
            return {}
        apart = {m: {k: v for k, v in asdict(found).items() if k != "metric"} for m, found in self.apart.items()}
        return {"intervals": {m: list(ends) for m, ends in self.intervals.items()}, "from_best": apart}


def certainties(evaluations: Mapping[str, Evaluation], *, seed: int = 0) -> dict[str, Certainty]:
    """Return how sure the scores of methods are, by resamples of the rows that all share.

    Args:
        evaluations: method -> its evaluation, all on the same rows.
        seed: seed of the resamples.

    Returns:
        method -> certainty, without numbers where there is only one row.
    """
    if any(len(each.log_prob) < 2 for each in evaluations.values()):
        return {name: Certainty() for name in evaluations}
    drawn = {name: resampled(each, RESAMPLES, seed) for name, each in evaluations.items()}
    apart: dict[str, dict[str, Difference]] = {name: {} for name in evaluations}
    for metric, better in BETTER.items():
        values = {n: e.metrics[metric] for n, e in evaluations.items() if metric in drawn[n]}
        values = {name: value for name, value in values.items() if math.isfinite(value)}
        if not values:
            continue
        best = (min if better == "low" else max)(values, key=values.__getitem__)
        for name in values:
            both = [evaluations[each].metrics for each in (name, best)]
            apart[name][metric] = paired(metric, both, [drawn[name], drawn[best]], level=LEVEL)
    return {
        name: Certainty({metric: interval_of(values_R, LEVEL) for metric, values_R in own.items()}, apart[name])
        for name, own in drawn.items()
    }
