"""Diagonal covariance, Σ = diag(v), and diagonal curvature, H = diag(h)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchbayes.linalg.curvature import Correlations, Curvature, Part
from torchbayes.linalg.stored import double
from torchbayes.linalg.structure import Form, Structure


@dataclass(frozen=True)
class Diagonal(Structure):
    """Σ_m = diag(v_m) for each member m.

    Attributes:
        variance_MD: diagonal entries, (M, D), at least 0; `solve` and `logdet` need them above 0.
    """

    variance_MD: Tensor

    kind: ClassVar[str] = "diagonal"

    @property
    def size(self) -> int:
        return self.variance_MD.shape[-1]

    def matvec(self, vector_MD: Tensor) -> Tensor:
        return self.variance_MD * vector_MD

    def solve(self, vector_MD: Tensor) -> Tensor:
        return vector_MD / self.variance_MD

    def quadratic(self, vector_MD: Tensor) -> Tensor:
        return (vector_MD.square() / self.variance_MD).sum(-1, dtype=torch.float64)

    def sqrt_matvec(self, noise_MZ: Tensor) -> Tensor:
        return self.variance_MD.sqrt() * noise_MZ

    def logdet(self) -> Tensor:
        return self.variance_MD.double().log().sum(-1)

    def diagonal(self) -> Tensor:
        return self.variance_MD

    def precision_diagonal(self) -> Tensor:
        return 1 / self.variance_MD

    def form(self, scale_MD: Tensor | None = None) -> Form:
        """Return diag(s) Σ diag(s) as diag(v)."""
        return Form(self.variance_MD if scale_MD is None else self.variance_MD * scale_MD**2)

    def dense(self) -> Tensor:
        return torch.diag_embed(self.variance_MD)


@dataclass(frozen=True)
class DiagonalCurvature(Curvature):
    """H_m = diag(h_m).

    Attributes:
        values_MD: h, at least 0, (M, D).
    """

    values_MD: Tensor

    kind: ClassVar[str] = "diagonal"
    correlations: ClassVar[Correlations] = "none"

    @property
    def size(self) -> int:
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
        return DiagonalCurvature(factor * self.values_MD)

    def in_units(self, scale_D: Tensor) -> DiagonalCurvature:
        return DiagonalCurvature(self.values_MD * scale_D**2)

    def positive(self) -> DiagonalCurvature:
        return self.mapped(double)

    def undetermined(self, precision_D: Tensor) -> Tensor:
        """Return which h + d are 0, bool (M, D)."""
        return self.values_MD + precision_D <= 0

    def trace(self) -> Tensor:
        return self.values_MD.sum(-1)

    def diagonal(self) -> Tensor:
        return self.values_MD

    def dense(self) -> Tensor:
        return torch.diag_embed(self.values_MD)
