r"""J Σ Jᵀ for the Jacobian J of a network's outputs and any covariance structure Σ, from what its layers were given.

For an affine layer without weight sharing J is g aᵀ for each row and output. A diagonal Σ then gives
Σ_o g_ko (Σ_i v_oi a_i²) g_lo, a Kronecker-factored one the same in its eigenbases: two products of matrices for all
rows, and nothing of the size of J. Other layers, and a dense Σ, need J itself, for as many rows as the chunk allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchbayes.curvature.layers import Affine, outer, sum_of
from torchbayes.linalg import (
    Blocks,
    Dense,
    Diagonal,
    Kronecker,
    LowRankPlusDiagonal,
    LowRankPrecision,
    Scaled,
    Structure,
)


@dataclass(frozen=True, eq=False)
class Part:
    """The Jacobian of K outputs in the weights of one layer, for B rows, as far as possible in factors.

    Attributes:
        layer: the layer.
        where: place of each of its weights in the structure at hand, shape of its index.
        gradients: g of every call, (B, K, G, T, O); None where the layer gives the outputs themselves and g is one.
        given: a of every call, (B, G, T, I); empty where the layer is not affine.
        rows: J itself, (B, K, *index.shape), where there are no factors.
        scale: factor on J for each weight, shape of its index; None for one.
    """

    layer: Any
    where: Tensor
    gradients: Sequence[Tensor] | None
    given: Sequence[Tensor]
    rows: Tensor | None = None
    scale: Tensor | None = None

    @property
    def is_plain(self) -> bool:
        """Whether J is g aᵀ, of one call at one place, scaled by its columns alone."""
        if not isinstance(self.layer, Affine) or len(self.given) != 1 or self.given[0].shape[2] != 1:
            return False
        if self.gradients is not None and self.gradients[0].shape[3] != 1:
            return False
        return self.scale is None or bool((self.scale == self.scale[:, :1]).all())

    @property
    def unit_numbers(self) -> int:
        """Numbers of the Jacobian for one output unit, all rows and outputs together."""
        gradients = self.plain_gradients if self.is_plain else None
        return 1 if gradients is None else gradients.shape[:2].numel() * self.where.shape[0] * self.where.shape[2]

    @property
    def inputs(self) -> Tensor:
        """Inputs a of a plain part, scaled, (B, G, I)."""
        seen = self.given[0].squeeze(2)
        return seen if self.scale is None else seen * self.scale[:, 0]

    @property
    def plain_gradients(self) -> Tensor | None:
        """Gradients g of a plain part, (B, K, G, O), or None for one."""
        return None if self.gradients is None else self.gradients[0].squeeze(3)

    def jacobian(self) -> Tensor:
        """Return J, (B, K, *index.shape)."""
        if self.rows is not None:
            found = self.rows
        elif self.gradients is None:
            (seen,) = self.given
            units = self.where.shape[1]
            identity = torch.eye(units, dtype=seen.dtype, device=seen.device)
            found = identity[:, None, :, None] * seen.squeeze(2).unsqueeze(2).unsqueeze(1)
        else:
            pairs = zip(self.gradients, self.given, strict=True)
            found = sum_of([outer(g, a.unsqueeze(1)) for g, a in pairs])
        return found if self.scale is None else found * self.scale


def narrowed(parts: Sequence[Part], where: Tensor) -> list[Part]:
    """Return the parts whose weights are among those at `where`, in coordinates of these alone."""
    size = int(max(int(where.max()), *(int(p.where.max()) for p in parts))) + 1
    local = where.new_full((size,), -1)
    local[where] = torch.arange(len(where), device=where.device)
    found = []
    for part in parts:
        own = local[part.where]
        mine = own >= 0
        if mine.all():
            found.append(replace(part, where=own))
        elif mine.any():  # the block cuts through the layer
            rows = part.jacobian()[..., mine]
            found.append(Part(None, own[mine], [], [], rows))
    return found


def _pairs(structure: Blocks, parts: Sequence[Part]) -> Iterator[tuple[Structure, list[Part]]]:
    """Yield every block that the network's weights have a share in, with their parts.

    Yields:
        Block and parts.
    """
    for block, where in zip(structure.blocks, structure.order_D.split(structure.sizes), strict=True):
        mine = narrowed(parts, where)
        if mine:
            yield block, mine


def covariance(structure: Structure, parts: Sequence[Part], *, diagonal: bool) -> Tensor:
    """Return J Σ Jᵀ of every row.

    Args:
        structure: Σ, of one member.
        parts: J.
        diagonal: return the diagonal alone.

    Returns:
        Tensor (B, K, K), or (B, K).
    """
    if isinstance(structure, Scaled):
        return covariance(structure.structure, _scaled(parts, structure.scale_MD[0]), diagonal=diagonal)
    if isinstance(structure, Blocks):
        return sum_of([covariance(block, mine, diagonal=diagonal) for block, mine in _pairs(structure, parts)])
    if isinstance(structure, Diagonal | Kronecker):
        return sum_of([_of_part(structure, part, diagonal) for part in parts])
    if isinstance(structure, Dense) and len(parts) == 1 and parts[0].is_plain and parts[0].gradients is None:
        return _of_last(structure, parts[0], diagonal)
    found = [sign * _gram(each, diagonal) for sign, each in features(structure, parts)]
    if isinstance(structure, LowRankPlusDiagonal):
        found.append(covariance(Diagonal(structure.variance_MD), parts, diagonal=diagonal))
    if isinstance(structure, LowRankPrecision):
        found.append(covariance(Diagonal(1 / structure.precision_MD), parts, diagonal=diagonal))
    return sum_of(found)


def joint_covariance(structure: Structure, parts: Sequence[Part], *, limit: int) -> Tensor:
    """Return J Σ Jᵀ over all rows together, (B K, B K).

    Args:
        structure: Σ, of one member.
        parts: J.
        limit: numbers that a piece of J Σ^½ may hold.
    """
    return cross_covariance(structure, (parts, parts), limit=limit)


def cross_covariance(structure: Structure, both: tuple[Sequence[Part], Sequence[Part]], *, limit: int) -> Tensor:
    """Return J Σ J'ᵀ between two sets of rows, (B K, B' K).

    Args:
        structure: Σ, of one member.
        both: J and J', of the same layers.
        limit: numbers that a piece of J Σ^½ may hold.
    """
    if isinstance(structure, Scaled):
        scale_D = structure.scale_MD[0]
        return cross_covariance(
            structure.structure, (_scaled(both[0], scale_D), _scaled(both[1], scale_D)), limit=limit
        )
    if isinstance(structure, Blocks):
        pairs = zip(*[_pairs(structure, parts) for parts in both], strict=True)
        return sum_of([cross_covariance(block, (a, b), limit=limit) for (block, a), (_, b) in pairs])
    found = []
    if isinstance(structure, LowRankPlusDiagonal):
        found.append(cross_covariance(Diagonal(structure.variance_MD), both, limit=limit))
    if isinstance(structure, LowRankPrecision):
        found.append(cross_covariance(Diagonal(1 / structure.precision_MD), both, limit=limit))
    units = max(1, limit // max(part.unit_numbers for parts in both for part in parts))
    pieces = (features(structure, parts, units=units) for parts in both)
    for (sign, one), (_, other) in zip(*pieces, strict=True):
        found = [sum_of([*found, sign * (one.flatten(0, 1) @ other.flatten(0, 1).T)])]
    return found[0]


def _scaled(parts: Sequence[Part], scale_D: Tensor) -> list[Part]:
    found = []
    for part in parts:
        own = scale_D[part.where]
        found.append(replace(part, scale=own if part.scale is None else part.scale * own))
    return found


def _gram(features_BKn: Tensor, diagonal: bool) -> Tensor:
    return features_BKn.square().sum(-1) if diagonal else features_BKn @ features_BKn.mT


def _of_part(structure: Diagonal | Kronecker, part: Part, diagonal: bool) -> Tensor:
    if not part.is_plain:
        return sum_of([_gram(each, diagonal) for _, each in features(structure, [part])])
    if isinstance(structure, Diagonal):
        seen, basis = part.inputs, None
        variance = structure.variance_MD[0][part.where]
    else:
        columns, basis = structure.columns_MGII, structure.rows_MGOO
        seen = part.inputs if columns is None else torch.einsum("bgi,gij->bgj", part.inputs, columns[0])
        variance = structure.variance_MGOI[0]
    spread_BGO = torch.einsum("bgi,goi->bgo", seen.square(), variance)
    gradients = part.plain_gradients
    if gradients is None:
        return _of_outputs(spread_BGO[:, 0], None if basis is None else basis[0, 0], diagonal)
    rotated = (gradients if basis is None else torch.einsum("bkgo,gop->bkgp", gradients, basis[0])).flatten(2)
    spread = spread_BGO.flatten(1).unsqueeze(1)
    return (rotated.square() * spread).sum(-1) if diagonal else (rotated * spread) @ rotated.mT


def _of_outputs(spread_BO: Tensor, basis_OO: Tensor | None, diagonal: bool) -> Tensor:
    """Return U diag(r) Uᵀ of every row, for a layer whose outputs are the network's."""
    if basis_OO is None:
        return spread_BO if diagonal else torch.diag_embed(spread_BO)
    return spread_BO @ basis_OO.square().T if diagonal else (basis_OO * spread_BO.unsqueeze(1)) @ basis_OO.T


