"""Dense covariance: Σ = R Rᵀ with a triangular root."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

_SMALL = 128  # columns of a product of matrices that is not worth cutting up


@dataclass(frozen=True)
class Dense:
    """Σ_m = R_m R_mᵀ for each member m.

    The root is upper triangular: with a precision P = C Cᵀ (C its Cholesky factor) it is R = C⁻ᵀ, so that no matrix
    is inverted twice. Time O(D²) per vector, memory O(D²).

    Attributes:
        root_MDD: R, upper triangular with a positive diagonal, (M, D, D).
    """

    root_MDD: Tensor

    kind: ClassVar[str] = "dense"

    @property
    def size(self) -> int:
        """D."""
        return self.root_MDD.shape[-1]

    @classmethod
    def of_precision(cls, precision_MDD: Tensor) -> Dense:
        """Return the covariance P⁻¹.

        Args:
            precision_MDD: P, symmetric, (M, D, D).

        Returns:
            The structure.

        Raises:
            ValueError: if a matrix is not positive definite.
        """
        root_MDD = checked_cholesky(precision_MDD)
        del precision_MDD  # which is as large as all there is here, and the caller has mostly let go of
        invert_lower_(root_MDD)
        return cls(root_MDD.mT.contiguous())

    @property
    def noise_size(self) -> int:
        """Number of standard normals that `sqrt_matvec` turns into one sample: D."""
        return self.root_MDD.shape[-1]

    def matvec(self, vector_MD: Tensor) -> Tensor:
        """Return Σ x = R Rᵀ x, shape (..., M, D)."""
        inner = torch.einsum("mij,...mi->...mj", self.root_MDD, vector_MD)
        return torch.einsum("mij,...mj->...mi", self.root_MDD, inner)

    def solve(self, vector_MD: Tensor) -> Tensor:
        """Return Σ⁻¹ x = R⁻ᵀ R⁻¹ x, shape (..., M, D)."""
        inner = torch.linalg.solve_triangular(self.root_MDD, vector_MD.unsqueeze(-1), upper=True)
        return torch.linalg.solve_triangular(self.root_MDD.mT, inner, upper=False).squeeze(-1)

    def quadratic(self, vector_MD: Tensor) -> Tensor:
        """Return xᵀ Σ⁻¹ x = |R⁻¹ x|², shape (..., M), float64."""
        inner = torch.linalg.solve_triangular(self.root_MDD, vector_MD.unsqueeze(-1), upper=True)
        return inner.squeeze(-1).square().sum(-1, dtype=torch.float64)

    def sqrt_matvec(self, noise_MZ: Tensor) -> Tensor:
        """Return R z, shape (..., M, D), for noise (..., M, D)."""
        return torch.einsum("mij,...mj->...mi", self.root_MDD, noise_MZ)

    def logdet(self) -> Tensor:
        """Return log det Σ, shape (M,), float64, in nats."""
        return 2 * self.root_MDD.diagonal(dim1=-2, dim2=-1).double().log().sum(-1)

    def diagonal(self) -> Tensor:
        """Return the marginal variances, (M, D)."""
        return self.root_MDD.square().sum(-1)

    def dense(self) -> Tensor:
        """Return Σ as matrices (M, D, D)."""
        return self.root_MDD @ self.root_MDD.mT

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that define the structure, by field name."""
        return {"root_MDD": self.root_MDD}


def eigh(matrix_MDD: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues, ascending, and eigenvectors of symmetric matrices (..., D, D), in their dtype.

    In single precision LAPACK gives up on some matrices of low rank, such as second moments of inputs most of which are
    never on; these are done again in double precision.
    """
    try:
        values, vectors = torch.linalg.eigh(matrix_MDD)
    except RuntimeError:  # LinAlgError is one
        values, vectors = torch.linalg.eigh(matrix_MDD.double())
    return values.to(matrix_MDD), vectors.to(matrix_MDD)


def eigvalsh(matrix_MDD: Tensor) -> Tensor:
    """Return the eigenvalues that `eigh` does, without the vectors."""
    try:
        return torch.linalg.eigvalsh(matrix_MDD)
    except RuntimeError:
        return torch.linalg.eigvalsh(matrix_MDD.double()).to(matrix_MDD)


def add_gram_(total: Tensor, rows: Tensor) -> None:
    """Add XᵀX in place; of many rows with about two thirds of the work, as blocks below the diagonal are those above.

    Args:
        total: symmetric, (..., n, n).
        rows: X, (..., B, n).
    """
    count, size = rows.shape[-2:]
    half = (size // 2 + 15) // 16 * 16  # whole vectors of the machine
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

    Raises:
        ValueError: if one is not positive definite; the message tells its smallest eigenvalue.
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
