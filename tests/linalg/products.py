"""Kronecker products in their bases, whole or not, written out as sums over eigenvalues."""

from __future__ import annotations

import torch
from torch import Tensor


def projectors(values: int, basis: Tensor | None) -> list[Tensor]:
    """Return u uᵀ of each column of a basis, and the projector on all other directions if it has a value of its own."""
    columns = torch.eye(values, dtype=torch.float64) if basis is None else basis
    actual = [torch.outer(column, column) for column in columns.T]
    rest = [torch.eye(len(columns), dtype=columns.dtype) - sum(actual, torch.zeros(()))]
    return actual + (rest if values > len(actual) else [])


def product(grid_GOI: Tensor, rows_GOO: Tensor | None, columns_GII: Tensor | None) -> Tensor:
    """Return ⊕_g Σ_jl v_jl (P_j ⊗ P_l), (D, D)."""
    groups = []
    for g, grid in enumerate(grid_GOI):
        rows = projectors(grid.shape[0], None if rows_GOO is None else rows_GOO[g])
        columns = projectors(grid.shape[1], None if columns_GII is None else columns_GII[g])
        terms = [grid[j, m] * torch.kron(p, q) for j, p in enumerate(rows) for m, q in enumerate(columns)]
        groups.append(torch.stack(terms).sum(0))
    return torch.block_diag(*groups)


def products(grid_MGOI: Tensor, rows_MGOO: Tensor | None, columns_MGII: Tensor | None) -> Tensor:
    """Return the product of every member, (M, D, D)."""
    sides = [[None] * len(grid_MGOI) if b is None else list(b) for b in (rows_MGOO, columns_MGII)]
    return torch.stack([product(*each) for each in zip(grid_MGOI, *sides, strict=True)])
