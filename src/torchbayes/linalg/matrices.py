"""Operations on plain matrices: eigenvalues, Cholesky factors, Gram matrices and triangular inverses."""

from __future__ import annotations

import torch
from torch import Tensor

_SMALL = 128  # columns up to which a product of matrices is not worth dividing


def eigh(matrix_MDD: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues, ascending, and eigenvectors of symmetric matrices (..., D, D), in their dtype.

    In single precision LAPACK fails on some matrices of low rank, such as second moments of inputs that are mostly
    off, or returns NaN. These are computed again in double precision.
    """
    try:
        values, vectors = torch.linalg.eigh(matrix_MDD)
        if bool(torch.isfinite(values).all()):
            return values, vectors
    except RuntimeError:  # LinAlgError is one
        pass
    values, vectors = torch.linalg.eigh(matrix_MDD.double())
    return values.to(matrix_MDD), vectors.to(matrix_MDD)


def eigvalsh(matrix_MDD: Tensor) -> Tensor:
    """Return the eigenvalues that `eigh` does, without the vectors."""
    try:
        values = torch.linalg.eigvalsh(matrix_MDD)
        if bool(torch.isfinite(values).all()):
            return values
    except RuntimeError:
        pass
    return torch.linalg.eigvalsh(matrix_MDD.double()).to(matrix_MDD)


def add_gram_(total: Tensor, rows: Tensor) -> None:
    """Add XᵀX, X (..., B, n), to a symmetric `total` (..., n, n) in place.

    For many rows it takes about two thirds of the work, because blocks below the diagonal are those above it.
    """
    count, size = rows.shape[-2:]
    half = (size // 2 + 15) // 16 * 16  # a multiple of the machine's vectors
    if size <= _SMALL or count < 2 * size:  # then one product is faster
        total += rows.mT @ rows
        return
    first, last = rows[..., :half], rows[..., half:]
    add_gram_(total[..., :half, :half], first)
    add_gram_(total[..., half:, half:], last)
    total[..., :half, half:] += first.mT @ last
    total[..., half:, :half] = total[..., :half, half:].mT


def invert_lower_(matrix: Tensor) -> None:
    """Invert lower triangular matrices (..., n, n) in place, half by half, mostly by products of matrices.

    The inverse of [[A, 0], [B, C]] is [[A⁻¹, 0], [−C⁻¹ B A⁻¹, C⁻¹]].
    """
    half = matrix.shape[-1] // 2
    if half < _SMALL:
        identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        matrix.copy_(torch.linalg.solve_triangular(matrix, identity.expand_as(matrix), upper=False))
        return
    first, below, last = matrix[..., :half, :half], matrix[..., half:, :half], matrix[..., half:, half:]
    invert_lower_(first)
    invert_lower_(last)
    below.copy_(last @ (below @ first)).neg_()


def checked_cholesky(precision_MDD: Tensor) -> Tensor:
    """Return the lower Cholesky factors of symmetric matrices (..., D, D).

    Raises a ValueError if one is not positive definite; the message has its smallest eigenvalue.
    """
    root_MDD, info = torch.linalg.cholesky_ex(precision_MDD)
    if (info != 0).any():
        bad = precision_MDD[info != 0].reshape(-1, *precision_MDD.shape[-2:])[0]
        least = float(torch.linalg.eigvalsh(bad)[0]) if torch.isfinite(bad).all() else float("nan")
        raise ValueError(
            f"the posterior precision is not positive definite: its smallest eigenvalue is {least:g}. Start at a mode, "
            f"narrow the prior, work in float64, or use a curvature that cannot be negative, such as 'ggn'."
        )
    return root_MDD
