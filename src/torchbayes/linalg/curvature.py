"""Curvatures H ≥ 0 in units of the prior: what the data add to a prior of unit precision.

A Gaussian posterior with prior precision diag(d) has the covariance (H + diag(d))⁻¹. Every class gives that covariance
for any d, as a structure of `torchbayes.linalg`, and its own eigenvalues, from which the evidence follows for any d
without a new pass over the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from torchbayes.linalg.blocks import Blocks, block_matrices
from torchbayes.linalg.dense import Dense, eigvalsh
from torchbayes.linalg.diagonal import Diagonal
from torchbayes.linalg.kronecker import Kronecker
from torchbayes.linalg.low_rank import LowRankPrecision
from torchbayes.linalg.structure import Structure, nested, unnested


class Part(NamedTuple):
    """Weights that are independent of all others under H.

    Attributes:
        where: their places in the flat vector, int64 (n,).
        eigenvalues_ME: eigenvalues of their block of H, (M, n).
        single: whether each weight is independent, its eigenvalue standing at its place.
    """

    where: Tensor
    eigenvalues_ME: Tensor
    single: bool


class Curvature(Protocol):
    """A symmetric matrix H ≥ 0 per member.

    Attributes:
        kind: name under which it is saved.
    """

    kind: ClassVar[str]

    @property
    def size(self) -> int:
        """D."""
        ...

    def covariance(self, precision_D: Tensor) -> Structure:
        """Return (H + diag(d))⁻¹ for d (D,) or (M, D)."""
        ...

    def parts(self) -> Iterator[Part]:
        """Yield the independent parts with their eigenvalues."""
        ...

    def scaled(self, factor: float) -> Curvature:
        """Return factor · H."""
        ...

    def trace(self) -> Tensor:
        """Return tr H, (M,)."""
        ...

    def diagonal(self) -> Tensor:
        """Return diag H, (M, D)."""
        ...

    def dense(self) -> Tensor:
        """Return H as matrices (M, D, D): for tests and small D."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that define H, by field name; `NUMBER.KIND.FIELD` for those of its parts."""
        ...


def _all(size: int, like: Tensor) -> Tensor:
    return torch.arange(size, device=like.device)


@dataclass(frozen=True)
class DiagonalCurvature:
    """H_m = diag(h_m).

    Attributes:
        values_MD: h, at least 0, (M, D).
    """

    values_MD: Tensor

    kind: ClassVar[str] = "diagonal"

    @property
    def size(self) -> int:
        """D."""
        return self.values_MD.shape[-1]

    def covariance(self, precision_D: Tensor) -> Diagonal:
        """Return diag(1/(h + d))."""
        return Diagonal(1 / (self.values_MD + precision_D))

    def parts(self) -> Iterator[Part]:
        """Yield one part, whose weights are independent."""
        yield Part(_all(self.values_MD.shape[1], self.values_MD), self.values_MD, True)

    def scaled(self, factor: float) -> DiagonalCurvature:
        """Return factor · H."""
        return DiagonalCurvature(factor * self.values_MD)

    def trace(self) -> Tensor:
        """Return tr H, (M,)."""
        return self.values_MD.sum(-1)

    def diagonal(self) -> Tensor:
        """Return h."""
        return self.values_MD

    def dense(self) -> Tensor:
        """Return H as matrices."""
        return torch.diag_embed(self.values_MD)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that define H, by field name."""
        return {"values_MD": self.values_MD}


@dataclass(frozen=True)
class DenseCurvature:
    """H_m as a matrix.

    Attributes:
        matrix_MDD: H, symmetric, (M, D, D).
    """

    matrix_MDD: Tensor

    kind: ClassVar[str] = "dense"

    @property
    def size(self) -> int:
        """D."""
        return self.matrix_MDD.shape[-1]

    def covariance(self, precision_D: Tensor) -> Dense:
        """Return (H + diag(d))⁻¹.

        Raises:
            ValueError: if H + diag(d) is not positive definite.
        """
        return Dense.of_precision(self._plus(precision_D))

    def _plus(self, precision_D: Tensor) -> Tensor:
        """Return H + diag(d), (M, D, D)."""
        precision_MDD = self.matrix_MDD.clone()
        precision_MDD.diagonal(dim1=-2, dim2=-1).add_(precision_D)
        return precision_MDD

    @cached_property
    def _eigenvalues_ME(self) -> Tensor:
        return eigvalsh(self.matrix_MDD)

    def parts(self) -> Iterator[Part]:
        """Yield one part."""
        yield Part(_all(self.matrix_MDD.shape[-1], self.matrix_MDD), self._eigenvalues_ME, False)

    def scaled(self, factor: float) -> DenseCurvature:
        """Return factor · H."""
        return DenseCurvature(factor * self.matrix_MDD)

    def trace(self) -> Tensor:
        """Return tr H, (M,)."""
        return self.diagonal().sum(-1)

    def diagonal(self) -> Tensor:
        """Return diag H."""
        return self.matrix_MDD.diagonal(dim1=-2, dim2=-1)

    def dense(self) -> Tensor:
        """Return H."""
        return self.matrix_MDD

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that define H, by field name."""
        return {"matrix_MDD": self.matrix_MDD}


