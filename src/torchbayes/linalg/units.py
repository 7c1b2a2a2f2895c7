"""A curvature in other units of the weights, and the weights that it says nothing of."""

from __future__ import annotations

import torch
from torch import Tensor

from torchbayes.linalg.curvature import (
    BlockCurvature,
    Curvature,
    DenseCurvature,
    DiagonalCurvature,
    KroneckerCurvature,
    LowRankCurvature,
    restore_curvature,
)
from torchbayes.linalg.dense import eigh, eigvalsh
from torchbayes.linalg.kronecker import Kronecker

_LOADING = 1e-3  # of a weight's square in directions without precision, above which the weight is undetermined


def in_units(curvature: Curvature, scale_D: Tensor) -> Curvature:
    """Return diag(s) H diag(s).

    Args:
        curvature: H.
        scale_D: s, positive, (D,); the same for all weights of a Kronecker product.

    Returns:
        The curvature.

    Raises:
        ValueError: if s differs within a Kronecker product.
    """
    if isinstance(curvature, DiagonalCurvature):
        return DiagonalCurvature(curvature.values_MD * scale_D**2)
    if isinstance(curvature, DenseCurvature):
        return DenseCurvature(curvature.matrix_MDD * scale_D.unsqueeze(-1) * scale_D)
    if isinstance(curvature, LowRankCurvature):
        rest_MD, tiny = curvature.rest_MD * scale_D**2, torch.finfo(torch.float64).tiny
        ratio_M = rest_MD.sum(-1, dtype=torch.float64) / curvature.rest_MD.sum(-1, dtype=torch.float64).clamp_min(tiny)
        squares_M = curvature.squares_M * (ratio_M**2).to(rest_MD)  # exact for one unit
        return LowRankCurvature(curvature.factor_MRD * scale_D, rest_MD, squares_M, curvature.room_M)
    if isinstance(curvature, BlockCurvature):
        each = zip(curvature.blocks, scale_D[curvature.order_D].split(curvature.sizes), strict=True)
        return BlockCurvature(curvature.order_D, tuple(in_units(block, own_D) for block, own_D in each))
    if not torch.equal(scale_D, scale_D[:1].expand_as(scale_D)):
        raise ValueError("the weights of a Kronecker product must have one unit; got several.")
    return curvature.scaled(float(scale_D[0]) ** 2)


def positive(curvature: Curvature) -> Curvature:
    """Return H ≥ 0 in double precision: dense blocks get back what rounding took below 0, on their diagonal.

    Args:
        curvature: H, at least 0 but for rounding.
    """
    if isinstance(curvature, BlockCurvature):
        return BlockCurvature(curvature.order_D, tuple(positive(block) for block in curvature.blocks))
    named = {n: t.double() if t.is_floating_point() else t for n, t in curvature.tensors().items()}
    exact = restore_curvature(curvature.kind, named)
    if isinstance(exact, DenseCurvature):
        below_M = -eigvalsh(exact.matrix_MDD)[:, :1].clamp_max(0)
        exact.matrix_MDD.diagonal(dim1=-2, dim2=-1).add_(2 * below_M)  # twice: that is rounded too
    return exact


def undetermined(curvature: Curvature, precision_D: Tensor) -> Tensor:
    """Return which weights lie in directions in which H + diag(d) is 0 to rounding, bool (M, D).

    Rounding is what eigenvalues of H + diag(d) are known to: D ε times the largest, of matrices brought to a diagonal
    of ones where H is dense, so that units do not matter. Those of a Kronecker product are products of the two factors'
    own, each known to D ε times its largest, so that a product may be far smaller than ε. Where they are not such
    products (EKFAC) they are also 0 if so far below them, and below the largest by the square of rounding: they are
    sums of squares.

    Args:
        curvature: H, at least 0.
        precision_D: d, at least 0, (D,).
    """
    if isinstance(curvature, BlockCurvature):
        each = zip(curvature.blocks, precision_D[curvature.order_D].split(curvature.sizes), strict=True)
        found = torch.cat([undetermined(block, own_D) for block, own_D in each], dim=-1)
        return found[:, torch.argsort(curvature.order_D)]
    if isinstance(curvature, LowRankCurvature):
        return (precision_D == 0).expand(len(curvature.factor_MRD), -1)
    if isinstance(curvature, KroneckerCurvature):
        grid = curvature.eigenvalues_MGOI + precision_D[0]
        empty = _empty(grid)
        return Kronecker(empty.to(grid), curvature.rows_MGOO, curvature.columns_MGII).diagonal() > _LOADING
    total_MD = curvature.diagonal() + precision_D
    if isinstance(curvature, DiagonalCurvature):
        return total_MD <= 0
    root_MD = torch.where(total_MD > 0, total_MD, 1.0).rsqrt()
    matrix_MDD = curvature.dense() * root_MD.unsqueeze(-1) * root_MD.unsqueeze(-2)
    matrix_MDD.diagonal(dim1=-2, dim2=-1).add_(precision_D * root_MD**2)
    values_ME, vectors_MDE = eigh(matrix_MDD)
    return (vectors_MDE.square() * _rounded(values_ME).unsqueeze(-2)).sum(-1) > _LOADING


def _empty(grid_MGOI: Tensor) -> Tensor:
    """Return which eigenvalues in the basis of a Kronecker product are 0 to rounding."""
    rows_MGO, columns_MGI = grid_MGOI.amax(-1), grid_MGOI.amax(-2)
    largest_MG11 = grid_MGOI.amax((-2, -1), keepdim=True)
    near = max(grid_MGOI.shape[-2:]) * torch.finfo(grid_MGOI.dtype).eps
    product = rows_MGO.unsqueeze(-1) * columns_MGI.unsqueeze(-2)
    below = (grid_MGOI * largest_MG11 <= near * product) & (grid_MGOI <= near**2 * largest_MG11)
    return below | _rounded(rows_MGO).unsqueeze(-1) | _rounded(columns_MGI).unsqueeze(-2)


def _rounded(values_ME: Tensor) -> Tensor:
    """Return which eigenvalues (..., E) are 0 to rounding, of either sign."""
    largest = values_ME.amax(-1, keepdim=True)
    return values_ME.abs() <= values_ME.shape[-1] * torch.finfo(values_ME.dtype).eps * largest
