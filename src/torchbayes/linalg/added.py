"""Curvature and the precision of a correlated prior: what one task leaves to the next, in the structure of both."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchbayes.linalg.blocks import Blocks, Scaled
from torchbayes.linalg.curvature import (
    BlockCurvature,
    Curvature,
    DenseCurvature,
    DiagonalCurvature,
    KroneckerCurvature,
)
from torchbayes.linalg.dense import eigh
from torchbayes.linalg.diagonal import Diagonal
from torchbayes.linalg.kronecker import Kronecker
from torchbayes.linalg.structure import Structure


def plus_precision(curvature: Curvature, covariance: Structure, factor: float = 1.0) -> Curvature:
    """Return H + factor · Σ⁻¹.

    Exact for dense, diagonal and equal blocks of them. The sum of two Kronecker products is none: it is taken in the
    eigenbasis of the sum of both sides' marginals, with its exact diagonal there. That is exact where both have the
    same basis, or a layer has one output.

    Args:
        curvature: H, in units of the weights.
        covariance: Σ, of one member.
        factor: on its inverse.

    Returns:
        The sum.

    Raises:
        ValueError: if the two do not add up to a structure.
    """
    scale, inner = _unscaled(covariance)
    found = _plus(curvature, inner, factor**0.5 / scale)
    if found is None:
        raise ValueError(
            f"a prior with {covariance.kind} covariance and a {curvature.kind} curvature do not add up to a structure. "
            f"Use the structure of the earlier posterior, or 'dense'."
        )
    return found


def precision_trace(prior: Structure, covariance: Structure) -> Tensor:
    """Return tr Σ₀⁻¹ Σ, float64 (M,), for a covariance Σ whose precision is a curvature plus Σ₀⁻¹.

    Args:
        prior: Σ₀, of one member.
        covariance: Σ, of M members.
    """
    (first_MD, inner), (second_MD, outer) = _unscaled(prior), _unscaled(covariance)
    return _trace(inner, outer, second_MD / first_MD)


def _unscaled(covariance: Structure) -> tuple[Tensor, Structure]:
    """Return s (M, D) and S with Σ = diag(s) S diag(s)."""
    if isinstance(covariance, Scaled):
        return covariance.scale_MD, covariance.structure
    return torch.ones_like(covariance.diagonal()), covariance


def _trace(prior: Structure, covariance: Structure, scale_MD: Tensor) -> Tensor:
    """Return tr Σ₀⁻¹ diag(c) Σ diag(c), float64 (M,)."""
    if isinstance(covariance, Diagonal) and isinstance(prior, Diagonal):
        return (scale_MD**2 * covariance.variance_MD / prior.variance_MD).sum(-1, dtype=torch.float64)
    if isinstance(covariance, Kronecker) and isinstance(prior, Kronecker):
        # none of the bases is None: such factors and a correlated prior do not add up
        bases = (covariance.rows_MGOO, covariance.columns_MGII, prior.rows_MGOO, prior.columns_MGII)
        rows, columns, own_rows, own_columns = map(torch.as_tensor, bases)
        scale_MGI = scale_MD.unflatten(1, covariance.variance_MGOI.shape[1:])[:, :, 0]
        side = _Side(1 / prior.variance_MGOI, own_rows, scale_MGI.unsqueeze(-1) * own_columns)
        return (side.diagonal(rows, columns) * covariance.variance_MGOI).flatten(1).sum(-1, dtype=torch.float64)
    if isinstance(covariance, Blocks) and isinstance(prior, Blocks):
        scales = scale_MD[:, covariance.order_D].split(covariance.sizes, dim=1)
        each = zip(prior.blocks, covariance.blocks, scales, strict=True)
        return torch.stack([_trace(*block) for block in each]).sum(0)
    inverse_MDD = torch.linalg.inv(prior.dense().double())
    scaled_MDD = scale_MD.unsqueeze(-1) * covariance.dense() * scale_MD.unsqueeze(-2)
    return (inverse_MDD * scaled_MDD).sum((-2, -1))


def _plus(curvature: Curvature, covariance: Structure, scale_MD: Tensor) -> Curvature | None:
    """Return H + diag(c) Σ⁻¹ diag(c), None where there is no such structure."""
    if isinstance(curvature, DenseCurvature):
        inverse = torch.linalg.inv(covariance.dense().double()).to(scale_MD)
        return DenseCurvature(curvature.matrix_MDD + scale_MD.unsqueeze(-1) * inverse * scale_MD.unsqueeze(-2))
    if isinstance(curvature, DiagonalCurvature) and isinstance(covariance, Diagonal):
        return DiagonalCurvature(curvature.values_MD + scale_MD**2 / covariance.variance_MD)
    if isinstance(curvature, KroneckerCurvature) and isinstance(covariance, Kronecker):
        same = curvature.eigenvalues_MGOI.shape[1:] == covariance.variance_MGOI.shape[1:]
        return (
            _kronecker(curvature, covariance, scale_MD.unflatten(1, covariance.variance_MGOI.shape[1:]))
            if same
            else None
        )
    if isinstance(curvature, BlockCurvature) and isinstance(covariance, Blocks):
        if not torch.equal(curvature.order_D, covariance.order_D) or curvature.sizes != covariance.sizes:
            return None
        scales = scale_MD[:, curvature.order_D].split(curvature.sizes, dim=1)
        pairs = zip(curvature.blocks, covariance.blocks, scales, strict=True)
        blocks = [_plus(block, other, own) for block, other, own in pairs]
        return None if any(block is None for block in blocks) else BlockCurvature(curvature.order_D, tuple(blocks))
    return None


def _kronecker(curvature: KroneckerCurvature, covariance: Kronecker, scale_MGOI: Tensor) -> KroneckerCurvature | None:
    if not torch.allclose(scale_MGOI, scale_MGOI[:, :, :1].expand_as(scale_MGOI)):
        return None
    own = (curvature.rows_MGOO, curvature.columns_MGII)
    other = (covariance.rows_MGOO, covariance.columns_MGII)
    if own[0] is None or own[1] is None or other[0] is None or other[1] is None:
        return None
    first = _Side(curvature.eigenvalues_MGOI, own[0], own[1])
    second = _Side(1 / covariance.variance_MGOI, other[0], scale_MGOI[:, :, 0].unsqueeze(-1) * other[1])
    rows = eigh(first.over_rows() + second.over_rows())[1]
    columns = eigh(first.over_columns() + second.over_columns())[1]
    return KroneckerCurvature(first.diagonal(rows, columns) + second.diagonal(rows, columns), rows, columns)


class _Side(NamedTuple):
    """(R ⊗ C) diag(grid) (R ⊗ C)ᵀ."""

    grid_MGOI: Tensor
    rows_MGOO: Tensor
    columns_MGII: Tensor

    def over_rows(self) -> Tensor:
        """Return the marginal over output units, (M, G, O, O)."""
        return (self.rows_MGOO * self.grid_MGOI.sum(-1).unsqueeze(-2)) @ self.rows_MGOO.mT

    def over_columns(self) -> Tensor:
        """Return the marginal over inputs, (M, G, I, I)."""
        return (self.columns_MGII * self.grid_MGOI.sum(-2).unsqueeze(-2)) @ self.columns_MGII.mT

    def diagonal(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the diagonal in another basis, as a grid."""
        return (rows.mT @ self.rows_MGOO).square() @ self.grid_MGOI @ (columns.mT @ self.columns_MGII).square().mT