@dataclass(frozen=True)
class KroneckerCurvature:
    """H_m = ⊕_g (U_R ⊗ U_C) diag(λ) (U_R ⊗ U_C)ᵀ over the weights of one layer; shapes as in `linalg.Kronecker`.

    Attributes:
        eigenvalues_MGOI: λ, at least 0.
        rows_MGOO: U_R, or None for the identity.
        columns_MGII: U_C, or None for the identity.
    """

    eigenvalues_MGOI: Tensor
    rows_MGOO: Tensor | None = None
    columns_MGII: Tensor | None = None

    kind: ClassVar[str] = "kronecker"

    @property
    def size(self) -> int:
        """D."""
        return self.eigenvalues_MGOI[0].numel()

    def covariance(self, precision_D: Tensor) -> Kronecker:
        """Return (H + d I)⁻¹; d must be the same for every weight.

        Raises:
            ValueError: if it is not.
        """
        level = precision_D[..., :1]
        if not torch.equal(precision_D, level.expand_as(precision_D)):
            raise ValueError(
                "a Kronecker-factored posterior needs one prior precision for the weights of a layer, up to the "
                "model's own; got several. Choose the precision per layer, or structure='diagonal' or 'dense'."
            )
        return Kronecker(1 / (self.eigenvalues_MGOI + level[..., None, None]), self.rows_MGOO, self.columns_MGII)

    def parts(self) -> Iterator[Part]:
        """Yield one part."""
        values = self.eigenvalues_MGOI.flatten(1)
        yield Part(_all(values.shape[1], values), values, self.rows_MGOO is None and self.columns_MGII is None)

    def scaled(self, factor: float) -> KroneckerCurvature:
        """Return factor · H."""
        return KroneckerCurvature(factor * self.eigenvalues_MGOI, self.rows_MGOO, self.columns_MGII)

    def trace(self) -> Tensor:
        """Return tr H, (M,)."""
        return self.eigenvalues_MGOI.flatten(1).sum(-1)

    def diagonal(self) -> Tensor:
        """Return diag H."""
        return Kronecker(self.eigenvalues_MGOI, self.rows_MGOO, self.columns_MGII).diagonal()

    def dense(self) -> Tensor:
        """Return H as matrices."""
        return Kronecker(self.eigenvalues_MGOI, self.rows_MGOO, self.columns_MGII).dense()

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that define H, by field name; bases that are None are left out."""
        named = {
            "eigenvalues_MGOI": self.eigenvalues_MGOI,
            "rows_MGOO": self.rows_MGOO,
            "columns_MGII": self.columns_MGII,
        }
        return {name: tensor for name, tensor in named.items() if tensor is not None}


@dataclass(frozen=True)
class LowRankCurvature:
    """H_m = F_mᵀ F_m, the largest part of a curvature; what is known of the rest, the evidence needs (`dropped`).

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

    @property
    def size(self) -> int:
        """D."""
        return self.factor_MRD.shape[-1]

    def covariance(self, precision_D: Tensor) -> LowRankPrecision:
        """Return (FᵀF + diag(d))⁻¹."""
        members, _, size = self.factor_MRD.shape
        return LowRankPrecision(precision_D.expand(members, size), self.factor_MRD)

    def kept(self) -> Tensor:
        """Return the eigenvalues that F has, (M, R)."""
        return eigvalsh(self.factor_MRD @ self.factor_MRD.mT).clamp_min(0)

    def parts(self) -> Iterator[Part]:
        """Yield one part; all but R eigenvalues are 0."""
        members, rank, size = self.factor_MRD.shape
        zeros, values = self.factor_MRD.new_zeros(members, max(0, size - rank)), self.kept()
        yield Part(_all(size, values), torch.cat([zeros, values], dim=1)[:, -size:], False)

    def scaled(self, factor: float) -> LowRankCurvature:
        """Return factor · H."""
        rest_MD, squares_M = factor * self.rest_MD, factor**2 * self.squares_M
        return LowRankCurvature(factor**0.5 * self.factor_MRD, rest_MD, squares_M, self.room_M)

    def trace(self) -> Tensor:
        """Return tr H, (M,)."""
        return self.factor_MRD.square().sum((-2, -1))

    def diagonal(self) -> Tensor:
        """Return diag H."""
        return self.factor_MRD.square().sum(-2)

    def dense(self) -> Tensor:
        """Return H as matrices."""
        return self.factor_MRD.mT @ self.factor_MRD

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that define H, by field name."""
        rest = {"rest_MD": self.rest_MD, "squares_M": self.squares_M, "room_M": self.room_M}
        return {"factor_MRD": self.factor_MRD, **rest}


@dataclass(frozen=True)
class BlockCurvature:
    """H_m block diagonal, each block with a structure of its own; `order_D` as in `linalg.Blocks`.

    Attributes:
        order_D: which weight stands where in the blocks, int64 (D,).
        blocks: the blocks.
    """

    order_D: Tensor
    blocks: tuple[Any, ...]

    kind: ClassVar[str] = "blocks"

    @property
    def size(self) -> int:
        """D."""
        return len(self.order_D)

    @cached_property
    def sizes(self) -> list[int]:
        """Number of weights of each block."""
        return [block.size for block in self.blocks]

    def covariance(self, precision_D: Tensor) -> Blocks:
        """Return (H + diag(d))⁻¹."""
        each = precision_D[..., self.order_D].split(self.sizes, dim=-1)
        return Blocks(self.order_D, tuple(b.covariance(part) for b, part in zip(self.blocks, each, strict=True)))

    def parts(self) -> Iterator[Part]:
        """Yield the parts of the blocks."""
        for block, where in zip(self.blocks, self.order_D.split(self.sizes), strict=True):
            for part in block.parts():
                yield part._replace(where=where[part.where])

    def scaled(self, factor: float) -> BlockCurvature:
        """Return factor · H."""
        return BlockCurvature(self.order_D, tuple(block.scaled(factor) for block in self.blocks))

    def trace(self) -> Tensor:
        """Return tr H, (M,)."""
        return torch.stack([block.trace() for block in self.blocks]).sum(0)

    def diagonal(self) -> Tensor:
        """Return diag H."""
        return torch.cat([block.diagonal() for block in self.blocks], dim=-1)[..., torch.argsort(self.order_D)]

    def dense(self) -> Tensor:
        """Return H as matrices."""
        return block_matrices([block.dense() for block in self.blocks], torch.argsort(self.order_D))

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that define H: `order_D`, and `NUMBER.KIND.FIELD` for those of the blocks."""
        return {"order_D": self.order_D, **nested(self.blocks)}


CURVATURES: dict[str, Any] = {
    c.kind: c for c in (BlockCurvature, DenseCurvature, DiagonalCurvature, KroneckerCurvature, LowRankCurvature)
}


def restore_curvature(kind: str, tensors: dict[str, Tensor]) -> Curvature:
    """Return the curvature rebuilt from the tensors that define it.

    Args:
        kind: its name in `CURVATURES`.
        tensors: as `tensors` gave them.

    Returns:
        The curvature.

    Raises:
        KeyError: if the kind is unknown or a tensor is missing.
    """
    own, parts = unnested(tensors, restore_curvature)
    return BlockCurvature(own["order_D"], parts) if kind == BlockCurvature.kind else CURVATURES[kind](**own)
