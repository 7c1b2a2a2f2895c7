"""Uncertainty of the scores of a comparison: intervals, and differences from the best method."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from torch import Tensor

from torchbayes.assess.difference import Difference, paired
from torchbayes.assess.evaluation import Evaluation, interval_of, resampled
from torchbayes.comparison.resamples import RESAMPLES, at_severity

BETTER: dict[str, Literal["low", "high"]] = {
    "accuracy": "high",
    "rmse": "low",
    "mae": "low",
    "nll": "low",
    "brier": "low",
    "ece": "low",
    at_severity("nll", 5): "low",
    "auroc": "high",
    "agreement": "high",
    "total_variation": "low",
    "wasserstein1": "low",
}
"""Metrics that have a best value, and whether that is the lowest."""
LEVEL = 0.95


class Further(NamedTuple):
    """Scores of a method beyond those of its evaluation on the test set."""

    values: Mapping[str, float]  # by metric
    drawn: Mapping[str, Tensor]  # metric -> its values in resamples of the rows, (R,)


@dataclass(frozen=True)
class Certainty:
    """Uncertainty of the scores of one method.

    `nll_severity_3` is the mean NLL over corruptions at severity 3.
    """

    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # of what other rows could have given
    apart: Mapping[str, Difference] = field(default_factory=dict)  # from the best on the same rows

    def is_best(self, metric: str) -> bool:
        """Return whether the method is the best by a metric, or not significantly different from it."""
        difference = self.apart.get(metric)
        return difference is not None and difference.low <= 0 <= difference.high

    def numbers(self) -> dict[str, Any]:
        """Return every number, JSON-serialisable."""
        if not self.intervals:
            return {}
        apart = {m: {k: v for k, v in asdict(found).items() if k != "metric"} for m, found in self.apart.items()}
        return {"intervals": {m: list(ends) for m, ends in self.intervals.items()}, "from_best": apart}


def certainties(
    evaluations: Mapping[str, Evaluation], *, seed: int = 0, further: Mapping[str, Further] | None = None
) -> dict[str, Certainty]:
    """Return the uncertainty of each method's scores, by resamples of the rows that all evaluations share.

    `further` holds scores on other data, of as many resamples. There are no numbers for a single row.
    """
    if any(len(each.log_prob) < 2 for each in evaluations.values()):
        return {name: Certainty() for name in evaluations}
    drawn: dict[str, dict[str, Tensor]] = {n: resampled(e, RESAMPLES, seed) for n, e in evaluations.items()}
    values: dict[str, dict[str, float]] = {name: dict(each.metrics) for name, each in evaluations.items()}
    for name, more in (further or {}).items():
        drawn[name] |= more.drawn
        values[name] |= more.values
    apart: dict[str, dict[str, Difference]] = {name: {} for name in evaluations}
    for metric, better in BETTER.items():
        candidates = {name: own[metric] for name, own in values.items() if metric in own and metric in drawn[name]}
        candidates = {name: value for name, value in candidates.items() if math.isfinite(value)}
        if not candidates:
            continue
        best = (min if better == "low" else max)(candidates, key=candidates.__getitem__)
        for name in candidates:
            both, rows = [values[each] for each in (name, best)], len(evaluations[name].log_prob)
            apart[name][metric] = paired(metric, both, [drawn[name], drawn[best]], rows=rows, level=LEVEL)
    return {
        name: Certainty({metric: interval_of(values_R, LEVEL) for metric, values_R in own.items()}, apart[name])
        for name, own in drawn.items()
    }
