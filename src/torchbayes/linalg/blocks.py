"""Composed structures: blocks with a structure of their own, and a structure with every weight rescaled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from torchbayes.linalg.curvature import Correlations, Curvature, LeftOut, Part
from torchbayes.linalg.diagonal import DiagonalCurvature
from torchbayes.linalg.stored import ONE, SEVERAL
from torchbayes.linalg.structure import Group, Structure, aligned


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

    @property
    def placed(self) -> Iterator[tuple[Tensor, Any]]:
        """The places of the weights of each block, int64 (n,), and the block."""
        return zip(self.order_D.split(self.sizes), self.blocks, strict=True)

    def over(self, vector_D: Tensor) -> Iterator[tuple[Any, Tensor]]:
        """Return each block and the part of vectors (..., D) that belongs to it."""
        return zip(self.blocks, vector_D[..., self.order_D].split(self.sizes, dim=-1), strict=True)

    def joined(self, parts: Iterable[Tensor]) -> Tensor:
        """Return the vectors (..., D) of such parts."""
        return torch.cat(list(parts), dim=-1)[..., self.inverse_D]

    def diagonal(self) -> Tensor:
        """Return the diagonal, (M, D)."""
        return self.joined(block.diagonal() for block in self.blocks)

    def dense(self) -> Tensor:
        """Return the matrices, (M, D, D): for tests and small D."""
        blocks = [block.dense() for block in self.blocks]
        stacked = torch.stack([torch.block_diag(*(block[m] for block in blocks)) for m in range(len(blocks[0]))])
        return stacked[:, self.inverse_D][:, :, self.inverse_D]


@dataclass(frozen=True)
class Blocks(Grouped, Structure):
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
        return sum(block.noise_size for block in self.blocks)

    @property
    def groups(self) -> tuple[Group, ...]:
        """The blocks."""
        return tuple(Group(where, None, block) for where, block in self.placed)

    def matvec(self, vector_MD: Tensor) -> Tensor:
        return self.joined(block.matvec(segment) for block, segment in self.over(vector_MD))

    def solve(self, vector_MD: Tensor) -> Tensor:
        return self.joined(block.solve(segment) for block, segment in self.over(vector_MD))

    def quadratic(self, vector_MD: Tensor) -> Tensor:
        return torch.stack([block.quadratic(segment) for block, segment in self.over(vector_MD)]).sum(0)

    def sqrt_matvec(self, noise_MZ: Tensor) -> Tensor:
        parts = noise_MZ.split([block.noise_size for block in self.blocks], dim=-1)
        return self.joined(block.sqrt_matvec(segment) for block, segment in zip(self.blocks, parts, strict=True))

    def logdet(self) -> Tensor:
        return torch.stack([block.logdet() for block in self.blocks]).sum(0)

    def precision_diagonal(self) -> Tensor:
        return self.joined(block.precision_diagonal() for block in self.blocks)


@dataclass(frozen=True)
class Scaled(Structure):
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
        return self.scale_MD.shape[-1]

    @property
    def noise_size(self) -> int:
        return self.structure.noise_size

    @property
    def groups(self) -> tuple[Group, ...]:
        """All weights, with their scale."""
        return (Group(None, self.scale_MD, self.structure),)

    def matvec(self, vector_MD: Tensor) -> Tensor:
        return self.scale_MD * self.structure.matvec(self.scale_MD * vector_MD)

    def solve(self, vector_MD: Tensor) -> Tensor:
        return self.structure.solve(vector_MD / self.scale_MD) / self.scale_MD

    def quadratic(self, vector_MD: Tensor) -> Tensor:
        return self.structure.quadratic(vector_MD / self.scale_MD)

    def sqrt_matvec(self, noise_MZ: Tensor) -> Tensor:
        return self.scale_MD * self.structure.sqrt_matvec(noise_MZ)

    def logdet(self) -> Tensor:
        return self.structure.logdet() + 2 * self.scale_MD.double().log().sum(-1)

    def diagonal(self) -> Tensor:
        return self.scale_MD**2 * self.structure.diagonal()

    def precision_diagonal(self) -> Tensor:
        return self.structure.precision_diagonal() / self.scale_MD**2

    def dense(self) -> Tensor:
        return self.scale_MD.unsqueeze(-1) * self.structure.dense() * self.scale_MD.unsqueeze(-2)


@dataclass(frozen=True)
class BlockCurvature(Grouped, Curvature):
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
        return tuple(out._replace(where=where[out.where]) for where, block in self.placed for out in block.left_out)

    def covariance(self, precision_D: Tensor) -> Blocks:
        return Blocks(self.order_D, tuple(block.covariance(part_D) for block, part_D in self.over(precision_D)))

    def plus(self, covariance: Structure, scale_MD: Tensor) -> BlockCurvature | None:
        """Return H + diag(c) Σ⁻¹ diag(c) for a Σ of the same groups, if every block adds up."""
        groups = aligned(self.order_D.split(self.sizes), covariance)
        if groups is None:
            return None
        blocks = [block.plus(prior, c) for prior, (block, c) in zip(groups, self.over(scale_MD), strict=True)]
        return None if any(block is None for block in blocks) else self._of(blocks)

    def parts(self) -> Iterator[Part]:
        for where, block in self.placed:
            for segment in block.parts():
                yield segment._replace(where=where[segment.where])

    def scaled(self, factor: float) -> Self:
        return self._of(block.scaled(factor) for block in self.blocks)

    def in_units(self, scale_D: Tensor) -> Self:
        return self._of(block.in_units(part_D) for block, part_D in self.over(scale_D))

    def positive(self) -> Self:
        return self._of(block.positive() for block in self.blocks)

    def undetermined(self, precision_D: Tensor) -> Tensor:
        return self.joined(block.undetermined(part_D) for block, part_D in self.over(precision_D))

    def trace(self) -> Tensor:
        return torch.stack([block.trace() for block in self.blocks]).sum(0)

    def _of(self, blocks: Iterable[Any]) -> Self:
        return replace(self, blocks=tuple(blocks))


def with_independent(curvature: Curvature, values_MN: Tensor) -> Curvature:
    """Return H ⊕ diag(h): the curvature with further, independent weights at the end, whose h is (M, N)."""
    if curvature.correlations == "none":
        return DiagonalCurvature(torch.cat([curvature.diagonal(), values_MN], dim=1))
    order_D = torch.arange(curvature.size + values_MN.shape[1], device=values_MN.device)
    return BlockCurvature(order_D, (curvature, DiagonalCurvature(values_MN)))
