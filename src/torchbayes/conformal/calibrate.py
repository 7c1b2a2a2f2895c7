"""Split conformal prediction: intervals and sets that hold as many targets as they say, whatever the model.

Calibration rows that the fit has not seen are scored by how untypical their targets are, and the set of a new row holds
every target whose score is at most a threshold, the k-th smallest of theirs (`torchbayes.conformal.ranks`). If new rows
are exchangeable with them, it holds the target with the probability asked for, even where the model is wrong. A better
posterior gives smaller sets, not more coverage.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchbayes.calls import explained
from torchbayes.checks import as_seed, check_name, optional, seen
from torchbayes.conformal.classes import APS, ClassScore
from torchbayes.conformal.conformal import SCORES, Conformal
from torchbayes.conformal.limits import ALL, Calibrated, in_groups_of
from torchbayes.conformal.numbers import CQR, PIT, Absolute, Forecast, Normalised, NumberScore
from torchbayes.conformal.ranks import check_coverage
from torchbayes.conformal.rows import group_names, is_over_classes, judged, predicted_rows, weights_like
from torchbayes.conformal.scoring import class_scores, number_scores
from torchbayes.model.likelihoods.quantiles import is_discrete
from torchbayes.native.process import undisturbed
from torchbayes.posteriors.problems import warn_of
from torchbayes.randomness.seeds import Purpose

CLASS = "class"
"""Groups by the class that is tried."""


@undisturbed
@explained()
def calibrate(
    posterior: Any,
    data: Any,
    *,
    coverage: float = 0.9,
    score: Any = "auto",
    groups: Any = None,
    weights: Any = None,
    confidence: float | None = None,
    seed: int = 0,
) -> Conformal:
    """Find the thresholds by which sets of new rows hold their targets with the coverage asked for.

    Args:
        posterior: a posterior, functions drawn from one, or a `Linearised` one; a `Predictive` already made; or a
            `Forecast` of any other model, whose class probabilities are `Predictive.from_probs`.
        data: rows that the fit has not seen: (inputs, targets), a Dataset, a DataLoader or an iterable of batches; the
            targets alone for a `Predictive` or `Forecast`.
        coverage: probability with which the set of a new row holds its target, in (0, 1).
        score: "absolute", "normalised", "pit", "cqr" or "density" for numbers, "lac", "aps" or "raps" for classes, an
            object of `torchbayes.conformal` with other settings, or one of your own. "auto" is "aps" for classes, "pit"
            for counts and where there is no standard deviation, "normalised" for other numbers; for a `Forecast`
            "normalised" with `mean` and `scale`, else "cqr" with `low` and `high`, else "absolute".
        groups: group of each row, (N,), whole numbers or texts, so that each has its coverage and its threshold
            (Mondrian); or "class", so that each class has. They must not depend on targets otherwise.
        weights: weight of each row, (N,), proportional to the density of new rows over that of these; rows that count
            more than once (`Weighted`) have such weights already. None for exchangeable rows.
        confidence: 1 − δ, in (0, 1): the coverage, over new rows, is then at least that asked for with this probability
            over calibration sets, group by group; None for the mean over calibration sets.
        seed: seed of the draws, as of `predict`, and of the uniform numbers of a randomised score.

    Returns:
        The calibration. Where rows are too few, sets hold every target, and a warning says so.

    Raises:
        TypeError: if targets or the score do not fit the predictions.
        ValueError: if there are no rows, or a number, a group or a weight is out of range.
    """
    check_coverage(coverage=coverage)
    optional(check_coverage, confidence=confidence)
    seed, chosen, columns = as_seed(seed), score, _Columns()
    for prediction, targets in predicted_rows(posterior, data, seed=seed):
        rows, over_classes = judged(prediction, targets), is_over_classes(prediction)
        chosen = score_of(chosen, prediction, coverage)
        if over_classes:
            each_BK = class_scores(chosen, prediction, purpose=Purpose.SETS_CALIBRATION, seed=seed, start=columns.rows)
            scores_B = each_BK.gather(1, rows.targets.unsqueeze(1))[:, 0]
            columns.add(scores_B, rows.weights_B, rows.targets, classes=each_BK.shape[1])
        else:
            columns.add(number_scores(chosen, prediction, rows.targets), rows.weights_B)
    conformal = Conformal(chosen, coverage, columns.calibrated(groups, weights), confidence, seed)
    warn_of(conformal.problems, "this calibration")
    return conformal


def score_of(score: Any, prediction: Any, coverage: float) -> Any:
    """Return a score by its name, or chosen by the predictions; an error if it is not for such predictions."""
    over_classes, given = is_over_classes(prediction), score
    if isinstance(score, str):
        if score != "auto":
            check_name("score", score, SCORES)
            score = CQR(coverage) if score == CQR.name else SCORES[score]()
        else:
            score = APS() if over_classes else _for_numbers(prediction, coverage)
    wanted, other = (ClassScore, "classes") if over_classes else (NumberScore, "numbers")
    if not isinstance(score, wanted) or isinstance(score, type):
        raise TypeError(f"`score` must be one of {other}, such as {_EXAMPLES[over_classes]}; got {seen(given)}.")
    return score


_EXAMPLES = {True: "'aps'", False: "'normalised'"}


def _for_numbers(prediction: Any, coverage: float) -> Any:
    """Return the score that suits numbers."""
    if isinstance(prediction, Forecast):
        if prediction.scale is not None and prediction.mean is not None:
            return Normalised()
        return Absolute() if prediction.low is None else CQR(coverage)
    if is_discrete(prediction.distribution):
        return PIT()
    try:
        has_moments = bool(prediction.variance.isfinite().all() and prediction.mean.isfinite().all())
    except NotImplementedError:
        has_moments = False
    return Normalised() if has_moments else PIT()


class _Columns:
    """Scores, weights and classes of rows, gathered batch by batch."""

    def __init__(self) -> None:
        self.scores: list[Tensor] = []
        self.weights: list[Tensor] = []
        self.labels: list[Tensor] = []
        self.rows = self.classes = 0

    def add(self, scores_B: Tensor, weights_B: Tensor, labels_B: Tensor | None = None, *, classes: int = 0) -> None:
        """Add the rows of a batch."""
        self.rows += len(scores_B)
        self.scores.append(scores_B.detach().double().cpu())
        self.weights.append(weights_B.cpu())
        self.labels += [] if labels_B is None else [labels_B.cpu()]
        self.classes = max(self.classes, classes)

    def calibrated(self, groups: Any, weights: Any) -> Calibrated:
        """Return the rows that count, in their groups."""
        if not self.scores:
            raise ValueError("the data are empty: there are no rows to calibrate with.")
        scores_N, counts_N = torch.cat(self.scores), torch.cat(self.weights)
        rows, by_class = len(scores_N), isinstance(groups, str) and groups == CLASS
        if weights is not None:
            counts_N = counts_N * weights_like(weights, rows)
        if by_class:
            if not self.labels:
                raise TypeError("`groups` 'class' is for classes, and the targets are numbers.")
            codes_N, names = torch.cat(self.labels), tuple(range(self.classes))
        elif groups is None:
            codes_N, names = torch.zeros(rows, dtype=torch.int64), (ALL,)
        else:
            codes_N, names = in_groups_of(group_names(groups, rows))
        counting = counts_N > 0
        if not counting.any():
            raise ValueError("no row counts: all are ignored, or have weight 0.")
        equal = weights is None and bool((counts_N[counting] == 1).all())
        kept = counts_N[counting]
        return Calibrated(scores_N[counting], codes_N[counting], names, None if equal else kept, by_class)
