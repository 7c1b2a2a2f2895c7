"""Predictions of numbers, real or counts: mean, spread, and the interval that they should lie in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor, distributions

from torchbayes import metrics
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.intervals import central_interval


def number_columns(predictive: Predictive, targets: Any) -> dict[str, Tensor]:
    """Return what numbers are judged by, row by row.

    Args:
        predictive: of univariate distributions.
        targets: of its rows.

    Returns:
        mean and scale (B, K'); where targets are numbers of that shape these, and the bounds low and high.

    Raises:
        NotImplementedError: if the distribution has no mean or variance, or nothing can be drawn from it.
    """
    mean, scale = predictive.mean, predictive.variance.sqrt()
    if not isinstance(targets, Tensor) or targets.numel() != mean.numel():
        return {"mean": mean, "scale": scale}
    low, high = central_interval(predictive)
    numbers = targets.reshape(mean.shape).to(mean.dtype)
    return {"mean": mean, "scale": scale, "low": low, "high": high, "numbers": numbers}


def number_metrics(rows: Mapping[str, Tensor], target_scale: float, *, weights: Tensor | None) -> dict[str, float]:
    """Return the metrics of numbers.

    Args:
        rows: as `number_columns` gives them.
        target_scale: units of the raw targets per unit that the model sees.
        weights: how often each row counts; once if None.

    Returns:
        nll_gaussian, rmse and coverage.
    """
    mean, numbers = rows["mean"], rows["numbers"]
    gaussian = distributions.Normal(mean, rows["scale"]).log_prob(numbers).reshape(len(mean), -1).sum(-1)
    own = {"weights_B": None if weights is None else weights.view(-1, *[1] * (mean.ndim - 1)).expand_as(mean).flatten()}
    low, high, numbers = (each.flatten() for each in (rows["low"], rows["high"], numbers))
    log_scale = math.log(target_scale) * mean[0].numel()
    return {
        "nll_gaussian": float(metrics.nll(gaussian, weights_B=weights)) + log_scale,
        "rmse": float(metrics.rmse(mean.flatten(), numbers, **own)) * target_scale,
        "coverage": float(metrics.interval_coverage(low, high, numbers, **own)),
    }
