"""Composed structures: blocks with a structure of their own, and a structure with every weight rescaled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchbayes.linalg.curvature import Correlations, Curvature, LeftOut, Part
from torchbayes.linalg.diagonal import DiagonalCurvature
from torchbayes.linalg.stored import ONE, SEVERAL, Stored
from torchbayes.linalg.structure import Form, Group, Structure, aligned


class Grouped:
    """What block-diagonal matrices share."""

    order_D: Tensor  # which weight stands where in the blocks, int64: x in block order is `x[order_D]`
    blocks: tuple[Any, ...]  # their sizes add up to D

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

    def split(self, vector_D: Tensor) -> tuple[Tensor, ...]:
        """Return the parts of vectors (..., D) that belong to the blocks."""
        return vector_D[..., self.order_D].split(self.sizes, dim=-1)

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the vectors (..., D) whose parts `split` returns."""
        return torch.cat(list(parts), dim=-1)[..., self.inverse_D]

    def diagonal(self) -> Tensor:
        """Return the diagonal, (M, D)."""
        return self.joined([block.diagonal() for block in self.blocks])

    def dense(self) -> Tensor:
        """Return the matrices, (M, D, D): for tests and small D."""
        blocks = [block.dense() for block in self.blocks]
        stacked = torch.stack([torch.block_diag(*(block[m] for block in blocks)) for m in range(len(blocks[0]))])
        return stacked[:, self.inverse_D][:, :, self.inverse_D]


@dataclass(frozen=True)
class Blocks(Stored, Grouped):
    """Σ_m = Π ( ⊕_b Σ_mb ) Πᵀ: independent groups of weights, each with a structure of its own.

    Attributes:
        order_D: which weight stands where in the blocks, int64: x in block order is `x[order_D]`.
        blocks: one structure per group; their sizes add up to D.
    """

    order_D: Tensor
    blocks: tuple[Structure, ...] = field(metadata=SEVERAL)

    kind: ClassVar[str] = "blocks"

    @property
    def noise_size(self) -> int:
        """Number of standard normals that `sqrt_matvec` turns into one sample."""
        return sum(block.noise_size for block in self.blocks)

    @property
    def groups(self) -> tuple[Group, ...]:
        """The blocks."""
        each = zip(self.order_D.split(self.sizes), self.blocks, strict=True)
        return tuple(Group(where, None, block) for where, block in each)

    def matvec(self, vector_MD: Tensor) -> Tensor:
        """Return Σ x, shape (..., M, D)."""
        return self.joined([b.matvec(part) for b, part in zip(self.blocks, self.split(vector_MD), strict=True)])

    def solve(self, vector_MD: Tensor) -> Tensor:
        """Return Σ⁻¹ x, shape (..., M, D)."""
        return self.joined([b.solve(part) for b, part in zip(self.blocks, self.split(vector_MD), strict=True)])

    def quadratic(self, vector_MD: Tensor) -> Tensor:
        """Return xᵀ Σ⁻¹ x, shape (..., M), float64."""
        each = zip(self.blocks, self.split(vector_MD), strict=True)
        return torch.stack([block.quadratic(part) for block, part in each]).sum(0)

    def sqrt_matvec(self, noise_MZ: Tensor) -> Tensor:
        """Return R z with R Rᵀ = Σ, shape (..., M, D)."""
        parts = noise_MZ.split([block.noise_size for block in self.blocks], dim=-1)
        return self.joined([block.sqrt_matvec(part) for block, part in zip(self.blocks, parts, strict=True)])

    def logdet(self) -> Tensor:
        """Return log det Σ, shape (M,), float64, in nats."""
        return torch.stack([block.logdet() for block in self.blocks]).sum(0)

    def precision_diagonal(self) -> Tensor:
        """Return diag Σ⁻¹, (M, D), if every block gives it."""
        return self.joined([block.precision_diagonal() for block in self.blocks])

    def form(self, scale_MD: Tensor | None = None) -> Form | None:
        """Return None, because each group has a form of its own."""


