"""What a low rank leaves out of a log determinant: bounds from its trace and square, and their middle as estimate.

Kronecker factors of low rank leave out nothing, but spread a part of their trace evenly (`evened`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchbayes.linalg.bases import is_whole
from torchbayes.linalg.blocks import BlockCurvature
from torchbayes.linalg.curvature import Curvature, LeftOut
from torchbayes.linalg.kronecker import KroneckerCurvature


class Dropped(NamedTuple):
    """log det (H + diag(d)) minus that of the kept directions."""

    logdet_M: Tensor  # estimate, float64
    doubt_M: Tensor  # largest error of the estimate, either way, float64
    shares_MD: Tensor  # −∂logdet/∂log d, each weight's share as a number of parameters, float64


def dropped(curvature: Curvature, precision_D: Tensor) -> Dropped:
    """Return what a curvature leaves out of log det (H + diag(d)), d > 0; 0 for all but low ranks.

    Of the eigenvalues λ that are left out, at most n are above 0 and none is above b, the smallest kept one; t = Σ λ
    and q = Σ λ² are known. The Gauss-Radau rules of these moments with a node at 0 and at b bound the sum of
    logarithms (Bai and Golub 1996):

        (t²/q) log(1 + q/t) ≤ Σ log(1 + λ) ≤ w log(1 + b) + (n − w) log(1 + a)

    with a = (b t − q)/(b n − t) and w = (t − a n)/(b − a). All λ are assumed to change as their sum does where d
    changes.
    """
    each = [(out.where, _dropped(out, precision_D[out.where].double())) for out in curvature.left_out]
    if not each:
        none_MD = torch.zeros_like(curvature.diagonal(), dtype=torch.float64)
        return Dropped(none_MD[:, 0], none_MD[:, 0], none_MD)
    logdet_M, doubt_M = (torch.stack([rest[number] for _, rest in each]).sum(0) for number in (0, 1))
    shares_MD = logdet_M.new_zeros(len(logdet_M), curvature.size)
    for where, rest in each:
        shares_MD = shares_MD.index_add(1, where, rest.shares_MD)
    return Dropped(logdet_M, doubt_M, shares_MD)


def rest_diagonal(curvature: Curvature) -> Tensor:
    """Return the diagonal of what a curvature leaves out, (M, D); 0 for all but low ranks."""
    total_MD = torch.zeros_like(curvature.diagonal())
    for out in curvature.left_out:
        total_MD[:, out.where] = out.diagonal_MD
    return total_MD


def evened(curvature: Curvature) -> Tensor:
    """Return the part of tr H that is spread evenly over directions that no basis holds, (M,); 0 for most."""
    if isinstance(curvature, BlockCurvature):
        return torch.stack([evened(block) for block in curvature.blocks]).sum(0)
    if not isinstance(curvature, KroneckerCurvature):
        return torch.zeros_like(curvature.trace())
    held = curvature.eigenvalues_MGOI
    for axis, basis in ((-2, curvature.rows_MGOO), (-1, curvature.columns_MGII)):
        held = held if basis is None or is_whole(basis) else held.narrow(axis, 0, basis.shape[-1])
    return (curvature.trace() - held.flatten(1).sum(-1)).clamp_min(0)


def _dropped(out: LeftOut, precision_D: Tensor) -> Dropped:
    tiny, kept_MR = torch.finfo(torch.float64).tiny ** 0.5, out.kept_MR.double()
    present_MR = kept_MR > torch.finfo(out.kept_MR.dtype).eps * kept_MR.amax(-1, keepdim=True)
    room_M = (out.room_M.double() - present_MR.sum(-1)).clamp_min(1.0)
    rest_MD = out.diagonal_MD.double()
    shares_MD, sum_M = rest_MD / precision_D, rest_MD.sum(-1).clamp_min(tiny)
    scale_M = shares_MD.sum(-1) / sum_M
    # q/t, the mean of λ weighted by itself, lies between its values for a single λ and for equal ones.
    mean_M = torch.minimum(torch.maximum(out.squares_M.double() / sum_M, sum_M / room_M), sum_M)
    least_M = torch.where(present_MR, kept_MR, kept_MR.amax(-1, keepdim=True)).amin(-1)
    bound_M = torch.maximum(least_M, mean_M)
    other_M = (bound_M - mean_M) / (bound_M * room_M / sum_M - 1).clamp_min(tiny)
    many_M = (sum_M - other_M * room_M) / (bound_M - other_M).clamp_min(tiny)
    low = ((sum_M / mean_M, mean_M),)
    high = ((many_M, bound_M), (room_M - many_M, other_M))
    low_M, high_M = (_over(rule, lambda x: (x * scale_M).log1p()) for rule in (low, high))
    slope_M = _over((*low, *high), lambda x: x / (1 + x * scale_M)) / 2
    return Dropped((low_M + high_M) / 2, (high_M - low_M) / 2, shares_MD * (slope_M / sum_M).unsqueeze(-1))


def _over(rule: Sequence[tuple[Tensor, Tensor]], function: Callable[[Tensor], Tensor]) -> Tensor:
    """Return Σ weight · function(node)."""
    return torch.stack([weight * function(node) for weight, node in rule]).sum(0)
