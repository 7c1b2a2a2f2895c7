"""Diagonal covariance, Σ = diag(v), and diagonal curvature, H = diag(h)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchbayes.linalg.curvature import Complete, Correlations, Part
from torchbayes.linalg.stored import Stored, double
from torchbayes.linalg.structure import Elementary, Form, Structure


@dataclass(frozen=True)
class Diagonal(Stored, Elementary):
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

    def precision_diagonal(self) -> Tensor:
        """Return diag Σ⁻¹, (M, D)."""
        return 1 / self.variance_MD

    def form(self, scale_MD: Tensor | None = None) -> Form:
        """Return diag(s) Σ diag(s) as diag(v)."""
        return Form(self.variance_MD if scale_MD is None else self.variance_MD * scale_MD**2)

    def dense(self) -> Tensor:
        """Return Σ as matrices (M, D, D): for tests and small D."""
        return torch.diag_embed(self.variance_MD)


@dataclass(frozen=True)
class DiagonalCurvature(Stored, Complete):
    """H_m = diag(h_m).

    Attributes:
        values_MD: h, at least 0, (M, D).
    """

    values_MD: Tensor

    kind: ClassVar[str] = "diagonal"
    correlations: ClassVar[Correlations] = "none"

    @property
    def size(self) -> int:
        """D."""
        return self.values_MD.shape[-1]

    def covariance(self, precision_D: Tensor) -> Diagonal:
        """Return diag(1/(h + d))."""
        return Diagonal(1 / (self.values_MD + precision_D))

    def plus(self, covariance: Structure, scale_MD: Tensor) -> DiagonalCurvature | None:
        """Return H + diag(c) Σ⁻¹ diag(c) for a diagonal Σ."""
        form = None if covariance.groups else covariance.form()
        if form is None or form.variance is None or not form.is_diagonal:
            return None
        return DiagonalCurvature(self.values_MD + scale_MD**2 / form.variance.flatten(1))

    def parts(self) -> Iterator[Part]:
        """Yield one part, whose weights are independent."""
        where = torch.arange(self.values_MD.shape[1], device=self.values_MD.device)
        yield Part(where, self.values_MD, True)

    def scaled(self, factor: float) -> DiagonalCurvature:
        """Return factor · H."""
        return DiagonalCurvature(factor * self.values_MD)

    def in_units(self, scale_D: Tensor) -> DiagonalCurvature:
        """Return diag(s) H diag(s)."""
        return DiagonalCurvature(self.values_MD * scale_D**2)

    def positive(self) -> DiagonalCurvature:
        """Return H in double precision."""
        return self.mapped(double)

    def undetermined(self, precision_D: Tensor) -> Tensor:
        """Return which h + d are 0, bool (M, D)."""
        return self.values_MD + precision_D <= 0

    def trace(self) -> Tensor:
        """Return tr H, (M,)."""
        return self.values_MD.sum(-1)

    def diagonal(self) -> Tensor:
        """Return h."""
        return self.values_MD

    def dense(self) -> Tensor:
        """Return H as matrices."""
        return torch.diag_embed(self.values_MD)
