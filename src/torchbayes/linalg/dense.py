"""Dense covariance, Σ = R Rᵀ with a triangular root, and dense curvature."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from torchbayes.linalg.curvature import LOADING, Correlations, Curvature, Part, is_rounding
from torchbayes.linalg.matrices import checked_cholesky, eigh, eigvalsh, invert_lower_
from torchbayes.linalg.structure import Form, Structure


@dataclass(frozen=True)
class Dense(Structure):
    """Σ_m = R_m R_mᵀ for each member m.

    The root is upper triangular. For a precision P = C Cᵀ with Cholesky factor C it is R = C⁻ᵀ, so no matrix is
    inverted twice. Time O(D²) per vector, memory O(D²).

    Attributes:
        root_MDD: R, upper triangular with a positive diagonal, (M, D, D).
    """

    root_MDD: Tensor

    kind: ClassVar[str] = "dense"

    @property
    def size(self) -> int:
        return self.root_MDD.shape[-1]

    @classmethod
    def of_precision(cls, precision_MDD: Tensor) -> Dense:
        """Return the covariance P⁻¹.

        Args:
            precision_MDD: P, symmetric, (M, D, D); a ValueError is raised if one is not positive definite.
        """
        root_MDD = checked_cholesky(precision_MDD)
        del precision_MDD  # frees a large matrix, which most callers no longer hold
        invert_lower_(root_MDD)
        return cls(root_MDD.mT.contiguous())

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
        return torch.einsum("mij,...mj->...mi", self.root_MDD, noise_MZ)

    def logdet(self) -> Tensor:
        return 2 * self.root_MDD.diagonal(dim1=-2, dim2=-1).double().log().sum(-1)

    def diagonal(self) -> Tensor:
        return self.root_MDD.square().sum(-1)

    def precision_diagonal(self) -> Tensor:
        return torch.linalg.inv(self.root_MDD).square().sum(-2)

    def form(self, scale_MD: Tensor | None = None) -> Form:
        """Return diag(s) Σ diag(s) by its root diag(s) R."""
        return Form(root_MDZ=self.root_MDD if scale_MD is None else scale_MD.unsqueeze(-1) * self.root_MDD)

    def dense(self) -> Tensor:
        return self.root_MDD @ self.root_MDD.mT


@dataclass(frozen=True)
class DenseCurvature(Curvature):
    """H_m as a matrix.

    Attributes:
        matrix_MDD: H, symmetric, (M, D, D).
    """

    matrix_MDD: Tensor

    kind: ClassVar[str] = "dense"
    correlations: ClassVar[Correlations] = "all"

    @property
    def size(self) -> int:
        return self.matrix_MDD.shape[-1]

    def covariance(self, precision_D: Tensor) -> Dense:
        """Return (H + diag(d))⁻¹; a ValueError is raised if H + diag(d) is not positive definite."""
        return Dense.of_precision(_with_diagonal(self.matrix_MDD, precision_D))

    def plus(self, covariance: Structure, scale_MD: Tensor) -> DenseCurvature:
        """Return H + diag(c) Σ⁻¹ diag(c) for any Σ."""
        inverse = torch.linalg.inv(covariance.dense().double()).to(scale_MD)
        return DenseCurvature(self.matrix_MDD + scale_MD.unsqueeze(-1) * inverse * scale_MD.unsqueeze(-2))

    @cached_property
    def _eigenvalues_ME(self) -> Tensor:
        return eigvalsh(self.matrix_MDD)

    def parts(self) -> Iterator[Part]:
        where = torch.arange(self.matrix_MDD.shape[-1], device=self.matrix_MDD.device)
        yield Part(where, self._eigenvalues_ME, False)

    def scaled(self, factor: float) -> DenseCurvature:
        return DenseCurvature(factor * self.matrix_MDD)

    def in_units(self, scale_D: Tensor) -> DenseCurvature:
        return DenseCurvature(self.matrix_MDD * scale_D.unsqueeze(-1) * scale_D)

    def positive(self) -> DenseCurvature:
        """Return H in double precision, with a larger diagonal if rounding took eigenvalues below 0."""
        matrix_MDD = self.matrix_MDD.double()
        below_M1 = -eigvalsh(matrix_MDD)[:, :1].clamp_max(0)
        return DenseCurvature(_with_diagonal(matrix_MDD, 2 * below_M1))  # twice, because that is rounded too

    def undetermined(self, precision_D: Tensor) -> Tensor:
        """Return which weights lie in directions in which H + diag(d) is 0 up to rounding, bool (M, D).

        Rounding is D ε times the largest eigenvalue of matrices scaled to a diagonal of ones, so units do not matter.
        """
        total_MD = self.diagonal() + precision_D
        root_MD = torch.where(total_MD > 0, total_MD, 1.0).rsqrt()
        matrix_MDD = self.matrix_MDD * root_MD.unsqueeze(-1) * root_MD.unsqueeze(-2)
        matrix_MDD.diagonal(dim1=-2, dim2=-1).add_(precision_D * root_MD**2)
        values_ME, vectors_MDE = eigh(matrix_MDD)
        return (vectors_MDE.square() * is_rounding(values_ME).unsqueeze(-2)).sum(-1) > LOADING

    def trace(self) -> Tensor:
        return self.diagonal().sum(-1)

    def diagonal(self) -> Tensor:
        return self.matrix_MDD.diagonal(dim1=-2, dim2=-1)

    def dense(self) -> Tensor:
        return self.matrix_MDD


def _with_diagonal(matrix_MDD: Tensor, added_D: Tensor) -> Tensor:
    """Return matrices with d added to their diagonal, (M, D, D)."""
    total_MDD = matrix_MDD.clone()
    total_MDD.diagonal(dim1=-2, dim2=-1).add_(added_D)
    return total_MDD
