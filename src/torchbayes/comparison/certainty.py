"""Uncertainty of the scores of a comparison: resamples of the rows, intervals, and differences from the best method.

What other rows could have given, by the Bayesian bootstrap over rows (Rubin 1981), like the intervals of an evaluation.
A row has the same weight in all of its corruptions, which are not independent, and in all methods, so that differences
between methods are paired.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from torchbayes.assess.difference import Difference, paired
from torchbayes.assess.evaluation import Evaluation, drawn_rows, interval_of, resampled
from torchbayes.metrics.resampling import resampled_auroc, resampled_mean
from torchbayes.metrics.scoring import hits
from torchbayes.randomness.seeds import Purpose, mix

RESAMPLES = 1000

Terms = dict[str, Tensor]
"""metric -> what each row contributes to it, (N,)."""


def at_severity(metric: str, severity: int) -> str:
    """Return the name of a metric, averaged over corruptions, at a severity; 0 is not corrupted."""
    return f"{metric}_severity_{severity}"


def row_terms(evaluation: Evaluation, rows: int) -> Terms:
    """Return nll, accuracy and overconfidence (confidence − accuracy) of the first rows of classes, float64 (N,)."""
    assert evaluation.probs is not None
    probs_NK = evaluation.probs[:rows].double()
    right_N = hits(evaluation.probs, evaluation.targets)[:rows].double()
    terms = {"nll": -evaluation.log_prob[:rows], "accuracy": right_N, "overconfidence": probs_NK.amax(-1) - right_N}
    return {name: values_N.double().cpu() for name, values_N in terms.items()}


def closeness_terms(probs_NK: Tensor, reference_NK: Tensor) -> Terms:
    """Return agreement and total variation of two averages row by row, (N,) each, float64."""
    terms = {
        "agreement": probs_NK.argmax(-1) == reference_NK.argmax(-1),
        "total_variation": 0.5 * (probs_NK - reference_NK).abs().sum(-1),
    }
    return {name: values_N.double().cpu() for name, values_N in terms.items()}


def over_corruptions(by_corruption: Sequence[Sequence[Terms]]) -> Terms:
    """Return row-by-row means over corruptions, by metric at severity, from their terms at severities 1, 2, ..."""
    means = {}
    for severity, same_severity in enumerate(zip(*by_corruption, strict=True), 1):
        for metric in same_severity[0]:
            means[at_severity(metric, severity)] = torch.stack([terms[metric] for terms in same_severity]).mean(0)
    return means


def resampled_means(terms: Terms, *, seed: int) -> Terms:
    """Return the mean of each metric in each resample, (R,); none for a single row, which says nothing of others."""
    rows = min((len(values_N) for values_N in terms.values()), default=0)
    if rows < 2:
        return {}
    parts: dict[str, list[Tensor]] = {name: [] for name in terms}
    for drawn_RN in drawn_rows(torch.ones(rows, dtype=torch.float64), RESAMPLES, seed):
        for name, values_N in terms.items():
            parts[name].append(resampled_mean(values_N, drawn_RN))
    return {name: torch.cat(values) for name, values in parts.items()}


def resampled_detection(inside_N: Tensor, outside: Mapping[str, Tensor], *, seed: int) -> Tensor:
    """Return the mean AUROC over foreign sets in each resample of the rows of both sides, (R,), from entropies."""
    foreign = [scores_F.cpu() for scores_F in outside.values()]
    weights = [
        torch.cat(list(drawn_rows(scores_F.new_ones(len(scores_F), dtype=torch.float64), RESAMPLES, set_seed)))
        for set_seed, scores_F in enumerate(foreign, mix(Purpose.FOREIGN_RESAMPLES, seed) % 2**32)
    ]
    parts, start = [], 0
    for drawn_RN in drawn_rows(torch.ones(len(inside_N), dtype=torch.float64), RESAMPLES, seed):
        block = slice(start, start := start + len(drawn_RN))
        areas = [
            resampled_auroc(inside_N.cpu(), scores_F, in_weights_RN=drawn_RN, out_weights_RF=weights_RF[block])
            for scores_F, weights_RF in zip(foreign, weights, strict=True)
        ]
        parts.append(torch.stack(areas).mean(0))
    return torch.cat(parts)


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
        apart = {m: {k: v for k, v in asdict(best).items() if k != "metric"} for m, best in self.apart.items()}
        return {"intervals": {m: list(ends) for m, ends in self.intervals.items()}, "from_best": apart}


def certainties(
    evaluations: Mapping[str, Evaluation], *, seed: int = 0, further: Mapping[str, Further] | None = None
) -> dict[str, Certainty]:
    """Return the uncertainty of each method's scores, by resamples of the rows that all evaluations share.

    `further` holds scores on other data, of as many resamples. There are no numbers for a single row.
    """
    if not evaluations or any(len(evaluation.log_prob) < 2 for evaluation in evaluations.values()):
        return {name: Certainty() for name in evaluations}
    drawn = dict(zip(evaluations, resampled([*evaluations.values()], RESAMPLES, seed), strict=True))
    values: dict[str, dict[str, float]] = {name: dict(evaluation.metrics) for name, evaluation in evaluations.items()}
    for name, more in (further or {}).items():
        drawn[name] |= more.drawn
        values[name] |= more.values
    apart: dict[str, dict[str, Difference]] = {name: {} for name in evaluations}
    for metric, better in BETTER.items():
        candidates = {
            name: measured[metric] for name, measured in values.items() if metric in measured and metric in drawn[name]
        }
        candidates = {name: value for name, value in candidates.items() if math.isfinite(value)}
        if not candidates:
            continue
        best = (min if better == "low" else max)(candidates, key=candidates.__getitem__)
        for name in candidates:
            both, rows = [values[label] for label in (name, best)], len(evaluations[name].log_prob)
            apart[name][metric] = paired(metric, both, [drawn[name], drawn[best]], rows=rows, level=LEVEL)
    return {
        name: Certainty({metric: interval_of(values_R, LEVEL) for metric, values_R in measured.items()}, apart[name])
        for name, measured in drawn.items()
    }
