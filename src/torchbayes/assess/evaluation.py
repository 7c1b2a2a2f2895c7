"""The contents of an evaluation: metrics, and the numbers of each row from which they were computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, distributions

from torchbayes.checks import as_seed, check_counts
from torchbayes.display import Overview, shown
from torchbayes.metrics.resampling import resampled_aurc, resampled_ece, resampled_ece_mass, resampled_mean
from torchbayes.metrics.scoring import hits, squared_distance
from torchbayes.model.likelihoods.quantiles import check_level
from torchbayes.native.process import undisturbed_methods
from torchbayes.randomness.seeds import Purpose, seeded

_AT_ONCE = 2**22  # weights of rows that are held at once


@dataclass(frozen=True)
class Scores:
    """The uncertainty of a classifier at N inputs; detection negates `confidence`, so that larger is further out."""

    entropy: Tensor  # total predictive entropy (N,), in nats
    mutual_information: Tensor  # disagreement of the draws (N,), in nats
    confidence: Tensor  # largest averaged probability (N,)


@undisturbed_methods
@shown(lambda evaluation: Overview("Evaluation", {"rows": len(evaluation.log_prob), **evaluation.metrics}))
@dataclass(frozen=True)
class Evaluation:
    """Metrics of a predictive on data with targets, and what they were computed from.

    Rows and places that a likelihood ignores, and rows of weight 0, are left out of everything. Where rows have
    weights (`Weighted`), every metric is a weighted mean, as for data with repeated rows. The exception is
    ece_mass, whose bins then split rows to have equal mass. The weight of a soft label is shared among the classes.
    Class weights and label smoothing affect only the fit.

    Attributes:
        metrics: name -> value. Classification: accuracy, nll, brier, ece (15 equal-width bins), ece_mass (20
            equal-mass bins), entropy, mutual_information, aurc (area under the curve of the error rate against the
            share of rows kept, the most confident first). Numbers, real or counts: nll (of the mixture),
            nll_gaussian (of the Gaussian with its first two moments), rmse, mae, coverage (of the central 95 %
            interval, which holds more where counts are small). Real numbers also: crps (continuous ranked
            probability score of the mixture, in the units of the targets). Others, distributions without a mean,
            and targets that are not labels or numbers of that shape: nll.
        log_prob: log probability of each target under the average (N,), in nats.
        targets: (N, ...), or a tree of such.
        probs: averaged class probabilities (N, K), or None.
        scores: how uncertain each input is, or None.
        mean: predictive mean (N, K') of numbers, or None.
        scale: predictive standard deviation (N, K') of numbers, or None.
        weights: how often each row counts (N,); None where each counts once.
        labels: class of each row of `probs` (N,), or soft labels (N, K); None where targets are neither.
        label_weights: how often each row of `probs` counts (N,); None where each counts once.
        label_rows: index of the row to which each row of `probs` belongs (N,): rows of several tokens, pixels or
            labels have several; None without labels.
        pit: probability integral transform of real targets, F(y), (N, K'): uniform between 0 and 1 if the
            predictive distribution is right. None for others.
        terms: metric -> each row's contribution, (N,), float64, for nll and the metrics of numbers: their weighted
            mean is the metric, for rmse its square.
    """

    metrics: dict[str, float]
    log_prob: Tensor
    targets: Any
    probs: Tensor | None = None
    scores: Scores | None = None
    mean: Tensor | None = None
    scale: Tensor | None = None
    weights: Tensor | None = None
    labels: Tensor | None = None
    label_weights: Tensor | None = None
    label_rows: Tensor | None = None
    pit: Tensor | None = None
    terms: Mapping[str, Tensor] = field(default_factory=dict)

    def intervals(self, level: float = 0.95, resamples: int = 1000, seed: int = 0) -> dict[str, tuple[float, float]]:
        r"""Return an interval for every metric: what other test rows of the same kind could have given.

        By the Bayesian bootstrap over rows (Rubin 1981): in each resample row n counts $g_n \sim
        \mathrm{Gamma}(w_n, 1)$ times, where w is its weight, and every metric is computed again; the ends are
        quantiles over resamples. A row of weight 2 is two rows. All places of a row, such as tokens, count
        together. The fit and its draws stay fixed, so these intervals say nothing about what another training run
        would give. Resampling adds to calibration errors, which are biased upwards, and shows no spread where all
        rows agree.

        Args:
            level: probability of the interval, in (0, 1).
            resamples: number of resamples.
            seed: seed of the resamples.

        Returns:
            name of a metric -> (low, high).

        Raises:
            ValueError: if an argument is out of range, or there is one row, which says nothing of others.
        """
        (values,) = resampled([self], resamples, seed)
        return {name: interval_of(values_R, level) for name, values_R in values.items()}


def resampled(evaluations: Sequence[Evaluation], resamples: int, seed: int) -> list[dict[str, Tensor]]:
    """Return every metric on R resamples of the rows, name -> (R,), float64, as `Evaluation.intervals` makes them.

    For each of several evaluations of the same rows, which are drawn once. A ValueError if an argument is out of
    range, or there is one row.
    """
    check_counts(resamples=resamples)
    first, rows = evaluations[0], len(evaluations[0].log_prob)
    if rows < 2:
        raise ValueError("an interval needs at least 2 rows, as one says nothing of others. Evaluate more of them.")
    places = [None if evaluation.labels is None else _Places.of(evaluation) for evaluation in evaluations]
    parts: list[list[dict[str, Tensor]]] = [[] for _ in evaluations]
    for drawn_RN in drawn_rows(_counts(first.weights, rows), resamples, seed):
        for evaluation, classified, blocks in zip(evaluations, places, parts, strict=True):
            metrics = {name: resampled_mean(terms_N, drawn_RN) for name, terms_N in evaluation.terms.items()}
            metrics |= {name: metrics[name].sqrt() for name in metrics.keys() & {"rmse"}}
            blocks.append(metrics | ({} if classified is None else classified.resampled(drawn_RN)))
    joined = [_joined(blocks) for blocks in parts]
    return [{name: m[name] for name in e.metrics if name in m} for e, m in zip(evaluations, joined, strict=True)]


def drawn_rows(counts_N: Tensor, resamples: int, seed: int) -> Iterator[Tensor]:
    """Yield how often each row counts in each resample, (R, N), as many resamples at a time as memory allows.

    `counts_N` is how often each row counts in the data, float64; equal seeds and counts draw the same rows.
    """
    step = max(1, _AT_ONCE // len(counts_N))
    with seeded(Purpose.RESAMPLES, as_seed(seed)):
        for start in range(0, resamples, step):
            yield distributions.Gamma(counts_N, 1.0).sample((min(step, resamples - start),))


def interval_of(values_R: Tensor, level: float) -> tuple[float, float]:
    """Return the central interval that holds the share `level` of values; a ValueError if it is out of range."""
    check_level(level)
    ends = values_R.new_tensor([(1 - level) / 2, (1 + level) / 2])
    # No interpolation, which has no value between infinite ones.
    low, high = values_R.quantile(ends, interpolation="nearest").tolist()
    return low, high


@dataclass(frozen=True)
class _Places:
    """The numbers from which the metrics of a classification are computed, place by place."""

    row_P: Tensor  # index of the row of each place
    share_P: Tensor  # weight of each place over that of its row
    confidence_P: Tensor  # largest probability
    correct_P: Tensor  # whether its class is the target, or a share
    means: Mapping[str, Tensor]  # name of a metric -> values (P,) of which it is the weighted mean

    @classmethod
    def of(cls, evaluation: Evaluation) -> _Places:
        probs, labels, scores, row_P = evaluation.probs, evaluation.labels, evaluation.scores, evaluation.label_rows
        if probs is None or labels is None or scores is None or row_P is None:
            raise ValueError(
                "an evaluation with `labels` must have `probs`, `scores` and `label_rows`. Use `evaluate`."
            )
        counts_N = _counts(evaluation.weights, len(evaluation.log_prob))
        share_P = _counts(evaluation.label_weights, len(probs)) / counts_N[row_P]
        correct_P = hits(probs, labels)
        means = {
            "accuracy": correct_P,
            "brier": squared_distance(probs, labels),
            "entropy": scores.entropy,
            "mutual_information": scores.mutual_information,
        }
        return cls(row_P, share_P, scores.confidence, correct_P, means)

    def resampled(self, drawn_RN: Tensor) -> dict[str, Tensor]:
        """Return the metrics of resamples, a few of them at a time."""
        parts = []
        for part_RN in drawn_RN.split(max(1, _AT_ONCE // len(self.row_P))):
            weights_RP = part_RN[:, self.row_P] * self.share_P
            metrics = {name: resampled_mean(values_P, weights_RP) for name, values_P in self.means.items()}
            metrics["ece"] = resampled_ece(self.confidence_P, self.correct_P, weights_RP)
            metrics["ece_mass"] = resampled_ece_mass(self.confidence_P, self.correct_P, weights_RP)
            metrics["aurc"] = resampled_aurc(1 - self.correct_P, -self.confidence_P, weights_RP)
            parts.append(metrics)
        return _joined(parts)


def _joined(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the metrics of successive resamples as one."""
    return {name: torch.cat([metrics[name] for metrics in parts]) for name in parts[0]}


def _counts(weights: Tensor | None, count: int) -> Tensor:
    """Return weights in float64; 1 where there are none."""
    return torch.ones(count, dtype=torch.float64) if weights is None else weights.double()