@dataclass(frozen=True)
class Scaled(Stored):
    """Σ_m = diag(s) S_m diag(s): the structure S in other units of the weights.

    Attributes:
        scale_MD: s, positive, (M, D).
        structure: S.
    """

    scale_MD: Tensor
    structure: Structure = field(metadata=ONE)

    kind: ClassVar[str] = "scaled"

    @property
    def size(self) -> int:
        """D."""
        return self.scale_MD.shape[-1]

    @property
    def noise_size(self) -> int:
        """Number of standard normals that `sqrt_matvec` turns into one sample."""
        return self.structure.noise_size

    @property
    def groups(self) -> tuple[Group, ...]:
        """All weights, with their scale."""
        return (Group(None, self.scale_MD, self.structure),)

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

    def precision_diagonal(self) -> Tensor:
        """Return diag Σ⁻¹, (M, D), if S gives it."""
        return self.structure.precision_diagonal() / self.scale_MD**2

    def form(self, scale_MD: Tensor | None = None) -> Form | None:
        """Return None, because S has a form of its own."""

    def dense(self) -> Tensor:
        """Return Σ as matrices (M, D, D): for tests and small D."""
        return self.scale_MD.unsqueeze(-1) * self.structure.dense() * self.scale_MD.unsqueeze(-2)


@dataclass(frozen=True)
class BlockCurvature(Stored, Grouped):
    """H_m block diagonal, each block with a structure of its own; `order_D` as in `Blocks`.

    Attributes:
        order_D: which weight stands where in the blocks, int64 (D,).
        blocks: the blocks.
    """

    order_D: Tensor
    blocks: tuple[Any, ...] = field(metadata=SEVERAL)

    kind: ClassVar[str] = "blocks"
    correlations: ClassVar[Correlations] = "some"

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """What the blocks leave out."""
        each = zip(self.order_D.split(self.sizes), self.blocks, strict=True)
        return tuple(out._replace(where=where[out.where]) for where, block in each for out in block.left_out)

    def covariance(self, precision_D: Tensor) -> Blocks:
        """Return (H + diag(d))⁻¹."""
        each = zip(self.blocks, self.split(precision_D), strict=True)
        return Blocks(self.order_D, tuple(block.covariance(own_D) for block, own_D in each))

    def plus(self, covariance: Structure, scale_MD: Tensor) -> BlockCurvature | None:
        """Return H + diag(c) Σ⁻¹ diag(c) for a Σ of the same groups, if every block adds up."""
        groups = aligned(self.order_D.split(self.sizes), covariance)
        if groups is None:
            return None
        each = zip(self.blocks, groups, self.split(scale_MD), strict=True)
        blocks = [block.plus(prior, scale) for block, prior, scale in each]
        return None if any(block is None for block in blocks) else BlockCurvature(self.order_D, tuple(blocks))

    def parts(self) -> Iterator[Part]:
        """Yield the parts of the blocks."""
        for block, where in zip(self.blocks, self.order_D.split(self.sizes), strict=True):
            for part in block.parts():
                yield part._replace(where=where[part.where])

    def scaled(self, factor: float) -> BlockCurvature:
        """Return factor · H."""
        return BlockCurvature(self.order_D, tuple(block.scaled(factor) for block in self.blocks))

    def in_units(self, scale_D: Tensor) -> BlockCurvature:
        """Return diag(s) H diag(s), s the same within a Kronecker product, or a block raises a ValueError."""
        each = zip(self.blocks, self.split(scale_D), strict=True)
        return BlockCurvature(self.order_D, tuple(block.in_units(own_D) for block, own_D in each))

    def positive(self) -> BlockCurvature:
        """Return H ≥ 0 in double precision, block by block."""
        return BlockCurvature(self.order_D, tuple(block.positive() for block in self.blocks))

    def undetermined(self, precision_D: Tensor) -> Tensor:
        """Return which weights lie in directions in which H + diag(d) is 0 up to rounding, bool (M, D)."""
        each = zip(self.blocks, self.split(precision_D), strict=True)
        return self.joined([block.undetermined(own_D) for block, own_D in each])

    def trace(self) -> Tensor:
        """Return tr H, (M,)."""
        return torch.stack([block.trace() for block in self.blocks]).sum(0)


def with_independent(curvature: Curvature, values_MN: Tensor) -> Curvature:
    """Return H ⊕ diag(h): the curvature with further, independent weights at the end, whose h is (M, N)."""
    if curvature.correlations == "none":
        return DiagonalCurvature(torch.cat([curvature.diagonal(), values_MN], dim=1))
    order_D = torch.arange(curvature.size + values_MN.shape[1], device=values_MN.device)
    return BlockCurvature(order_D, (curvature, DiagonalCurvature(values_MN)))