def _of_last(structure: Dense, part: Part, diagonal: bool) -> Tensor:
    """Return J Σ Jᵀ where J of output k is a in the block of its own weights: aᵀ Σ_kl a of every pair of outputs."""
    seen, where, matrix = part.inputs[:, 0], part.where[0], structure.matrix_MDD[0]
    outputs = range(len(where))
    found = {}
    for k in outputs:
        for other in outputs[k : k + 1] if diagonal else outputs[k:]:
            found[k, other] = ((seen @ matrix[where[k].unsqueeze(1), where[other]]) * seen).sum(-1)
    if diagonal:
        return torch.stack([found[k, k] for k in outputs], dim=-1).clamp_min(0)
    rows = [torch.stack([found[min(k, j), max(k, j)] for j in outputs], dim=-1) for k in outputs]
    return torch.stack(rows, dim=-2)


def features(structure: Structure, parts: Sequence[Part], *, units: int | None = None) -> Iterator[tuple[int, Tensor]]:
    """Yield signs ± and pieces F (B, K, n) with Σ ± F Fᵀ = J Σ Jᵀ, without the diagonal part of a low-rank Σ.

    Args:
        structure: Σ, of one member.
        parts: J.
        units: output units of a plain part that go into a piece; all at once if None.

    Yields:
        Sign and piece.
    """
    if isinstance(structure, Diagonal | Kronecker):
        for part in parts:
            yield from ((1, piece) for piece in _whitened(structure, part, units))
    elif isinstance(structure, Dense):
        yield 1, _times_root(structure, parts)
    elif isinstance(structure, LowRankPlusDiagonal):
        yield 1, _times(parts, structure.factor_MRD[0])
    else:
        assert isinstance(structure, LowRankPrecision)
        taken, rows_RD = structure.taken
        yield -1, _times(parts, rows_RD[0] * structure.precision_MD[0].rsqrt()) * taken[0].sqrt()


