"""Orthonormal bases of which only k of n columns are held, for matrices with one eigenvalue in all other directions.

A basis (..., n, k) with k < n is incomplete: Q stands for itself and all directions orthogonal to it. Values along it
are k + 1, the last of them that of each of the other n − k directions:

    f(A) = Q diag(f(v_1), ..., f(v_k)) Qᵀ + f(v_{k+1}) (I − Q Qᵀ)

Its coordinates of a vector x are the k + n numbers (Qᵀx, x − Q Qᵀx), a tight frame: they keep lengths, and f(A) scales
each of them. So an incomplete basis takes time and memory O(n k), where the whole one takes O(n²). None stands for the
identity. A basis with k ≥ n columns has as many values and coordinates as columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

_PRODUCTS = "...ti,...ij->...tj", "...tj,...ij->...ti"  # X U and X Uᵀ


def is_whole(basis: Tensor | None) -> bool:
    """Return whether a basis spans the space, so that its values are those of its columns alone."""
    return basis is None or basis.shape[-1] >= basis.shape[-2]


def side(values: int, basis: Tensor | None) -> int:
    """Return n, of a basis with that many values."""
    return values if basis is None else basis.shape[-2]


def shape_of(grid: Tensor, rows: Tensor | None, columns: Tensor | None) -> tuple[int, int, int]:
    """Return (G, O, I) of the matrices whose eigenvalues on two bases are a grid (..., G, k_O, k_I)."""
    return grid.shape[-3], side(grid.shape[-2], rows), side(grid.shape[-1], columns)


def coordinates(vectors: Tensor, basis: Tensor | None, products: tuple[str, str] = _PRODUCTS) -> Tensor:
    """Return the coordinates of vectors (..., t, n): (..., t, k), or (..., t, k + n) in an incomplete basis.

    `products` are X U and X Uᵀ for `torch.einsum`, where axes are in another order.
    """
    if basis is None:
        return vectors
    inner = torch.einsum(products[0], vectors, basis)
    return inner if is_whole(basis) else torch.cat([inner, vectors - torch.einsum(products[1], inner, basis)], dim=-1)


def combined(values: Tensor, basis: Tensor | None) -> Tensor:
    """Return the vectors (..., t, n) with these coordinates, after any function of the matrix has scaled them."""
    if basis is None:
        return values
    inner = values[..., : basis.shape[-1]] @ basis.mT
    return inner if is_whole(basis) else inner + values[..., basis.shape[-1] :]


def spread(grid: Tensor, rows: Tensor | None, columns: Tensor | None) -> Tensor:
    """Return values on a grid (..., k_O, k_I) for each coordinate, whose last one is that of many."""
    for axis, basis in ((-1, columns), (-2, rows)):
        if basis is not None and not is_whole(basis):
            first, last = grid.split([basis.shape[-1], 1], dim=axis)
            grid = torch.cat([first, last.repeat_interleave(basis.shape[-2], dim=axis)], dim=axis)
    return grid


def counts(grid: Tensor, rows: Tensor | None, columns: Tensor | None) -> Tensor:
    """Return how many directions have each value of a grid, int64 (k_O, k_I)."""
    each = []
    for size, basis in ((grid.shape[-2], rows), (grid.shape[-1], columns)):
        many = torch.ones(size, dtype=torch.int64, device=grid.device)
        if basis is not None and not is_whole(basis):
            many[-1] = basis.shape[-2] - basis.shape[-1]
        each.append(many)
    return each[0].unsqueeze(-1) * each[1]


def squares(basis: Tensor) -> Tensor:
    """Return diag(u uᵀ) for each value of a basis as columns, (..., n, k) or (..., n, k + 1)."""
    squares = basis.square()
    return (
        squares if is_whole(basis) else torch.cat([squares, (1 - squares.sum(-1, keepdim=True)).clamp_min(0)], dim=-1)
    )


def frame(basis: Tensor) -> Tensor:
    """Return the matrix X U of which gives coordinates, (..., n, k) or (..., n, k + n)."""
    if is_whole(basis):
        return basis
    identity = torch.eye(basis.shape[-2], dtype=basis.dtype, device=basis.device)
    return coordinates(identity.expand(*basis.shape[:-2], -1, -1), basis)


def completed(grid: Tensor, rows: Tensor | None, columns: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the grid and bases of the same matrices with all n directions of each side."""
    whole: list[Tensor | None] = []
    for axis, basis in ((-2, rows), (-1, columns)):
        if basis is None or is_whole(basis):
            whole.append(basis)
            continue
        size, kept = basis.shape[-2:]
        grid = grid.index_select(axis, torch.arange(size, device=grid.device).clamp_max(kept))
        directions = torch.linalg.qr(basis, mode="complete").Q[..., kept:]
        whole.append(torch.cat([basis, directions], dim=-1))
    return grid, whole[0], whole[1]
