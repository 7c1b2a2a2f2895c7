"""Kronecker-factored covariance of one layer in the eigenbasis of its factors: Σ = (U_R ⊗ U_C) diag(v) (U_R ⊗ U_C)ᵀ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class Kronecker:
    """Σ_m = ⊕_g (U_R ⊗ U_C) diag(v) (U_R ⊗ U_C)ᵀ for each member m, over the weights of one layer.

    The weights of a layer are G matrices (O, I), one for each group of a grouped convolution (else G = 1), flat in
    row-major order: D = G O I. Both bases are orthogonal; a basis of None is the identity. Time O(D (O + I)) per
    vector, memory O(O² + I² + D).

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
        """D."""
        return self.variance_MGOI[0].numel()

    @property
    def noise_size(self) -> int:
        """Number of standard normals that `sqrt_matvec` turns into one sample: D."""
        return self.variance_MGOI[0].numel()

    def rotate(self, vector_MD: Tensor) -> Tensor:
        """Return (U_R ⊗ U_C)ᵀ x as grids, (..., M, G, O, I)."""
        grid = vector_MD.unflatten(-1, self.variance_MGOI.shape[1:])
        grid = grid if self.rows_MGOO is None else self.rows_MGOO.mT @ grid
        return grid if self.columns_MGII is None else grid @ self.columns_MGII

    def rotate_back(self, grid_MGOI: Tensor) -> Tensor:
        """Return (U_R ⊗ U_C) applied to grids (..., M, G, O, I), as vectors (..., M, D)."""
        grid = grid_MGOI if self.rows_MGOO is None else self.rows_MGOO @ grid_MGOI
        grid = grid if self.columns_MGII is None else grid @ self.columns_MGII.mT
        return grid.flatten(-3)

    def matvec(self, vector_MD: Tensor) -> Tensor:
        """Return Σ x, shape (..., M, D)."""
        return self.rotate_back(self.variance_MGOI * self.rotate(vector_MD))

    def solve(self, vector_MD: Tensor) -> Tensor:
        """Return Σ⁻¹ x, shape (..., M, D)."""
        return self.rotate_back(self.rotate(vector_MD) / self.variance_MGOI)

    def quadratic(self, vector_MD: Tensor) -> Tensor:
        """Return xᵀ Σ⁻¹ x, shape (..., M), float64."""
        return (self.rotate(vector_MD).square() / self.variance_MGOI).flatten(-3).sum(-1, dtype=torch.float64)

    def sqrt_matvec(self, noise_MZ: Tensor) -> Tensor:
        """Return R z with R Rᵀ = Σ, R = (U_R ⊗ U_C) diag(√v), shape (..., M, D), for noise (..., M, D)."""
        return self.rotate_back(self.variance_MGOI.sqrt() * noise_MZ.unflatten(-1, self.variance_MGOI.shape[1:]))

    def logdet(self) -> Tensor:
        """Return log det Σ, shape (M,), float64, in nats."""
        return self.variance_MGOI.double().log().flatten(1).sum(-1)

    def diagonal(self) -> Tensor:
        """Return the marginal variances, (M, D)."""
        grid = self.variance_MGOI
        grid = grid if self.rows_MGOO is None else self.rows_MGOO.square() @ grid
        return (grid if self.columns_MGII is None else grid @ self.columns_MGII.square().mT).flatten(1)

    def dense(self) -> Tensor:
        """Return Σ as matrices (M, D, D): for tests and small D."""
        size = self.noise_size
        identity = torch.eye(size, dtype=self.variance_MGOI.dtype, device=self.variance_MGOI.device)
        return self.matvec(identity.unsqueeze(1).expand(size, len(self.variance_MGOI), size)).transpose(0, 1)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that define the structure, by field name; bases that are None are left out."""
        named = {"variance_MGOI": self.variance_MGOI, "rows_MGOO": self.rows_MGOO, "columns_MGII": self.columns_MGII}
        return {name: tensor for name, tensor in named.items() if tensor is not None}
