r"""The continuous ranked probability score of the model average, $\int (F(z) - [z \ge y])^2\,dz$, target by target.

It is exact for an average of normal distributions. For others with a known distribution function, and for very many
normal ones, it is integrated numerically; for the rest it is estimated from samples.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, distributions

from torchbayes.metrics.scoring import draws_crps, normals_crps
from torchbayes.predictive.intervals import pieces_of, samples_of
from torchbayes.predictive.mixture import Mixture

_PAIRED = 500  # up to so many draws, pairs are cheaper than an integral
_OUTSIDE = 1e-5  # probability beyond either end of the integral, whose square is left out
_NODES = 64  # of the quadrature on either side of a target
_AT_ONCE = 2**21  # numbers held at once
_COLUMNS = 512  # targets whose samples are sorted at once


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
    nodes, shares = (low.new_tensor(part).view(-1, *[1] * low.ndim) for part in np.polynomial.legendre.leggauss(_NODES))
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
