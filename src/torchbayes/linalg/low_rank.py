"""Low rank plus diagonal, as a covariance diag(v) + Fᵀ F or as a precision diag(p) + Fᵀ F; low-rank curvature Fᵀ F."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from torchbayes.linalg.curvature import Correlations, Curvature, LeftOut, Part
from torchbayes.linalg.matrices import eigvalsh
from torchbayes.linalg.stored import double
from torchbayes.linalg.structure import Form, Structure


@dataclass(frozen=True)
class LowRankPlusDiagonal(Structure):
    """Σ_m = diag(v_m) + F_mᵀ F_m for each member m; the rows of F are directions in weight space.

    Solves use the Woodbury identity and the determinant lemma: O(D R²) time, O(D R) memory.

    Attributes:
        variance_MD: diagonal part, (M, D), at least 0; `solve` and `logdet` need it above 0.
        factor_MRD: R directions, (M, R, D).
    """

    variance_MD: Tensor
    factor_MRD: Tensor

    kind: ClassVar[str] = "low_rank_plus_diagonal"

    @property
    def size(self) -> int:
        return self.variance_MD.shape[-1]

    @property
    def noise_size(self) -> int:
        """Number of standard normals that `sqrt_matvec` turns into one sample: D + R."""
        return self.variance_MD.shape[-1] + self.factor_MRD.shape[-2]

    def matvec(self, vector_MD: Tensor) -> Tensor:
        inner = torch.einsum("mrd,...md->...mr", self.factor_MRD, vector_MD)
        return self.variance_MD * vector_MD + torch.einsum("mrd,...mr->...md", self.factor_MRD, inner)

    def solve(self, vector_MD: Tensor) -> Tensor:
        """Return Σ⁻¹ x = V⁻¹x − V⁻¹Fᵀ (I + F V⁻¹ Fᵀ)⁻¹ F V⁻¹ x, shape (..., M, D)."""
        scaled = vector_MD / self.variance_MD
        inner = torch.einsum("mrd,...md->...mr", self.factor_MRD, scaled)
        inner = torch.cholesky_solve(inner.unsqueeze(-1), self._capacitance().to(inner)).squeeze(-1)
        return scaled - torch.einsum("mrd,...mr->...md", self.factor_MRD, inner) / self.variance_MD

    def quadratic(self, vector_MD: Tensor) -> Tensor:
        """Return xᵀ Σ⁻¹ x = |V^−½ (x − Fᵀ t)|² + |t|² with t = (I + F V⁻¹ Fᵀ)⁻¹ F V⁻¹ x, shape (..., M), float64."""
        factor_MRD, vector_MD = self.factor_MRD.double(), vector_MD.double()
        inner = torch.einsum("mrd,...md->...mr", factor_MRD, vector_MD / self.variance_MD)
        inner = torch.cholesky_solve(inner.unsqueeze(-1), self._capacitance()).squeeze(-1)
        residual = vector_MD - torch.einsum("mrd,...mr->...md", factor_MRD, inner)
        return (residual.square() / self.variance_MD).sum(-1) + inner.square().sum(-1)

    def sqrt_matvec(self, noise_MZ: Tensor) -> Tensor:
        """Return R z with R Rᵀ = Σ, shape (..., M, D), for noise (..., M, D + R): √v ∘ z₁ + Fᵀ z₂."""
        size = self.variance_MD.shape[-1]
        first, second = noise_MZ[..., :size], noise_MZ[..., size:]
        return self.variance_MD.sqrt() * first + torch.einsum("mrd,...mr->...md", self.factor_MRD, second)

    def logdet(self) -> Tensor:
        """Return log det Σ = log det V + log det (I + F V⁻¹ Fᵀ), shape (M,), float64, in nats."""
        inner = self._capacitance().diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return self.variance_MD.double().log().sum(-1) + 2 * inner

    def diagonal(self) -> Tensor:
        return self.variance_MD + (self.factor_MRD**2).sum(-2)

    def precision_diagonal(self) -> Tensor:
        """Refuse diag Σ⁻¹.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"the precision of a {self.kind} covariance has no diagonal in closed form.")

    def form(self, scale_MD: Tensor | None = None) -> Form:
        """Return diag(s) Σ diag(s) as diag(v) + Fᵀ F."""
        if scale_MD is None:
            return Form(self.variance_MD, directions_MRD=self.factor_MRD)
        return Form(self.variance_MD * scale_MD**2, directions_MRD=self.factor_MRD * scale_MD.unsqueeze(-2))

    def dense(self) -> Tensor:
        return torch.diag_embed(self.variance_MD) + self.factor_MRD.mT @ self.factor_MRD

    def _capacitance(self) -> Tensor:
        """Return the Cholesky factor of I + F V⁻¹ Fᵀ, (M, R, R), float64."""
        scaled = self.factor_MRD.double() / self.variance_MD.unsqueeze(-2)
        rank = self.factor_MRD.shape[-2]
        identity = torch.eye(rank, dtype=scaled.dtype, device=scaled.device)
        return torch.linalg.cholesky(identity + scaled @ self.factor_MRD.mT.double())


