"""Composed covariances: blocks of their own structure, and a structure with every weight rescaled."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from torchbayes.linalg.structure import Structure, nested


@dataclass(frozen=True)
class Blocks:
    """Σ_m = Π ( ⊕_b Σ_mb ) Πᵀ: independent groups of weights, each with a structure of its own.

    Attributes:
        order_D: which weight stands where in the blocks, int64: x in block order is `x[order_D]`.
        blocks: one structure per group; their sizes add up to D.
    """

    order_D: Tensor
    blocks: tuple[Structure, ...]

    kind: ClassVar[str] = "blocks"

    @property
    def size(self) -> int:
        """D."""
        return len(self.order_D)

    @cached_property
    def sizes(self) -> list[int]:
        """Number of weights of each block."""
        return [block.size for block in self.blocks]

    @cached_property
    def inverse_D(self) -> Tensor:
        """Where each weight stands in block order."""
        return torch.argsort(self.order_D)

    @property
    def noise_size(self) -> int:
        """Number of standard normals that `sqrt_matvec` turns into one sample."""
        return sum(block.noise_size for block in self.blocks)

    def matvec(self, vector_MD: Tensor) -> Tensor:
        """Return Σ x, shape (..., M, D)."""
        parts = vector_MD[..., self.order_D].split(self.sizes, dim=-1)
        return _placed(self.inverse_D, [block.matvec(part) for block, part in zip(self.blocks, parts, strict=True)])

    def solve(self, vector_MD: Tensor) -> Tensor:
        """Return Σ⁻¹ x, shape (..., M, D)."""
        parts = vector_MD[..., self.order_D].split(self.sizes, dim=-1)
        return _placed(self.inverse_D, [block.solve(part) for block, part in zip(self.blocks, parts, strict=True)])

    def quadratic(self, vector_MD: Tensor) -> Tensor:
        """Return xᵀ Σ⁻¹ x, shape (..., M), float64."""
        parts = vector_MD[..., self.order_D].split(self.sizes, dim=-1)
        return torch.stack([block.quadratic(part) for block, part in zip(self.blocks, parts, strict=True)]).sum(0)

    def sqrt_matvec(self, noise_MZ: Tensor) -> Tensor:
        """Return R z with R Rᵀ = Σ, shape (..., M, D)."""
        parts = noise_MZ.split([block.noise_size for block in self.blocks], dim=-1)
        return _placed(
            self.inverse_D, [block.sqrt_matvec(part) for block, part in zip(self.blocks, parts, strict=True)]
        )

    def logdet(self) -> Tensor:
        """Return log det Σ, shape (M,), float64, in nats."""
        return torch.stack([block.logdet() for block in self.blocks]).sum(0)

    def diagonal(self) -> Tensor:
        """Return the marginal variances, (M, D)."""
        return _placed(self.inverse_D, [block.diagonal() for block in self.blocks])

    def dense(self) -> Tensor:
        """Return Σ as matrices (M, D, D): for tests and small D."""
        return block_matrices([block.dense() for block in self.blocks], self.inverse_D)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that define the structure: `order_D`, and `NUMBER.KIND.FIELD` for those of the blocks."""
        return {"order_D": self.order_D, **nested(self.blocks)}


def _placed(inverse_D: Tensor, parts: list[Tensor]) -> Tensor:
    """Return vectors of the blocks as one, brought from block order to the weights' own."""
    return torch.cat(parts, dim=-1)[..., inverse_D]


def block_matrices(blocks: list[Tensor], inverse_D: Tensor) -> Tensor:
    """Return block-diagonal matrices (M, D, D) of blocks (M, n, n), weights brought from block order to their own."""
    stacked = torch.stack([torch.block_diag(*(block[m] for block in blocks)) for m in range(len(blocks[0]))])
    return stacked[:, inverse_D][:, :, inverse_D]


@dataclass(frozen=True)
class Scaled:
    """Σ_m = diag(s) S_m diag(s): the structure S in other units of the weights.

    Attributes:
        scale_MD: s, positive, (M, D).
        structure: S.
    """

    scale_MD: Tensor
    structure: Structure

    kind: ClassVar[str] = "scaled"

    @property
    def size(self) -> int:
        """D."""
        return self.scale_MD.shape[-1]

    @property
    def noise_size(self) -> int:
        """Number of standard normals that `sqrt_matvec` turns into one sample."""
        return self.structure.noise_size

    def matvec(self, vector_MD: Tensor) -> Tensor:
        """Return Σ x, shape (..., M, D)."""
        return self.scale_MD * self.structure.matvec(self.scale_MD * vector_MD)

    def solve(self, vector_MD: Tensor) -> Tensor:
        """Return Σ⁻¹ x, shape (..., M, D)."""
        return self.structure.solve(vector_MD / self.scale_MD) / self.scale_MD

    def quadratic(self, vector_MD: Tensor) -> Tensor:
        """Return xᵀ Σ⁻¹ x, shape (..., M), float64."""
        return self.structure.quadratic(vector_MD / self.scale_MD)

    def sqrt_matvec(self, noise_MZ: Tensor) -> Tensor:
        """Return R z with R Rᵀ = Σ, shape (..., M, D)."""
        return self.scale_MD * self.structure.sqrt_matvec(noise_MZ)

    def logdet(self) -> Tensor:
        """Return log det Σ, shape (M,), float64, in nats."""
        return self.structure.logdet() + 2 * self.scale_MD.double().log().sum(-1)

    def diagonal(self) -> Tensor:
        """Return the marginal variances, (M, D)."""
        return self.scale_MD**2 * self.structure.diagonal()

    def dense(self) -> Tensor:
        """Return Σ as matrices (M, D, D): for tests and small D."""
        return self.scale_MD.unsqueeze(-1) * self.structure.dense() * self.scale_MD.unsqueeze(-2)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that define the structure: `scale_MD`, and `0.KIND.FIELD` for those of S."""
        return {"scale_MD": self.scale_MD, **nested((self.structure,))}
