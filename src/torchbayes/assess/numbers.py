"""Predictions of numbers, real or counts: mean, spread, and the interval that they should lie in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor, distributions

from torchbayes import metrics
from torchbayes.assess.crps import crps
from torchbayes.model.likelihoods.quantiles import is_discrete
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.intervals import central_interval, probabilities_below


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


def scored_columns(predictive: Predictive, targets: Any) -> dict[str, Tensor]:
    """Return the columns of `number_columns`, and of real targets their scores and probability integral transforms.

    Args:
        predictive: of univariate distributions.
        targets: of its rows.

    Returns:
        As `number_columns`; where targets are real numbers also crps and pit (B, K').

    Raises:
        NotImplementedError: as `number_columns`.
    """
    found = number_columns(predictive, targets)
    if "numbers" not in found or is_discrete(predictive.distribution):
        return found
    scores = {"crps": crps(predictive, found["numbers"]), "pit": probabilities_below(predictive, found["numbers"])[1]}
    return found | scores


def number_terms(rows: Mapping[str, Tensor], target_scale: float) -> dict[str, Tensor]:
    """Return what each row contributes to the metrics of numbers.

    Args:
        rows: as `scored_columns` gives them.
        target_scale: units of the raw targets per unit that the model sees.

    Returns:
        nll_gaussian, rmse (the mean squared error of the row), mae, coverage, and where there are scores crps; (N,)
        each.
    """
    mean, numbers = rows["mean"], rows["numbers"]
    gaussian = distributions.Normal(mean, rows["scale"]).log_prob(numbers).reshape(len(mean), -1).sum(-1)
    each = {
        "rmse": (mean - numbers).double().square() * target_scale**2,
        "mae": (mean - numbers).double().abs() * target_scale,
        "coverage": ((rows["low"] <= numbers) & (numbers <= rows["high"])).double(),
        **({"crps": rows["crps"] * target_scale} if "crps" in rows else {}),
    }
    shared = {name: values.reshape(len(mean), -1).mean(-1) for name, values in each.items()}
    return {"nll_gaussian": math.log(target_scale) * mean[0].numel() - gaussian.double(), **shared}


def number_metrics(terms: Mapping[str, Tensor], *, weights: Tensor | None) -> dict[str, float]:
    """Return the metrics of numbers.

    Args:
        terms: as `number_terms` gives them.
        weights: how often each row counts; once if None.

    Returns:
        The weighted mean of each, and the root of that of the squared errors.
    """
    found = {name: float(metrics.weighted_mean(values, weights)) for name, values in terms.items()}
    return found | {"rmse": math.sqrt(found["rmse"])}