@dataclass(frozen=True)
class LowRankPrecision(Structure):
    """Σ_m⁻¹ = diag(p_m) + F_mᵀ F_m for each member m: a wide prior narrowed in a few directions of curvature.

    With F diag(p)^−½ = V diag(s) Wᵀ, Σ = diag(p)^−½ (I − W diag(s²/(1 + s²)) Wᵀ) diag(p)^−½, and its inner part has
    the symmetric root I − W diag(1 − (1 + s²)^−½) Wᵀ. O(D R²) time once, then O(D R).

    Attributes:
        precision_MD: p, positive, (M, D).
        factor_MRD: F, R directions, (M, R, D).
    """

    precision_MD: Tensor
    factor_MRD: Tensor

    kind: ClassVar[str] = "low_rank_precision"

    @property
    def size(self) -> int:
        return self.precision_MD.shape[-1]

    @cached_property
    def _spectrum(self) -> tuple[Tensor, Tensor]:
        """Squares of the singular values s, (M, R), and W as rows, (M, R, D)."""
        _, values_MR, rows_MRD = torch.linalg.svd(
            self.factor_MRD * self.precision_MD.rsqrt().unsqueeze(-2), full_matrices=False
        )
        return values_MR.square(), rows_MRD

    def matvec(self, vector_MD: Tensor) -> Tensor:
        root, (squares_MR, rows_MRD) = self.precision_MD.rsqrt(), self._spectrum
        return root * _damped(root * vector_MD, rows_MRD, squares_MR / (1 + squares_MR))

    def solve(self, vector_MD: Tensor) -> Tensor:
        """Return Σ⁻¹ x = p ∘ x + Fᵀ F x, shape (..., M, D)."""
        inner = torch.einsum("mrd,...md->...mr", self.factor_MRD, vector_MD)
        return self.precision_MD * vector_MD + torch.einsum("mrd,...mr->...md", self.factor_MRD, inner)

    def quadratic(self, vector_MD: Tensor) -> Tensor:
        """Return xᵀ Σ⁻¹ x = |p^½ ∘ x|² + |F x|², shape (..., M), float64."""
        inner = torch.einsum("mrd,...md->...mr", self.factor_MRD.double(), vector_MD.double())
        return (self.precision_MD * vector_MD.square()).sum(-1, dtype=torch.float64) + inner.square().sum(-1)

    def sqrt_matvec(self, noise_MZ: Tensor) -> Tensor:
        squares_MR, rows_MRD = self._spectrum
        return self.precision_MD.rsqrt() * _damped(noise_MZ, rows_MRD, 1 - (1 + squares_MR).rsqrt())

    def logdet(self) -> Tensor:
        """Return log det Σ = −Σ log p − Σ log(1 + s²), shape (M,), float64, in nats."""
        of_diagonal = -self.precision_MD.double().log().sum(-1)
        return of_diagonal - self._spectrum[0].double().log1p().sum(-1)

    def diagonal(self) -> Tensor:
        squares_MR, rows_MRD = self._spectrum
        removed_MD = torch.einsum("mrd,mr->md", rows_MRD.square(), squares_MR / (1 + squares_MR))
        return (1 - removed_MD) / self.precision_MD

    def precision_diagonal(self) -> Tensor:
        return self.precision_MD + self.factor_MRD.square().sum(-2)

    def form(self, scale_MD: Tensor | None = None) -> Form:
        """Return diag(s) Σ diag(s) as 1/p minus the shares s²/(1 + s²) that F takes of it, in its directions W."""
        if scale_MD is not None:
            scale_M1D = scale_MD.unsqueeze(-2)
            return LowRankPrecision(self.precision_MD / scale_MD**2, self.factor_MRD / scale_M1D).form()
        squares_MR, rows_MRD = self._spectrum
        directions_MRD = rows_MRD * self.precision_MD.rsqrt().unsqueeze(-2)
        shares_MR = squares_MR / (1 + squares_MR)
        return Form(1 / self.precision_MD, directions_MRD=directions_MRD, shares_MR=shares_MR, sign=-1)

    def dense(self) -> Tensor:
        return torch.linalg.inv(torch.diag_embed(self.precision_MD) + self.factor_MRD.mT @ self.factor_MRD)


