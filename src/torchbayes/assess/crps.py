r"""The continuous ranked probability score of the model average, $\int (F(z) - [z \ge y])^2\,dz$, target by target.

Exact for an average of normal distributions. Of others that know their distribution function, and of very many normal
ones, it is integrated numerically; of the rest it is estimated from samples.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, distributions

from torchbayes.metrics.scoring import draws_crps, normals_crps
from torchbayes.predictive.intervals import pieces_of, samples_of
from torchbayes.predictive.mixture import Mixture

_PAIRED = 500  # draws up to which pairs are cheaper than an integral
_OUTSIDE = 1e-5  # probability on either side where the integral ends: its square is left out
_NODES = 64  # of the quadrature on either side of a target
_AT_ONCE = 2**21  # numbers held at once
_COLUMNS = 512  # targets whose samples are sorted at once


def crps(predictive: Mixture, targets: Tensor) -> Tensor:
    """Return the continuous ranked probability score of each target.

    Args:
        predictive: of real numbers.
        targets: (B, K').

    Returns:
        Scores in units of the targets, (B, K'), float64; lower is better.

    Raises:
        NotImplementedError: if the distribution knows no distribution function and nothing can be drawn from it.
    """
    kind = predictive.distribution
    if isinstance(kind, distributions.Normal) and predictive.draws <= _PAIRED:
        return normals_crps(kind.mean, kind.stddev, targets)
    try:
        return _integrated(predictive, targets)
    except (NotImplementedError, ValueError):  # no distribution function, or one that refuses some values
        return _estimated(predictive, targets)


def _integrated(predictive: Mixture, targets: Tensor) -> Tensor:
    """Return the scores by Gauss-Legendre quadrature of F² below each target and of (1 - F)² above it."""
    found, start = [], 0
    for piece in pieces_of(predictive, _NODES * predictive.draws, _AT_ONCE):
        own = targets[start : start + piece.outputs_SBK.shape[1]].double()
        low, high = piece.quantile(own.new_tensor([_OUTSIDE, 1 - _OUTSIDE])).double()
        middle = torch.maximum(low, torch.minimum(high, own))
        below = _integral(lambda reached: reached, piece, low, middle)
        above = _integral(lambda reached: 1 - reached, piece, middle, high)
        found.append(below + above + (own - middle).abs())  # beyond the ends the distribution function is 0 or 1
        start += len(own)
    return torch.cat(found)


def _integral(error: Callable[[Tensor], Tensor], predictive: Mixture, low: Tensor, high: Tensor) -> Tensor:
    """Return the integral of the squared error of the distribution function between bounds (B, K')."""
    nodes, shares = (low.new_tensor(part).view(-1, *[1] * low.ndim) for part in np.polynomial.legendre.leggauss(_NODES))
    values = low + (high - low) * (1 + nodes) / 2
    reached = predictive.distribution.cdf(values.unsqueeze(1)).double().mean(1)
    return (error(reached).square() * shares).sum(0) * (high - low) / 2


def _estimated(predictive: Mixture, targets: Tensor) -> Tensor:
    """Return the scores of samples."""
    found, start = [], 0
    for samples in samples_of(predictive):
        own = targets[start : start + samples.shape[1]]
        parts = zip(samples.flatten(1).split(_COLUMNS, dim=1), own.flatten().split(_COLUMNS), strict=True)
        found.append(torch.cat([draws_crps(drawn, observed) for drawn, observed in parts]).reshape(own.shape))
        start += len(own)
    return torch.cat(found)
