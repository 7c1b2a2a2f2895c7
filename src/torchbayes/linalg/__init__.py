"""Covariance structures with one set of operations: matvec, solve, sqrt_matvec, logdet, diagonal, dense.

Every structure carries the member axis M. A structure is added by writing a class with the operations of `Structure`
and a line in `STRUCTURES`.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from torchbayes.linalg.diagonal import Diagonal
from torchbayes.linalg.low_rank import LowRankPlusDiagonal


class Structure(Protocol):
    """A symmetric positive matrix per member, known through its operations."""

    @property
    def noise_size(self) -> int:
        """Number of standard normals that `sqrt_matvec` turns into one sample."""
        ...

    def matvec(self, vector_MD: Tensor) -> Tensor:
        """Return Σ x."""
        ...

    def solve(self, vector_MD: Tensor) -> Tensor:
        """Return Σ⁻¹ x."""
        ...

    def sqrt_matvec(self, noise_MZ: Tensor) -> Tensor:
        """Return R z with R Rᵀ = Σ."""
        ...

    def logdet(self) -> Tensor:
        """Return log det Σ."""
        ...

    def diagonal(self) -> Tensor:
        """Return diag Σ."""
        ...

    def dense(self) -> Tensor:
        """Return Σ as matrices."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that define the structure, by field name."""
        ...


STRUCTURES: dict[str, type[Diagonal] | type[LowRankPlusDiagonal]] = {
    "diagonal": Diagonal,
    "low_rank_plus_diagonal": LowRankPlusDiagonal,
}

__all__ = ["STRUCTURES", "Diagonal", "LowRankPlusDiagonal", "Structure"]
