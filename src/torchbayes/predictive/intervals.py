"""Central intervals of the model average: exact where its distribution function is known, else by samples."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from torchbayes.metrics import central_level
from torchbayes.model.likelihoods.quantiles import is_discrete
from torchbayes.predictive.mixture import Mixture, some_rows

_SAMPLES = 2000  # for the quantiles of a row without a known distribution function
_AT_ONCE = 2**24  # the most numbers that `Tensor.quantile` takes


def central_interval(predictive: Mixture, outside: float = 0.05) -> tuple[Tensor, Tensor]:
    """Return the ends of the central interval of each number, each (B, K'), with probability `outside` outside.

    They are the quantiles at `outside` / 2 and 1 − `outside` / 2.
    """
    levels = predictive.outputs_SBK.new_tensor([outside / 2, 1 - outside / 2])
    try:
        low, high = predictive.quantile(levels)
    except (NotImplementedError, TypeError, ValueError):
        # There is no `cdf` for joint numbers, or a quantile is out of bounds by rounding.
        low, high = torch.cat([samples.quantile(levels, dim=0) for samples in samples_of(predictive)], dim=1)
    return low, high


def levels_reached(predictive: Mixture, targets: Tensor) -> Tensor:
    """Return the level of the smallest central interval that holds each target (B, K'): in [0, 1], (B, K').

    `torchbayes.metrics.central_level` defines it.
    """
    return central_level(*probabilities_below(predictive, targets))


def probabilities_below(predictive: Mixture, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return F(y−) and F(y), the predicted probability of values below each target (B, K') and up to it, (B, K') each.

    Where the distribution function is known, both are equal unless values are whole numbers; else they are shares
    of samples.
    """
    distribution = predictive.distribution
    try:
        up_to = distribution.cdf(targets).mean(0)
        below = distribution.cdf(targets - 1).mean(0) if is_discrete(distribution) else up_to
    except (NotImplementedError, ValueError):
        start, shares = 0, []
        for samples in samples_of(predictive):
            observed = targets[start : start + samples.shape[1]]
            counted = (samples < observed, samples <= observed)
            shares.append(torch.stack([each.to(observed).mean(0) for each in counted]))
            start += samples.shape[1]
        below, up_to = torch.cat(shares, dim=1)
    return below.clamp(0, 1), up_to.clamp(0, 1)


def samples_of(predictive: Mixture) -> Iterator[Tensor]:
    """Yield samples (C, b, K') of successive blocks of b rows: equally many of each draw, 2,000 in all or more."""
    count = -(-_SAMPLES // predictive.draws) * predictive.draws
    for number, piece in enumerate(pieces_of(predictive, count, _AT_ONCE)):
        yield piece.sample(count, seed=number)


def pieces_of(predictive: Mixture, count: int, at_once: int) -> Iterator[Mixture]:
    """Yield the predictive of successive blocks of rows, with `count` numbers per output at most `at_once` each."""
    outputs_SBK = predictive.outputs_SBK
    step = max(at_once // (count * outputs_SBK[0, 0].numel()), 1)
    for start in range(0, outputs_SBK.shape[1], step):
        yield some_rows(predictive, slice(start, start + step))
