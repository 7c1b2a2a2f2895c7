"""Kronecker-factored covariance and curvature of one layer, in the eigenbasis of the factors.

Σ = (U_R ⊗ U_C) diag(v) (U_R ⊗ U_C)ᵀ
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from torchbayes.linalg.curvature import LOADING, Correlations, Curvature, Part, is_rounding
from torchbayes.linalg.matrices import eigh
from torchbayes.linalg.stored import double
from torchbayes.linalg.structure import Form, Structure, rooted


@dataclass(frozen=True)
class Kronecker(Structure):
    """Σ_m = ⊕_g (U_R ⊗ U_C) diag(v) (U_R ⊗ U_C)ᵀ for each member m, over the weights of one layer.

    The weights of a layer are G matrices (O, I), one for each group of a grouped convolution (else G = 1), flat in
    row-major order: D = G O I. Both bases are orthogonal; None stands for the identity. Time O(D (O + I)) per vector,
    memory O(O² + I² + D).

    Attributes:
        variance_MGOI: v, eigenvalues of Σ on the grid of both bases, at least 0.
        rows_MGOO: U_R, eigenvectors as columns, (M, G, O, O), or None.
        columns_MGII: U_C likewise, (M, G, I, I), or None.
    """

    variance_MGOI: Tensor
    rows_MGOO: Tensor | None = None
    columns_MGII: Tensor | None = None

    kind: ClassVar[str] = "kronecker"

    @property
    def size(self) -> int:
        return self.variance_MGOI[0].numel()

    def matvec(self, vector_MD: Tensor) -> Tensor:
        return _rotated_back(self, self.variance_MGOI * _rotated(self, vector_MD))

    def solve(self, vector_MD: Tensor) -> Tensor:
        return _rotated_back(self, _rotated(self, vector_MD) / self.variance_MGOI)

    def quadratic(self, vector_MD: Tensor) -> Tensor:
        return (_rotated(self, vector_MD).square() / self.variance_MGOI).flatten(-3).sum(-1, dtype=torch.float64)

    def sqrt_matvec(self, noise_MZ: Tensor) -> Tensor:
        """Return R z with R Rᵀ = Σ, R = (U_R ⊗ U_C) diag(√v), shape (..., M, D), for noise (..., M, D)."""
        return _rotated_back(self, self.variance_MGOI.sqrt() * noise_MZ.unflatten(-1, self.variance_MGOI.shape[1:]))

    def logdet(self) -> Tensor:
        return self.variance_MGOI.double().log().flatten(1).sum(-1)

    def diagonal(self) -> Tensor:
        grid = self.variance_MGOI
        grid = grid if self.rows_MGOO is None else self.rows_MGOO.square() @ grid
        return (grid if self.columns_MGII is None else grid @ self.columns_MGII.square().mT).flatten(1)

    def precision_diagonal(self) -> Tensor:
        return Kronecker(1 / self.variance_MGOI, self.rows_MGOO, self.columns_MGII).diagonal()

    def form(self, scale_MD: Tensor | None = None) -> Form:
        """Return diag(s) Σ diag(s) in the eigenbasis; its columns take s if s is the same down every column."""
        variance, rows, columns = self.variance_MGOI, self.rows_MGOO, self.columns_MGII
        if scale_MD is None:
            return Form(variance, rows, columns)
        scale_MGOI = scale_MD.unflatten(-1, variance.shape[1:])
        if not (scale_MGOI == scale_MGOI[:, :, :1]).all():
            return rooted(self, scale_MD)
        if columns is None:
            return Form(variance * scale_MGOI**2, rows)
        return Form(variance, rows, scale_MGOI[:, :, 0].unsqueeze(-1) * columns)

    def dense(self) -> Tensor:
        size = self.noise_size
        identity = torch.eye(size, dtype=self.variance_MGOI.dtype, device=self.variance_MGOI.device)
        return self.matvec(identity.unsqueeze(1).expand(size, len(self.variance_MGOI), size)).transpose(0, 1)


def _rotated(structure: Kronecker, vector_MD: Tensor) -> Tensor:
    """Return (U_R ⊗ U_C)ᵀ x as grids, (..., M, G, O, I)."""
    grid = vector_MD.unflatten(-1, structure.variance_MGOI.shape[1:])
    grid = grid if structure.rows_MGOO is None else structure.rows_MGOO.mT @ grid
    return grid if structure.columns_MGII is None else grid @ structure.columns_MGII


def _rotated_back(structure: Kronecker, grid_MGOI: Tensor) -> Tensor:
    """Return (U_R ⊗ U_C) applied to grids (..., M, G, O, I), as vectors (..., M, D)."""
    grid = grid_MGOI if structure.rows_MGOO is None else structure.rows_MGOO @ grid_MGOI
    grid = grid if structure.columns_MGII is None else grid @ structure.columns_MGII.mT
    return grid.flatten(-3)


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
        return self.eigenvalues_MGOI[0].numel()

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
        output.
        """
        form = None if covariance.groups else covariance.form()
        bases, grid = (self.rows_MGOO, self.columns_MGII), self.eigenvalues_MGOI.shape[1:]
        if form is None or not form.is_spectral or form.variance is None or form.variance.shape[1:] != grid:
            return None
        scale_MGOI = scale_MD.unflatten(1, grid)
        if form.bases is None or bases[0] is None or bases[1] is None:
            return None
        if not torch.allclose(scale_MGOI, scale_MGOI[:, :, :1].expand_as(scale_MGOI)):
            return None
        first = Factored(self.eigenvalues_MGOI, bases[0], bases[1])
        second = Factored(1 / form.variance, form.bases[0], scale_MGOI[:, :, 0].unsqueeze(-1) * form.bases[1])
        rows = eigh(first.over_rows() + second.over_rows())[1]
        columns = eigh(first.over_columns() + second.over_columns())[1]
        return KroneckerCurvature(first.diagonal(rows, columns) + second.diagonal(rows, columns), rows, columns)

    def parts(self) -> Iterator[Part]:
        values = self.eigenvalues_MGOI.flatten(1)
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
        return Kronecker(_empty(grid).to(grid), self.rows_MGOO, self.columns_MGII).diagonal() > LOADING

    def trace(self) -> Tensor:
        return self.eigenvalues_MGOI.flatten(1).sum(-1)

    def diagonal(self) -> Tensor:
        return Kronecker(self.eigenvalues_MGOI, self.rows_MGOO, self.columns_MGII).diagonal()

    def dense(self) -> Tensor:
        return Kronecker(self.eigenvalues_MGOI, self.rows_MGOO, self.columns_MGII).dense()


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


def _empty(grid_MGOI: Tensor) -> Tensor:
    """Return which eigenvalues in the basis of a Kronecker product are 0 up to rounding."""
    rows_MGO, columns_MGI = grid_MGOI.amax(-1), grid_MGOI.amax(-2)
    largest_MG11 = grid_MGOI.amax((-2, -1), keepdim=True)
    near = max(grid_MGOI.shape[-2:]) * torch.finfo(grid_MGOI.dtype).eps
    product = rows_MGO.unsqueeze(-1) * columns_MGI.unsqueeze(-2)
    below = (grid_MGOI * largest_MG11 <= near * product) & (grid_MGOI <= near**2 * largest_MG11)
    return below | is_rounding(rows_MGO).unsqueeze(-1) | is_rounding(columns_MGI).unsqueeze(-2)