def _whitened(structure: Diagonal | Kronecker, part: Part, units: int | None) -> Iterator[Tensor]:
    """Yield J Σ^½ of one part, some output units after the other where it is plain.

    Yields:
        Pieces (B, K, n).
    """
    if isinstance(structure, Diagonal):
        root, rows, columns = structure.variance_MD[0][part.where].sqrt(), None, None
    else:
        root, rows, columns = structure.variance_MGOI[0].sqrt(), structure.rows_MGOO, structure.columns_MGII
    gradients = part.plain_gradients if part.is_plain else None
    if units is None or gradients is None:
        jacobian = part.jacobian()
        jacobian = jacobian if rows is None else rows[0].mT @ jacobian
        jacobian = jacobian if columns is None else jacobian @ columns[0]
        yield (jacobian * root).flatten(2)
        return
    seen = part.inputs if columns is None else torch.einsum("bgi,gij->bgj", part.inputs, columns[0])
    gradients = gradients if rows is None else torch.einsum("bkgo,gop->bkgp", gradients, rows[0])
    for g, r in zip(gradients.split(units, dim=3), root.split(units, dim=1), strict=True):
        yield (g.unsqueeze(-1) * (seen.unsqueeze(2) * r).unsqueeze(1)).flatten(2)


def _times_root(structure: Dense, parts: Sequence[Part]) -> Tensor:
    """Return J R, (B, K, D)."""
    where = torch.cat([part.where.flatten() for part in parts])
    jacobian = torch.cat([part.jacobian().flatten(2) for part in parts], dim=-1)
    return jacobian @ structure.root_MDD[0][where]


def _times(parts: Sequence[Part], vectors_RD: Tensor) -> Tensor:
    """Return J V for R vectors, (B, K, R)."""
    found = []
    for part in parts:
        own = vectors_RD[:, part.where]  # (R, *index.shape)
        if not part.is_plain:
            found.append(part.jacobian().flatten(2) @ own.flatten(1).T)
            continue
        pushed = torch.einsum("bgi,rgoi->brgo", part.inputs, own).flatten(2)
        gradients = part.plain_gradients
        found.append(pushed.mT if gradients is None else gradients.flatten(2) @ pushed.mT)
    return sum_of(found)
