r"""Predictions of numbers, real or counts: mean, spread, the interval in which they should lie, and their CRPS.

The continuous ranked probability score of the model average is $\int (F(z) - [z \ge y])^2\,dz$, target by target. It
is exact for an average of normal distributions. For others with a known distribution function, and for very many
normal ones, it is integrated numerically; for the rest it is estimated from samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributions

from torchbayes import metrics
from torchbayes.metrics.scoring import draws_crps, normals_crps
from torchbayes.model.likelihoods.quantiles import is_discrete
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.intervals import central_interval, pieces_of, probabilities_below, samples_of
from torchbayes.predictive.mixture import Mixture

_PAIRED = 500  # up to so many draws, pairs are cheaper than an integral
_OUTSIDE = 1e-5  # probability beyond either end of the integral, whose square is left out
_NODES = 64  # of the quadrature on either side of a target
_AT_ONCE = 2**21  # numbers held at once
_COLUMNS = 512  # targets whose samples are sorted at once


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


def crps(predictive: Mixture, targets: Tensor) -> Tensor:
    """Return the score of each target (B, K'), in its units, (B, K'), float64; lower is better.

    A NotImplementedError if the distribution has no known distribution function and cannot be sampled.
    """
    kind = predictive.distribution
    if isinstance(kind, distributions.Normal) and predictive.draws <= _PAIRED:
        return normals_crps(kind.mean, kind.stddev, targets)
    try:
        return _integrated(predictive, targets)
    except (NotImplementedError, ValueError):  # there is no distribution function, or it refuses some values
        return _estimated(predictive, targets)


def _integrated(predictive: Mixture, targets: Tensor) -> Tensor:
    """Return the scores by Gauss-Legendre quadrature of F² below each target and of (1 - F)² above it."""
    scores, start = [], 0
    for piece in pieces_of(predictive, _NODES * predictive.draws, _AT_ONCE):
        observed = targets[start : start + piece.outputs_SBK.shape[1]].double()
        low, high = piece.quantile(observed.new_tensor([_OUTSIDE, 1 - _OUTSIDE])).double()
        middle = torch.maximum(low, torch.minimum(high, observed))
        below = _integral(lambda reached: reached, piece, low, middle)
        above = _integral(lambda reached: 1 - reached, piece, middle, high)
        scores.append(below + above + (observed - middle).abs())  # beyond the ends F is 0 or 1
        start += len(observed)
    return torch.cat(scores)


def _integral(error: Callable[[Tensor], Tensor], predictive: Mixture, low: Tensor, high: Tensor) -> Tensor:
    """Return the integral of the squared error of the distribution function between bounds (B, K')."""
    nodes, shares = (low.new_tensor(rule).view(-1, *[1] * low.ndim) for rule in np.polynomial.legendre.leggauss(_NODES))
    values = low + (high - low) * (1 + nodes) / 2
    reached = predictive.distribution.cdf(values.unsqueeze(1)).double().mean(1)
    return (error(reached).square() * shares).sum(0) * (high - low) / 2


def _estimated(predictive: Mixture, targets: Tensor) -> Tensor:
    """Return the scores from samples."""
    scores, start = [], 0
    for samples in samples_of(predictive):
        observed_block = targets[start : start + samples.shape[1]]
        parts = zip(samples.flatten(1).split(_COLUMNS, dim=1), observed_block.flatten().split(_COLUMNS), strict=True)
        scores.append(
            torch.cat([draws_crps(drawn, observed) for drawn, observed in parts]).reshape(observed_block.shape)
        )
        start += len(observed_block)
    return torch.cat(scores)
