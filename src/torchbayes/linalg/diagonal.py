"""Diagonal covariance: Σ = diag(v)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class Diagonal:
    """Σ_m = diag(v_m) for each member m.

    Attributes:
        variance_MD: diagonal entries, (M, D), at least 0; `solve` and `logdet` need them above 0.
    """

    variance_MD: Tensor

    kind: ClassVar[str] = "diagonal"

    @property
    def size(self) -> int:
        """D."""
        return self.variance_MD.shape[-1]

    @property
    def noise_size(self) -> int:
        """Number of standard normals that `sqrt_matvec` turns into one sample: D."""
        return self.variance_MD.shape[-1]

    def matvec(self, vector_MD: Tensor) -> Tensor:
        """Return Σ x, shape (..., M, D)."""
        return self.variance_MD * vector_MD

    def solve(self, vector_MD: Tensor) -> Tensor:
        """Return Σ⁻¹ x, shape (..., M, D)."""
        return vector_MD / self.variance_MD

    def quadratic(self, vector_MD: Tensor) -> Tensor:
        """Return xᵀ Σ⁻¹ x, shape (..., M), float64."""
        return (vector_MD.square() / self.variance_MD).sum(-1, dtype=torch.float64)

    def sqrt_matvec(self, noise_MZ: Tensor) -> Tensor:
        """Return R z with R Rᵀ = Σ, shape (..., M, D), for noise (..., M, D)."""
        return self.variance_MD.sqrt() * noise_MZ

    def logdet(self) -> Tensor:
        """Return log det Σ, shape (M,), float64, in nats."""
        return self.variance_MD.double().log().sum(-1)

    def diagonal(self) -> Tensor:
        """Return the marginal variances, (M, D)."""
        return self.variance_MD

    def dense(self) -> Tensor:
        """Return Σ as matrices (M, D, D): for tests and small D."""
        return torch.diag_embed(self.variance_MD)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that define the structure, by field name."""
        return {"variance_MD": self.variance_MD}
