"""Central intervals of the model average: exact where its distribution function is known, else by samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from torchbayes.metrics import central_level
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.quantiles import is_discrete

_SAMPLES = 2000  # for the quantiles of a row whose distribution function is not known
_AT_ONCE = 2**24  # numbers that `Tensor.quantile` takes


def central_interval(predictive: Predictive, outside: float = 0.05) -> tuple[Tensor, Tensor]:
    """Return the ends of the central interval of each number that is predicted.

    Args:
        predictive: of numbers.
        outside: probability that the interval leaves out, half of it on either side.

    Returns:
        The quantiles at `outside` / 2 and 1 - `outside` / 2, each (B, K').
    """
    levels = predictive.outputs_SBK.new_tensor([outside / 2, 1 - outside / 2])
    try:
        low, high = predictive.quantile(levels)
    except (NotImplementedError, ValueError):  # some distributions refuse values that rounding takes out of bounds
        low, high = torch.cat([samples.quantile(levels, dim=0) for samples in _samples(predictive)], dim=1)
    return low, high


def levels_reached(predictive: Predictive, targets: Tensor) -> Tensor:
    """Return the level of the smallest central interval that holds each target.

    Args:
        predictive: of numbers.
        targets: (B, K').

    Returns:
        Levels in [0, 1], (B, K'), as `torchbayes.metrics.central_level` defines them.
    """
    distribution = predictive.distribution
    try:
        up_to = distribution.cdf(targets).mean(0)
        below = distribution.cdf(targets - 1).mean(0) if is_discrete(distribution) else up_to
    except (NotImplementedError, ValueError):
        pieces, start, shares = _samples(predictive), 0, []
        for samples in pieces:
            own = targets[start : start + samples.shape[1]]
            shares.append(torch.stack([(samples < own).to(own).mean(0), (samples <= own).to(own).mean(0)]))
            start += samples.shape[1]
        below, up_to = torch.cat(shares, dim=1)
    return central_level(below.clamp(0, 1), up_to.clamp(0, 1))


def _samples(predictive: Predictive) -> Iterator[Tensor]:
    """Yield as many samples of each draw, 2,000 in all or more, for some rows after the others, (C, b, K')."""
    count, outputs_SBK = -(-_SAMPLES // predictive.draws) * predictive.draws, predictive.outputs_SBK
    pieces = outputs_SBK.split(max(_AT_ONCE // (count * outputs_SBK[0, 0].numel()), 1), dim=1)
    for place, piece in enumerate(pieces):
        yield replace(predictive, outputs_SBK=piece).sample(count, seed=place)
