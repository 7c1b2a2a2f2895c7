"""Kronecker-factored covariance and curvature of one layer, in the eigenbasis of the factors.

Σ = (U_R ⊗ U_C) diag(v) (U_R ⊗ U_C)ᵀ

A side that is much longer than the other may have an incomplete basis: k eigenvectors, and one value for all directions
orthogonal to them (`linalg.bases`). For curvature L Lᵀ on that side this is exact, with no value beside L.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from torchbayes.linalg.bases import (
    combined,
    completed,
    coordinates,
    counts,
    frame,
    is_whole,
    shape_of,
    spread,
    squares,
)
from torchbayes.linalg.curvature import LOADING, Correlations, Curvature, Part, is_rounding
from torchbayes.linalg.matrices import eigh
from torchbayes.linalg.stored import double
from torchbayes.linalg.structure import Form, Structure, rooted


@dataclass(frozen=True)
class Kronecker(Structure):
    """Σ_m = ⊕_g (U_R ⊗ U_C) diag(v) (U_R ⊗ U_C)ᵀ for each member m, over the weights of one layer.

    The weights of a layer are G matrices (O, I), one for each group of a grouped convolution (else G = 1), flat in
    row-major order: D = G O I. Both bases are orthogonal; None stands for the identity. Time O(D (O + I)) per vector,
    memory O(O² + I² + D). A basis of k columns takes the place of its side by k in both: with k of I columns that is
    O(D (O + k)) and O(O² + I k + O k).

    Attributes:
        variance_MGOI: v, eigenvalues of Σ on the grid of both bases, at least 0. A basis of k < I columns has k + 1,
            the last of them that of all directions orthogonal to it.
        rows_MGOO: U_R, eigenvectors as columns, (M, G, O, O) or fewer columns, or None.
        columns_MGII: U_C likewise, (M, G, I, I), or None.
    """

    variance_MGOI: Tensor
    rows_MGOO: Tensor | None = None
    columns_MGII: Tensor | None = None

    kind: ClassVar[str] = "kronecker"

    @property
    def shape(self) -> tuple[int, int, int]:
        """(G, O, I), the weights of the layer."""
        return shape_of(self.variance_MGOI, self.rows_MGOO, self.columns_MGII)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def _each(self) -> Tensor:
        """Eigenvalues v, one for every coordinate."""
        return spread(self.variance_MGOI, self.rows_MGOO, self.columns_MGII)

    def matvec(self, vector_MD: Tensor) -> Tensor:
        return _rotated_back(self, self._each * _rotated(self, vector_MD))

    def solve(self, vector_MD: Tensor) -> Tensor:
        return _rotated_back(self, _rotated(self, vector_MD) / self._each)

    def quadratic(self, vector_MD: Tensor) -> Tensor:
        return (_rotated(self, vector_MD).square() / self._each).flatten(-3).sum(-1, dtype=torch.float64)

    def sqrt_matvec(self, noise_MZ: Tensor) -> Tensor:
        """Return R z with R Rᵀ = Σ, shape (..., M, D), for noise (..., M, D).

        R = (U_R ⊗ U_C) diag(√v) of whole bases, and the symmetric root in the directions of an incomplete one: of
        Q diag(v) Qᵀ + c (I − Q Qᵀ) it is √c (I − Q diag(1 − √(v/c)) Qᵀ).
        """
        incomplete = (None if is_whole(basis) else basis for basis in (self.rows_MGOO, self.columns_MGII))
        return _rotated_back(self, self._each.sqrt() * _turned(noise_MZ.unflatten(-1, self.shape), *incomplete))

    def logdet(self) -> Tensor:
        many = counts(self.variance_MGOI, self.rows_MGOO, self.columns_MGII)
        return (self.variance_MGOI.double().log() * many).flatten(1).sum(-1)

    def diagonal(self) -> Tensor:
        grid = self.variance_MGOI
        grid = grid if self.rows_MGOO is None else squares(self.rows_MGOO) @ grid
        return (grid if self.columns_MGII is None else grid @ squares(self.columns_MGII).mT).flatten(1)

    def precision_diagonal(self) -> Tensor:
        return Kronecker(1 / self.variance_MGOI, self.rows_MGOO, self.columns_MGII).diagonal()

    def form(self, scale_MD: Tensor | None = None) -> Form:
        """Return diag(s) Σ diag(s) in the eigenbasis; its columns take s if s is the same down every column.

        An incomplete basis of columns stays one if s is the same for all weights; else all its coordinates take s.
        """
        variance, rows, columns = self.variance_MGOI, self.rows_MGOO, self.columns_MGII
        if scale_MD is None:
            return Form(variance, rows, columns)
        scale_MGOI = scale_MD.unflatten(-1, self.shape)
        if not (scale_MGOI == scale_MGOI[:, :, :1]).all():
            return rooted(self, scale_MD)
        if columns is None:
            return Form(variance * scale_MGOI[:, :, :1] ** 2, rows)
        if not is_whole(columns):
            if (scale_MGOI == scale_MGOI[:, :1, :1, :1]).all():
                return Form(variance * scale_MGOI[:, :1, :1, :1] ** 2, rows, columns)
            variance, columns = spread(variance, None, columns), frame(columns)
        return Form(variance, rows, scale_MGOI[:, :, 0].unsqueeze(-1) * columns)

    def dense(self) -> Tensor:
        size = self.noise_size
        identity = torch.eye(size, dtype=self.variance_MGOI.dtype, device=self.variance_MGOI.device)
        return self.matvec(identity.unsqueeze(1).expand(size, len(self.variance_MGOI), size)).transpose(0, 1)


def _rotated(structure: Kronecker, vector_MD: Tensor) -> Tensor:
    """Return (U_R ⊗ U_C)ᵀ x as grids of coordinates, (..., M, G, O, I) or more of an incomplete basis."""
    return _turned(vector_MD.unflatten(-1, structure.shape), structure.rows_MGOO, structure.columns_MGII)


def _turned(grid: Tensor, rows: Tensor | None, columns: Tensor | None) -> Tensor:
    grid = grid if rows is None else coordinates(grid.mT, rows).mT
    return coordinates(grid, columns)


def _rotated_back(structure: Kronecker, grid_MGOI: Tensor) -> Tensor:
    """Return (U_R ⊗ U_C) applied to such grids, as vectors (..., M, D)."""
    grid = grid_MGOI if structure.rows_MGOO is None else combined(grid_MGOI.mT, structure.rows_MGOO).mT
    return combined(grid, structure.columns_MGII).flatten(-3)


@dataclass(frozen=True)
class KroneckerCurvature(Curvature):
    """H_m = ⊕_g (U_R ⊗ U_C) diag(λ) (U_R ⊗ U_C)ᵀ over the weights of one layer; shapes as in `Kronecker`.

    Attributes:
        eigenvalues_MGOI: λ, at least 0.
        rows_MGOO: U_R, or None for the identity.
        columns_MGII: U_C, or None for the identity.
    """

    eigenvalues_MGOI: Tensor
    rows_MGOO: Tensor | None = None
    columns_MGII: Tensor | None = None

    kind: ClassVar[str] = "kronecker"
    correlations: ClassVar[Correlations] = "some"

    @property
    def size(self) -> int:
        return self._as_covariance.size

    @property
    def _as_covariance(self) -> Kronecker:
        """H by the operations of a covariance."""
        return Kronecker(self.eigenvalues_MGOI, self.rows_MGOO, self.columns_MGII)

    def covariance(self, precision_D: Tensor) -> Kronecker:
        """Return (H + d I)⁻¹; d must be the same for every weight.

        Raises:
            ValueError: if it is not.
        """
        level = precision_D[..., :1]
        if not torch.equal(precision_D, level.expand_as(precision_D)):
            raise ValueError(
                "a Kronecker-factored posterior needs one prior precision for the weights of a layer, up to the "
                "model's own; got several. Choose the precision per layer, or structure='diagonal' or 'dense'."
            )
        return Kronecker(1 / (self.eigenvalues_MGOI + level[..., None, None]), self.rows_MGOO, self.columns_MGII)

    def plus(self, covariance: Structure, scale_MD: Tensor) -> KroneckerCurvature | None:
        """Return H + diag(c) Σ⁻¹ diag(c) for a Kronecker-factored Σ of the same layer and c constant down every column.

        The sum of two Kronecker products is not one. It is taken in the eigenbasis of the sum of both sides'
        marginals, with its exact diagonal there. That is exact if both have the same basis, or the layer has one
        output. Incomplete bases become whole ones.
        """
        form, shape = None if covariance.groups else covariance.form(), self._as_covariance.shape
        if form is None or not form.is_spectral or form.variance is None or form.shape != shape:
            return None
        form, scale_MGOI = form.completed(), scale_MD.unflatten(1, shape)
        grid, *bases = completed(self.eigenvalues_MGOI, self.rows_MGOO, self.columns_MGII)
        if form.bases is None or form.variance is None or bases[0] is None or bases[1] is None:
            return None
        if not torch.allclose(scale_MGOI, scale_MGOI[:, :, :1].expand_as(scale_MGOI)):
            return None
        first = Factored(grid, bases[0], bases[1])
        second = Factored(1 / form.variance, form.bases[0], scale_MGOI[:, :, 0].unsqueeze(-1) * form.bases[1])
        rows = eigh(first.over_rows() + second.over_rows())[1]
        columns = eigh(first.over_columns() + second.over_columns())[1]
        return KroneckerCurvature(first.diagonal(rows, columns) + second.diagonal(rows, columns), rows, columns)

    def parts(self) -> Iterator[Part]:
        many = counts(self.eigenvalues_MGOI, self.rows_MGOO, self.columns_MGII).repeat(self._as_covariance.shape[0], 1)
        values = self.eigenvalues_MGOI.flatten(1).repeat_interleave(many.flatten(), dim=1)
        where = torch.arange(values.shape[1], device=values.device)
        yield Part(where, values, self.rows_MGOO is None and self.columns_MGII is None)

    def scaled(self, factor: float) -> KroneckerCurvature:
        return KroneckerCurvature(factor * self.eigenvalues_MGOI, self.rows_MGOO, self.columns_MGII)

    def in_units(self, scale_D: Tensor) -> KroneckerCurvature:
        """Return diag(s) H diag(s); s must be the same for every weight.

        Raises:
            ValueError: if it is not.
        """
        if not torch.equal(scale_D, scale_D[:1].expand_as(scale_D)):
            raise ValueError("the weights of a Kronecker product must have one unit; got several.")
        return self.scaled(float(scale_D[0]) ** 2)

    def positive(self) -> KroneckerCurvature:
        return self.mapped(double)

    def undetermined(self, precision_D: Tensor) -> Tensor:
        """Return which weights lie in directions in which H + d I is 0 up to rounding, bool (M, D).

        Eigenvalues of a Kronecker product are products of the factors' eigenvalues, each known to D ε times its
        largest, so a product may be far smaller than ε. Eigenvalues that are not such products (EKFAC) also count as
        0 if they are below them by the factor of rounding, and below the largest by its square: these are sums of
        squares.
        """
        grid = self.eigenvalues_MGOI + precision_D[0]
        empty = _empty(grid, self._as_covariance.shape[1:]).to(grid)
        return Kronecker(empty, self.rows_MGOO, self.columns_MGII).diagonal() > LOADING

    def trace(self) -> Tensor:
        many = counts(self.eigenvalues_MGOI, self.rows_MGOO, self.columns_MGII)
        return (self.eigenvalues_MGOI * many).flatten(1).sum(-1)

    def diagonal(self) -> Tensor:
        return self._as_covariance.diagonal()

    def dense(self) -> Tensor:
        return self._as_covariance.dense()


class Factored(NamedTuple):
    """(R ⊗ C) diag(grid) (R ⊗ C)ᵀ; the columns of R and C need not be orthogonal."""

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


def _empty(grid_MGOI: Tensor, sides: tuple[int, int]) -> Tensor:
    """Return which eigenvalues in the basis of a Kronecker product with these sides are 0 up to rounding."""
    rows_MGO, columns_MGI = grid_MGOI.amax(-1), grid_MGOI.amax(-2)
    largest_MG11 = grid_MGOI.amax((-2, -1), keepdim=True)
    near = max(sides) * torch.finfo(grid_MGOI.dtype).eps
    product = rows_MGO.unsqueeze(-1) * columns_MGI.unsqueeze(-2)
    below = (grid_MGOI * largest_MG11 <= near * product) & (grid_MGOI <= near**2 * largest_MG11)
    by_rows, by_columns = (is_rounding(v, size) for v, size in zip((rows_MGO, columns_MGI), sides, strict=True))
    return below | by_rows.unsqueeze(-1) | by_columns.unsqueeze(-2)
