"""Scores of rows, and what the sets of other rows hold."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchbayes import metrics
from torchbayes.conformal.classes import ClassScore
from torchbayes.conformal.numbers import Forecast, NumberScore
from torchbayes.conformal.rows import group_names, is_over_classes, judged, predicted_rows, probs_of
from torchbayes.randomness.seeds import Purpose, fractions, mix


def class_scores(score: ClassScore, prediction: Any, *, purpose: Purpose, seed: int, start: int = 0) -> Tensor:
    """Return the score of each class of each row, (B, K), float64.

    The uniform number of a row is a function of the purpose, the seed, and the row's number from `start` on.
    """
    probs_BK = probs_of(prediction)
    uniform_N = torch.from_numpy(fractions(mix(purpose, seed), (start + len(probs_BK),)))
    return _checked(score.class_scores(probs_BK, uniform_N[start:].to(probs_BK)), score)


def class_sets(conformal: Any, prediction: Any, *, groups: Any, weights: Any, start: int = 0) -> Tensor:
    """Return which classes are in the set of each new row, (B, K), bool; `start` is the number of the first row."""
    scores_BK = class_scores(conformal.score, prediction, purpose=Purpose.SETS, seed=conformal.seed, start=start)
    limits = limits_of(conformal, prediction, groups=groups, weights=weights).to(scores_BK)
    return scores_BK <= (limits if limits.ndim == 2 else limits.unsqueeze(1))


def limits_of(conformal: Any, prediction: Any, *, groups: Any, weights: Any) -> Tensor:
    """Return the threshold of each row, (B,), or of each class, (B, K)."""
    values_G = torch.tensor([each.value for each in conformal.thresholds.values()], dtype=torch.float64)
    values_B = prediction.values if isinstance(prediction, Forecast) else prediction.outputs_SBK[0]
    limits = conformal.rows.limits(values_G, groups, weights, coverage=conformal.coverage, rows=len(values_B))
    return limits.to(values_B.device)


def check_kind_of(conformal: Any, prediction: Any, kind: type, *, otherwise: str) -> None:
    """Raise a TypeError unless a prediction and the score are both of classes, or both of numbers, and of this kind."""
    over_classes = is_over_classes(prediction)
    if over_classes != isinstance(conformal.score, ClassScore) or not isinstance(conformal.score, kind):
        raise TypeError(f"{otherwise} The calibration has the score {conformal.score!r}.")


def dtype_of(prediction: Any) -> torch.dtype:
    """Return the dtype of predictions."""
    return torch.float64 if isinstance(prediction, Forecast) else prediction.outputs_SBK.dtype


def number_scores(score: NumberScore, prediction: Any, targets: Tensor) -> Tensor:
    """Return the score of each row, (B,), float64: the largest of its numbers."""
    scores = _checked(score.scores(prediction, targets), score)
    return scores.double() if scores.ndim == 1 else scores.double().flatten(1).amax(1)


def _checked(scores: Tensor, score: Any) -> Tensor:
    """Return scores; a ValueError if one is NaN."""
    if scores.isnan().any():
        raise ValueError(f"{int(scores.isnan().sum())} of {scores.numel()} scores by {score!r} are NaN.")
    return scores


def evaluated(conformal: Any, posterior: Any, data: Any, *, groups: Any, weights: Any, seed: int) -> dict[str, float]:
    """Return coverage and sizes of sets: see `Conformal.evaluate`."""
    parts: dict[str, list[Tensor]] = {}
    start = 0
    for prediction, targets in predicted_rows(posterior, data, seed=seed):
        rows = judged(prediction, targets)
        piece = slice(start, start + len(rows.weights_B))
        start = piece.stop
        chosen = {
            "groups": groups[piece] if conformal.rows.in_groups and groups is not None else None,
            "weights": None if weights is None else weights[piece],
        }
        columns = _columns(conformal, prediction, rows.targets, chosen, start=piece.start)
        for name, values in {**columns, "counts": rows.weights_B}.items():
            parts.setdefault(name, []).append(values.double().cpu())
    if not start:
        raise ValueError("the data are empty: there are no rows to evaluate.")
    columns = {name: torch.cat(values) for name, values in parts.items()}
    counts_N = columns.pop("counts")
    scores = {
        name: float(metrics.weighted_mean(columns[name], counts_N))
        for name in ("coverage", "size", "empty")
        if name in columns
    }
    if "low" in columns:
        ends = [columns[name] for name in ("low", "high", "numbers")]
        each = counts_N.unsqueeze(1).expand_as(ends[0])
        scores["width"] = float(metrics.weighted_mean(ends[1] - ends[0], each))
        score = metrics.interval_score(*ends, coverage=conformal.coverage, weights_B=each)
        scores["interval_score"] = float(score)
    return scores | _by_group(columns["coverage"], counts_N, groups)


def _columns(
    conformal: Any, prediction: Any, targets: Tensor, chosen: dict[str, Any], *, start: int
) -> dict[str, Tensor]:
    """Return whether each row's set holds its target, (B,), and its size, or its ends (B, K')."""
    if is_over_classes(prediction):
        check_kind_of(conformal, prediction, ClassScore, otherwise="the data are of classes.")
        sets_BK = class_sets(conformal, prediction, **chosen, start=start)
        size_B = sets_BK.sum(1)
        return {"coverage": sets_BK.gather(1, targets.unsqueeze(1))[:, 0], "size": size_B, "empty": size_B == 0}
    low, high = conformal.intervals(prediction, **chosen)
    ends = {"low": low, "high": high, "numbers": targets}
    inside_B = conformal.covers(prediction, targets, **chosen)
    return {"coverage": inside_B, **{name: end.reshape(len(end), -1) for name, end in ends.items()}}


def _by_group(inside_N: Tensor, counts_N: Tensor, groups: Any) -> dict[str, float]:
    """Return the coverage of each group that has a row that counts."""
    names = [] if groups is None else group_names(groups, len(inside_N))
    coverages = {}
    for group in sorted(set(names)):
        mine_N = torch.tensor([name == group for name in names]) & (counts_N > 0)
        if mine_N.any():
            coverages[f"coverage[{group}]"] = float(metrics.weighted_mean(inside_N[mine_N], counts_N[mine_N]))
    return coverages