def _damped(vector_MD: Tensor, rows_MRD: Tensor, shares_MR: Tensor) -> Tensor:
    """Return x − W diag(shares) Wᵀ x."""
    inner = torch.einsum("mrd,...md->...mr", rows_MRD, vector_MD) * shares_MR
    return vector_MD - torch.einsum("mrd,...mr->...md", rows_MRD, inner)


@dataclass(frozen=True)
class LowRankCurvature(Curvature):
    """H_m = F_mᵀ F_m, the largest part of a curvature, with what the evidence needs to know of the rest (`dropped`).

    Attributes:
        factor_MRD: F, R directions, (M, R, D).
        rest_MD: diagonal of the rest, at least 0, (M, D).
        squares_M: sum of the squares of the rest's eigenvalues, (M,).
        room_M: largest rank that F and the rest can have together, (M,).
    """

    factor_MRD: Tensor
    rest_MD: Tensor
    squares_M: Tensor
    room_M: Tensor

    kind: ClassVar[str] = "low_rank"
    correlations: ClassVar[Correlations] = "some"

    @property
    def size(self) -> int:
        return self.factor_MRD.shape[-1]

    def covariance(self, precision_D: Tensor) -> LowRankPrecision:
        """Return (FᵀF + diag(d))⁻¹."""
        members, _, size = self.factor_MRD.shape
        return LowRankPrecision(precision_D.expand(members, size), self.factor_MRD)

    def plus(self, covariance: Structure, scale_MD: Tensor) -> None:
        """Return None, because the sum with a precision has no low rank."""

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The rest."""
        where = torch.arange(self.size, device=self.factor_MRD.device)
        return (LeftOut(where, _kept(self.factor_MRD), self.rest_MD, self.squares_M, self.room_M),)

    def parts(self) -> Iterator[Part]:
        """Yield one part; all but R eigenvalues are 0."""
        members, rank, size = self.factor_MRD.shape
        zeros, values = self.factor_MRD.new_zeros(members, max(0, size - rank)), _kept(self.factor_MRD)
        yield Part(torch.arange(size, device=values.device), torch.cat([zeros, values], dim=1)[:, -size:], False)

    def scaled(self, factor: float) -> LowRankCurvature:
        rest_MD, squares_M = factor * self.rest_MD, factor**2 * self.squares_M
        return LowRankCurvature(factor**0.5 * self.factor_MRD, rest_MD, squares_M, self.room_M)

    def in_units(self, scale_D: Tensor) -> LowRankCurvature:
        """Return diag(s) H diag(s); the rest's eigenvalues are assumed to grow as their sum, exact for one unit."""
        rest_MD, tiny = self.rest_MD * scale_D**2, torch.finfo(torch.float64).tiny
        ratio_M = rest_MD.sum(-1, dtype=torch.float64) / self.rest_MD.sum(-1, dtype=torch.float64).clamp_min(tiny)
        squares_M = self.squares_M * (ratio_M**2).to(rest_MD)
        return LowRankCurvature(self.factor_MRD * scale_D, rest_MD, squares_M, self.room_M)

    def positive(self) -> LowRankCurvature:
        return self.mapped(double)

    def undetermined(self, precision_D: Tensor) -> Tensor:
        """Return which weights have no precision except in a few directions, bool (M, D)."""
        return (precision_D == 0).expand(len(self.factor_MRD), -1)

    def trace(self) -> Tensor:
        return self.factor_MRD.square().sum((-2, -1))

    def diagonal(self) -> Tensor:
        return self.factor_MRD.square().sum(-2)

    def dense(self) -> Tensor:
        return self.factor_MRD.mT @ self.factor_MRD


def _kept(factor_MRD: Tensor) -> Tensor:
    """Return the eigenvalues of FᵀF that its rank allows to be above 0, (M, R)."""
    return eigvalsh(factor_MRD @ factor_MRD.mT).clamp_min(0)
