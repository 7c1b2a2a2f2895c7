"""Predictions of numbers, real or counts: mean, spread, and the interval in which they should lie."""

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
    """Return mean and scale (B, K'), and where targets are numbers of that shape these with the bounds low and high.

    A NotImplementedError if the distribution has no mean or variance, or cannot be sampled.
    """
    mean, scale = predictive.mean, predictive.variance.sqrt()
    if not isinstance(targets, Tensor) or targets.numel() != mean.numel():
        return {"mean": mean, "scale": scale}
    low, high = central_interval(predictive)
    numbers = targets.reshape(mean.shape).to(mean.dtype)
    return {"mean": mean, "scale": scale, "low": low, "high": high, "numbers": numbers}


def scored_columns(predictive: Predictive, targets: Any) -> dict[str, Tensor]:
    """Return the columns of `number_columns`, and for real targets crps and pit (B, K'); errors as there."""
    columns = number_columns(predictive, targets)
    if "numbers" not in columns or is_discrete(predictive.distribution):
        return columns
    scores = {
        "crps": crps(predictive, columns["numbers"]),
        "pit": probabilities_below(predictive, columns["numbers"])[1],
    }
    return columns | scores


def number_terms(rows: Mapping[str, Tensor], target_scale: float) -> dict[str, Tensor]:
    """Return each row's contribution, (N,), to nll_gaussian, rmse (squared errors), mae, coverage, and crps if any.

    `rows` are from `scored_columns`; `target_scale` is units of the raw targets per unit that the model sees.
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
    """Return the metrics of numbers: weighted means of the terms, and the root of that of the squared errors."""
    means = {name: float(metrics.weighted_mean(values, weights)) for name, values in terms.items()}
    return means | {"rmse": math.sqrt(means["rmse"])}
