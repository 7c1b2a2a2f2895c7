"""What an evaluation holds: metrics, and the numbers of each row that they were computed from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Scores:
    """How uncertain a classifier is at N inputs; detection negates `confidence`, so that larger means further out.

    Attributes:
        entropy: total predictive entropy (N,), in nats.
        mutual_information: disagreement of the draws (N,), in nats.
        confidence: largest averaged probability (N,).
    """

    entropy: Tensor
    mutual_information: Tensor
    confidence: Tensor


@dataclass(frozen=True)
class Evaluation:
    """Metrics of a predictive on data with targets, and what they were computed from.

    Rows and places that a likelihood ignores, and rows of weight 0, are left out of everything. Where rows have weights
    (`Weighted`), every metric is a weighted mean, as for data with repeated rows. The exception is ece_mass, whose bins
    then split rows to have equal mass. The weight of a soft label is shared among the classes. Class weights and label
    smoothing affect only the fit.

    Attributes:
        metrics: name -> value. Classification: accuracy, nll, brier, ece (15 equal-width bins), ece_mass (20
            equal-mass bins), entropy, mutual_information, aurc (area under the curve of the error rate against the
            share of rows kept, the most confident first). Numbers, real or counts: nll (of the mixture), nll_gaussian
            (of the Gaussian with its first two moments), rmse, coverage (of the central 95 % interval, which holds
            more where counts are small). Real numbers also: crps (continuous ranked probability score of the mixture,
            in the units of the targets). Others, distributions without a mean, and targets that are no labels or
            numbers of that shape: nll.
        log_prob: log probability of each target under the average (N,), in nats.
        targets: (N, ...), or a tree of such.
        probs: averaged class probabilities (N, K), or None.
        scores: how uncertain each input is, or None.
        mean: predictive mean (N, K') of numbers, or None.
        scale: predictive standard deviation (N, K') of numbers, or None.
        weights: how often each row counts (N,); None where each counts once.
        labels: class of each row of `probs` (N,), or soft labels (N, K); None where targets are neither.
        label_weights: how often each row of `probs` counts (N,); None where each counts once.
        label_rows: which row each row of `probs` belongs to, from 0 (N,): rows of several tokens, pixels or labels have
            several; None without labels.
        pit: probability integral transform of real targets, F(y), (N, K'): uniform between 0 and 1 if the predictive
            distribution is right. None for others.
        terms: metric -> what each row contributes, (N,), float64, of nll and of the metrics of numbers: their weighted
            mean is the metric, for rmse its square.
    """

    metrics: dict[str, float]
    log_prob: Tensor = field(repr=False)
    targets: Any = field(repr=False)
    probs: Tensor | None = field(default=None, repr=False)
    scores: Scores | None = field(default=None, repr=False)
    mean: Tensor | None = field(default=None, repr=False)
    scale: Tensor | None = field(default=None, repr=False)
    weights: Tensor | None = field(default=None, repr=False)
    labels: Tensor | None = field(default=None, repr=False)
    label_weights: Tensor | None = field(default=None, repr=False)
    label_rows: Tensor | None = field(default=None, repr=False)
    pit: Tensor | None = field(default=None, repr=False)
    terms: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
