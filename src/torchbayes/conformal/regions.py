"""Regions of highest density of a model average of numbers: {y: log p(y) ≥ −q}, one or several intervals."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchbayes.model.likelihoods.protocol import log_mean_exp
from torchbayes.model.likelihoods.quantiles import is_discrete
from torchbayes.predictive.intervals import pieces_of
from torchbayes.predictive.mixture import Mixture, some_rows

_AT_ONCE = 2**22  # numbers held at once
_FEWEST, _MOST = 64, 1024  # points at equal distances
_SHARE = 0.25  # of the smallest standard deviation between them
_REACH = 4.0  # standard deviations beyond the outermost means
_HALVES = 60  # more than the binary digits of a float64
_Height = Callable[[Tensor], Tensor]


def density_intervals(mixture: Mixture, thresholds_B: Tensor) -> list[Tensor]:
    """Return the intervals of each row, (R, 2), float64, from left to right.

    Ends are exact to rounding. An interval, or a gap, that holds no component's mean and is narrower than a quarter of
    the smallest standard deviation, or than a thousandth of the whole, may be missed. Where the set is empty, it is the
    point of highest density.

    Args:
        mixture: the model average, in float64.
        thresholds_B: q; infinite for all numbers.

    Raises:
        TypeError: if targets are not single real numbers with a density, or their deviation is not finite.
    """
    if is_discrete(mixture.distribution) or mixture.mean.numel() != len(thresholds_B):
        raise TypeError(
            "regions of highest density are of one real number in each row. Use 'pit' for counts, and 'normalised' for "
            "several numbers."
        )
    regions, start = [], 0
    points = mixture.draws + _MOST
    for piece in pieces_of(mixture, points * mixture.draws, _AT_ONCE):
        regions += _of_piece(piece, thresholds_B[start : start + piece.outputs_SBK.shape[1]])
        start += piece.outputs_SBK.shape[1]
    return regions


def _of_piece(mixture: Mixture, thresholds_B: Tensor) -> list[Tensor]:
    """Return the intervals of a few rows: sign changes between points, then bisection of each."""
    height, level_B1 = height_of(mixture), -thresholds_B.unsqueeze(1)
    points_BG = _outwards(height, _points(mixture), level_B1)
    reached_BG = height(points_BG)
    inside_BG = reached_BG >= level_B1
    rows_E, left_E = (inside_BG[:, 1:] != inside_BG[:, :-1]).nonzero(as_tuple=True)
    opens_E = inside_BG[rows_E, left_E + 1]
    low_E, high_E = points_BG[rows_E, left_E], points_BG[rows_E, left_E + 1]
    for _ in range(_HALVES if len(rows_E) else 0):
        middle_E = (low_E + high_E) / 2
        reached_E = height_of(some_rows(mixture, rows_E))(middle_E.unsqueeze(1))[:, 0]
        beyond_E = (reached_E >= level_B1[rows_E, 0]) == opens_E
        low_E, high_E = torch.where(beyond_E, low_E, middle_E), torch.where(beyond_E, middle_E, high_E)
    edges_E = torch.where(opens_E, high_E, low_E)  # the end that is inside
    modes_B = points_BG.gather(1, reached_BG.argmax(1, keepdim=True))
    intervals = []
    for row, threshold in enumerate(thresholds_B.tolist()):
        pairs = edges_E[rows_E == row].view(-1, 2)
        if math.isinf(threshold) and threshold > 0:
            pairs = pairs.new_tensor([[-math.inf, math.inf]])
        intervals.append(pairs if len(pairs) else modes_B[row].expand(1, 2))
    return intervals


def height_of(mixture: Mixture) -> _Height:
    """Return log p(y) of the average as a function of points (B, G); −∞ outside the support."""
    kind: Any = mixture.distribution
    shape = kind.batch_shape[1:]

    def height(points_BG: Tensor) -> Tensor:
        points = points_BG.T.reshape(-1, 1, *shape)  # (G, 1, B, ...)
        values = log_mean_exp(log_densities(kind, points).transpose(0, 1))
        return values.reshape(points_BG.T.shape).T

    return height


def log_densities(kind: Any, values: Tensor) -> Tensor:
    """Return log p of values that broadcast against distributions (S, B, ...); −∞ outside the support."""
    if kind.event_shape:
        return kind.log_prob(values)
    try:
        supported = kind.support.check(values)
    except (AttributeError, NotImplementedError):  # a distribution that does not say
        return kind.log_prob(values)
    return torch.where(supported, kind.log_prob(torch.where(supported, values, kind.mean)), -math.inf)


def _points(mixture: Mixture) -> Tensor:
    """Return sorted points (B, G): the components' means, and others at equal distances."""
    kind = mixture.distribution
    mean_SB, scale_SB = (moment.flatten(1) for moment in (kind.mean, kind.stddev))
    if not (mean_SB.isfinite() & scale_SB.isfinite()).all():
        raise TypeError("regions of highest density need finite standard deviations. Use 'pit'.")
    low_B1, high_B1 = (
        ends.unsqueeze(1) for ends in ((mean_SB - _REACH * scale_SB).amin(0), (mean_SB + _REACH * scale_SB).amax(0))
    )
    wanted = float(((high_B1 - low_B1)[:, 0] / (_SHARE * scale_SB.amin(0))).max())
    count = _MOST if not wanted < _MOST else max(_FEWEST, math.ceil(wanted))
    share_G = torch.linspace(0, 1, count, dtype=mean_SB.dtype, device=mean_SB.device)
    return torch.cat([mean_SB.T, low_B1 + (high_B1 - low_B1) * share_G], dim=1).sort(1).values


def _outwards(height: _Height, points_BG: Tensor, level_B1: Tensor) -> Tensor:
    """Return points with one more at either end, where the density is below the level."""
    middle = (points_BG[:, :1] + points_BG[:, -1:]) / 2
    half = (points_BG[:, -1:] - points_BG[:, :1]).clamp_min(torch.finfo(points_BG.dtype).tiny)
    for _ in range(_HALVES):
        ends = torch.cat([middle - half, middle + half], dim=1)
        wide = (height(ends) >= level_B1).any(1, keepdim=True) & level_B1.isfinite()
        if not wide.any():
            break
        half = torch.where(wide, 2 * half, half)
    return torch.cat([middle - half, points_BG, middle + half], dim=1)
