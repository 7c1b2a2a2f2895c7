"""A structure that the package does not have, as a user would add it: one class, and one line in the table of files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tests.oracles import normal
from torchbayes.linalg import STRUCTURES, Structure


@dataclass(frozen=True)
class Circulant(Structure):
    """Σ_m, whose row i is that above it turned by one place: Σ = Uᴴ diag(λ) U with U the Fourier transform.

    Attributes:
        spectrum_MD: λ, positive, the same for both signs of a frequency, (M, D).
    """

    spectrum_MD: Tensor

    kind: ClassVar[str] = "circulant"

    @property
    def size(self) -> int:
        """D."""
        return self.spectrum_MD.shape[-1]

    def matvec(self, vector_MD: Tensor) -> Tensor:
        """Return Σ x."""
        return filtered(vector_MD, self.spectrum_MD)

    def solve(self, vector_MD: Tensor) -> Tensor:
        """Return Σ⁻¹ x."""
        return filtered(vector_MD, 1 / self.spectrum_MD)

    def quadratic(self, vector_MD: Tensor) -> Tensor:
        """Return xᵀ Σ⁻¹ x."""
        return filtered(vector_MD, self.spectrum_MD.rsqrt()).square().sum(-1, dtype=torch.float64)

    def sqrt_matvec(self, noise_MZ: Tensor) -> Tensor:
        """Return Σ^½ z."""
        return filtered(noise_MZ, self.spectrum_MD.sqrt())

    def logdet(self) -> Tensor:
        """Return log det Σ."""
        return self.spectrum_MD.double().log().sum(-1)

    def diagonal(self) -> Tensor:
        """Return diag Σ."""
        return self.spectrum_MD.mean(-1, keepdim=True).expand_as(self.spectrum_MD)

    def precision_diagonal(self) -> Tensor:
        """Return diag Σ⁻¹."""
        return (1 / self.spectrum_MD).mean(-1, keepdim=True).expand_as(self.spectrum_MD)

    def dense(self) -> Tensor:
        """Return Σ as matrices."""
        identity = torch.eye(self.size, dtype=self.spectrum_MD.dtype).unsqueeze(1)
        return self.matvec(identity.expand(-1, len(self.spectrum_MD), -1)).transpose(0, 1)


STRUCTURES[Circulant.kind] = Circulant


def filtered(vector_MD: Tensor, spectrum_MD: Tensor) -> Tensor:
    """Return vectors whose frequencies are multiplied by a spectrum."""
    return torch.fft.ifft(spectrum_MD * torch.fft.fft(vector_MD)).real


def circulant(members: int, size: int, seed: int = 12) -> Circulant:
    """Return a structure with a random spectrum."""
    half = normal(members, size, seed=seed).exp()
    return Circulant((half + half[:, -torch.arange(size)]) / 2)


def circulant_matrices(structure: Circulant) -> Tensor:
    """Return Σ, (M, D, D), row by row: cosines of its spectrum, turned by one place each."""
    size = structure.size
    angles = 2 * torch.pi / size * torch.arange(size, dtype=torch.float64)
    turned = torch.arange(size).unsqueeze(0) - torch.arange(size).unsqueeze(1)
    rows = torch.stack([(structure.spectrum_MD * (angles * lag).cos()).mean(-1) for lag in range(size)], dim=-1)
    return rows[:, turned % size]
