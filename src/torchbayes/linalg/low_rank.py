"""Low-rank plus diagonal covariance: Σ = diag(v) + Fᵀ F."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LowRankPlusDiagonal:
    """Σ_m = diag(v_m) + F_mᵀ F_m for each member m; the rows of F are directions in weight space.

    Solves use the Woodbury identity and the determinant lemma: O(D R²) time, O(D R) memory.

    Attributes:
        variance_MD: diagonal part, (M, D), at least 0; `solve` and `logdet` need it above 0.
        factor_MRD: R directions, (M, R, D).
    """

    variance_MD: Tensor
    factor_MRD: Tensor

    @property
    def noise_size(self) -> int:
        """Number of standard normals that `sqrt_matvec` turns into one sample: D + R."""
        return self.variance_MD.shape[-1] + self.factor_MRD.shape[-2]

    def matvec(self, vector_MD: Tensor) -> Tensor:
        """Return Σ x, shape (..., M, D)."""
        inner = torch.einsum("mrd,...md->...mr", self.factor_MRD, vector_MD)
        return self.variance_MD * vector_MD + torch.einsum("mrd,...mr->...md", self.factor_MRD, inner)

    def solve(self, vector_MD: Tensor) -> Tensor:
        """Return Σ⁻¹ x = V⁻¹x − V⁻¹Fᵀ (I + F V⁻¹ Fᵀ)⁻¹ F V⁻¹ x, shape (..., M, D)."""
        scaled = vector_MD / self.variance_MD
        inner = torch.einsum("mrd,...md->...mr", self.factor_MRD, scaled)
        inner = torch.cholesky_solve(inner.unsqueeze(-1), self._capacitance()).squeeze(-1)
        return scaled - torch.einsum("mrd,...mr->...md", self.factor_MRD, inner) / self.variance_MD

    def sqrt_matvec(self, noise_MZ: Tensor) -> Tensor:
        """Return R z with R Rᵀ = Σ, shape (..., M, D), for noise (..., M, D + R): √v ∘ z₁ + Fᵀ z₂."""
        size = self.variance_MD.shape[-1]
        first, second = noise_MZ[..., :size], noise_MZ[..., size:]
        return self.variance_MD.sqrt() * first + torch.einsum("mrd,...mr->...md", self.factor_MRD, second)

    def logdet(self) -> Tensor:
        """Return log det Σ = log det V + log det (I + F V⁻¹ Fᵀ), shape (M,), in nats."""
        inner = self._capacitance().diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return self.variance_MD.log().sum(-1) + 2 * inner

    def diagonal(self) -> Tensor:
        """Return the marginal variances, (M, D)."""
        return self.variance_MD + (self.factor_MRD**2).sum(-2)

    def dense(self) -> Tensor:
        """Return Σ as matrices (M, D, D): for tests and small D."""
        return torch.diag_embed(self.variance_MD) + self.factor_MRD.mT @ self.factor_MRD

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that define the structure, by field name."""
        return {"variance_MD": self.variance_MD, "factor_MRD": self.factor_MRD}

    def _capacitance(self) -> Tensor:
        """Return the Cholesky factor of I + F V⁻¹ Fᵀ, (M, R, R)."""
        scaled = self.factor_MRD / self.variance_MD.unsqueeze(-2)
        rank = self.factor_MRD.shape[-2]
        identity = torch.eye(rank, dtype=scaled.dtype, device=scaled.device)
        return torch.linalg.cholesky(identity + scaled @ self.factor_MRD.mT)
