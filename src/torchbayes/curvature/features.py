"""J Σ Jᵀ for the Jacobian J of a network's outputs and any covariance structure Σ, from the inputs of its layers.

For an affine layer without weight sharing J is g aᵀ for each row and output. A diagonal Σ then gives Σ_o g_ko (Σ_i v_oi
a_i²) g_lo, and a Kronecker-factored one the same in its eigenbases: two matrix products for all rows, without a tensor
of the size of J. Layers with shared weights need J itself, for a few rows at a time; other layers, and a Σ over several
layers, for as many rows as the chunk allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchbayes.curvature.layers import Affine, sum_of
from torchbayes.curvature.parts import Part
from torchbayes.linalg import Form
from torchbayes.linalg.bases import frame, spread
from torchbayes.linalg.strips import of_strips, strips
from torchbayes.linalg.structure import PlacedForm


class Coverage(NamedTuple):
    """The weights of one part that a structure covers."""

    part: int  # index of the part
    where: Tensor  # positions in the structure, shape of the layer's index; flat if it covers only some weights
    mask: Tensor | None  # which weights of the layer are covered; None for all

    def of(self, parts: Sequence[Part]) -> Part:
        """Return the part as the structure sees it."""
        positions = parts[self.part]
        if self.mask is None:
            return replace(positions, where=self.where)
        if (units := self.units(positions)) is not None:
            where = self.where.view(1, len(units), -1)
            return Part(positions.layer, where, positions.inputs, _of_units(positions, units))
        return Part(None, self.where, [], [], positions.jacobian()[..., self.mask])

    def units(self, whole: Part) -> Tensor | None:
        """Return the output units whose weights are covered, if a linear layer is covered in whole units, else None."""
        layer, mask = whole.layer, self.mask
        if not isinstance(layer, Affine) or isinstance(layer.part, nn.Conv1d | nn.Conv2d) or mask is None:
            return None
        covered_OI = mask[0]
        units = covered_OI.all(-1)
        return units.nonzero()[:, 0] if bool((covered_OI == units.unsqueeze(-1)).all()) else None


def _of_units(whole: Part, units: Tensor) -> list[list[Tensor]]:
    """Return gradients of a part at some of its output units alone, at every call for each of the K outputs."""
    if whole.columns is not None:
        return [[gradient[..., units] for gradient in call] for call in whole.columns]
    return [whole.units(units)]


@dataclass(frozen=True, eq=False)
class Leaf:
    """An elementary covariance, not composed of others, of weights that are independent of all others.

    `form` is Σ of one member, as a sum of products.
    """

    form: Form
    coverage: list[Coverage]

    @property
    def is_root(self) -> bool:
        """Whether Σ is R Rᵀ alone."""
        return self.form.variance is None and self.form.directions_MRD is None

    @cached_property
    def strips(self) -> dict[str, Tensor]:
        """Σ of a layer given by its root, in the form that `linalg.strips.of_strips` takes."""
        return strips(self._root_KIZ.unsqueeze(0))

    @cached_property
    def own_KII(self) -> Tensor:
        """The blocks of such a Σ within the weights of one output unit each."""
        return self._root_KIZ @ self._root_KIZ.mT

    @cached_property
    def apart_KII(self) -> Tensor:
        """Such blocks for the differences between the outputs and their mean."""
        root_KIZ = self._root_KIZ - self._root_KIZ.mean(0)
        return root_KIZ @ root_KIZ.mT

    @property
    def _root_KIZ(self) -> Tensor:
        assert self.form.root_MDZ is not None
        return self.form.root_MDZ[0][self.coverage[0].where[0]]


def leaves(covariance: Sequence[PlacedForm], places: Sequence[Tensor]) -> list[Leaf]:
    """Return the independent groups of Σ of one member, with the weights of the parts that they cover.

    `covariance` is as `linalg.structure.forms` gives it, and `places` are the positions of the weights of every part in
    Σ, in the shape of the layer's index. Groups without variance are left out, unless none has any.
    """
    groups, size = [], sum(len(where) for where, _ in covariance)
    moving = [positions_of_part for positions_of_part in covariance if not _is_still(positions_of_part.form)]
    for where, form in moving or covariance:
        local = where.new_full((size,), -1)
        local[where] = torch.arange(len(where), device=where.device)
        coverage = []
        for number, position in enumerate(local[positions_of_part] for positions_of_part in places):
            mask = position >= 0
            if mask.all():
                coverage.append(Coverage(number, position, None))
            elif mask.any():
                coverage.append(Coverage(number, position[mask], mask))
        if coverage:
            groups.append(Leaf(form, coverage))
    return groups


def _is_still(form: Form) -> bool:
    """Return whether all variances are 0."""
    return form.is_diagonal and form.variance is not None and not bool(form.variance.any())


def covariance(over: Sequence[Leaf], parts: Sequence[Part], *, diagonal: bool) -> Tensor:
    """Return J Σ Jᵀ of every row, (B, K, K), or its diagonal (B, K), from Σ (`over`) and J (`parts`)."""
    terms, total = [], None
    for leaf in over:
        if (covered := _own_outputs(leaf, parts)) is None:
            terms.append(_of_leaf(leaf, parts, diagonal))
            continue
        part, units = covered  # a block on the diagonal of an otherwise zero matrix
        block, outputs = _of_parts(leaf.form, [part], diagonal), parts[leaf.coverage[0].part].where.shape[1]
        if total is None:
            total = block.new_zeros(len(block), *[outputs] * (block.ndim - 1))
        total[(..., units) if diagonal else (..., units.unsqueeze(1), units)] += block
    return sum_of([*terms, *([] if total is None else [total])])


def _own_outputs(leaf: Leaf, parts: Sequence[Part]) -> tuple[Part, Tensor] | None:
    """Return the Jacobian of some outputs alone, and which they are, if a leaf covers just their units; else None.

    The layer's outputs must be those of the network.
    """
    (cover, *others), whole = leaf.coverage, parts[leaf.coverage[0].part]
    if others or whole.columns is not None or whole.centre_BK is not None or not whole.is_plain:
        return None
    if (units := cover.units(whole)) is None:
        return None
    return Part(whole.layer, cover.where.view(1, len(units), -1), whole.inputs, None), units


def _of_leaf(leaf: Leaf, parts: Sequence[Part], diagonal: bool) -> Tensor:
    leaf_parts = [cover.of(parts) for cover in leaf.coverage]
    if leaf.is_root and len(leaf_parts) == 1 and leaf_parts[0].is_plain and leaf_parts[0].columns is None:
        return _of_last(leaf, leaf_parts[0], diagonal)
    return _of_parts(leaf.form, leaf_parts, diagonal)


def _of_parts(form: Form, parts: Sequence[Part], diagonal: bool) -> Tensor:
    terms = [sign * _gram(factors, diagonal) for sign, factors in products(form, parts)]
    if form.variance is not None:
        terms.append(sum_of([_of_part(form, part, diagonal) for part in parts]))
    return sum_of(terms)


def cross_covariance(over: Sequence[Leaf], both: tuple[Sequence[Part], Sequence[Part]], *, limit: int) -> Tensor:
    """Return J Σ J'ᵀ between two sets of rows, (B K, B' K), in pieces of J Σ^½ of at most `limit` numbers.

    `both` are J and J', of the same layers.
    """
    terms = []
    for leaf in over:
        covered = [[cover.of(parts) for cover in leaf.coverage] for parts in both]
        units = max(1, limit // max(part.unit_numbers for parts in covered for part in parts))
        pieces = (features(leaf.form, parts, units=units) for parts in covered)
        piece_products = (
            sign * (left.flatten(0, 1) @ right.flatten(0, 1).T)
            for (sign, left), (_, right) in zip(*pieces, strict=True)
        )
        terms.append(sum_of(piece_products))
    return sum_of(terms)


def _gram(features_BKn: Tensor, diagonal: bool) -> Tensor:
    return features_BKn.square().sum(-1) if diagonal else features_BKn @ features_BKn.mT


def _of_part(form: Form, part: Part, diagonal: bool) -> Tensor:
    if not part.is_plain:
        return torch.cat([_of_shared(form, piece, diagonal) for piece in part.pieces()])
    variance, basis, columns = _taken(form, part)
    spread_BGO = torch.einsum("bgi,goi->bgo", part.plain_given(columns).square(), variance)
    gradients = part.plain_gradients(basis)
    if gradients is None:
        basis_OO = None if basis is None else frame(basis[0])
        if part.centre_BK is not None:
            return apart_of(spread_BGO[:, 0], basis_OO, part.centre_BK)
        return _of_outputs(spread_BGO[:, 0], basis_OO, diagonal)
    rotated = gradients.flatten(2)
    spread = spread_BGO.flatten(1).unsqueeze(1)
    return (rotated.square() * spread).sum(-1) if diagonal else (rotated * spread) @ rotated.mT


def _of_shared(form: Form, part: Part, diagonal: bool) -> Tensor:
    """Return J Σ Jᵀ of a layer that is not plain, (B, K, K), or its diagonal (B, K), from J itself."""
    variance, rows, columns = _taken(form, part)
    jacobian = part.jacobian(rows, columns)
    if not diagonal:
        return _gram((jacobian * variance.sqrt()).flatten(2), diagonal)
    jacobian = jacobian.flatten(2)
    is_fresh = part.rows is None and not jacobian.requires_grad  # overwritten, as new memory costs more
    return (jacobian.square_() if is_fresh else jacobian.square()) @ variance.flatten()


def _taken(form: Form, part: Part) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return variances of the coordinates of a layer's weights, and the bases U and V that give these.

    Without bases they have the shape of the layer's index.
    """
    assert form.variance is not None
    variance = form.variance[0]
    if variance.ndim == 1:
        return variance[part.where], None, None
    rows, columns = (None if basis is None else basis[0] for basis in (form.rows_MGOO, form.columns_MGII))
    return spread(variance, rows, columns), rows, columns


def _of_outputs(spread_BO: Tensor, basis_OO: Tensor | None, diagonal: bool) -> Tensor:
    """Return U diag(r) Uᵀ of every row, for a layer whose outputs are the network's."""
    if basis_OO is None:
        return spread_BO if diagonal else torch.diag_embed(spread_BO)
    return spread_BO @ basis_OO.square().T if diagonal else (basis_OO * spread_BO.unsqueeze(1)) @ basis_OO.T


def apart_of(spread_BO: Tensor, basis_OO: Tensor | None, centre_BK: Tensor) -> Tensor:
    """Return Var[f_k − Σ_l c_l f_l] of outputs with the covariance U diag(r) Uᵀ, without a matrix for every row.

    This is Σ_o r_o (u_ko − Σ_l c_l u_lo)², (..., K), multiplied out where c may differ from row to row. r are (..., O),
    U is (..., O, O) or None for the identity, c are (..., K).
    """
    if basis_OO is not None and not torch.compiler.is_compiling() and bool(centre_BK.all()):
        return spread_BO @ (basis_OO - basis_OO.mean(-2, keepdim=True)).square().mT
    mean_BO = centre_BK if basis_OO is None else centre_BK @ basis_OO
    both_BO, total = mean_BO * spread_BO, (mean_BO.square() * spread_BO).sum(-1, keepdim=True)
    if basis_OO is None:
        return (spread_BO - 2 * both_BO + total).clamp_min(0)
    return (spread_BO @ basis_OO.square().mT - 2 * (both_BO @ basis_OO.mT) + total).clamp_min(0)


def apart(covariance_BKK: Tensor, centre_BK: Tensor) -> Tensor:
    """Return Var[f_k − Σ_l c_l f_l] of outputs with a covariance, (..., K)."""
    shared = (covariance_BKK @ centre_BK.unsqueeze(-1)).squeeze(-1)
    total = (shared * centre_BK).sum(-1, keepdim=True)
    return (covariance_BKK.diagonal(dim1=-2, dim2=-1) - 2 * shared + total).clamp_min(0)


def _of_last(leaf: Leaf, part: Part, diagonal: bool) -> Tensor:
    """Return J Σ Jᵀ of a last layer, whose J of output k is a at its own weights: aᵀ Σ_kl a of every pair."""
    inputs, centre_BK = part.plain_given()[:, 0], part.centre_BK
    # rows may leave different outputs out of the mean
    outside_BK = None if centre_BK is None or bool(centre_BK.all()) else centre_BK
    if diagonal and outside_BK is None:
        blocks_KII = leaf.own_KII if centre_BK is None else leaf.apart_KII
        return torch.stack([((inputs @ own_II) * inputs).sum(-1) for own_II in blocks_KII], dim=-1).clamp_min(0)
    spread = of_strips(inputs, **leaf.strips)[0]
    return spread if outside_BK is None else apart(spread, outside_BK)


def features(form: Form, parts: Sequence[Part], *, units: int) -> Iterator[tuple[int, Tensor]]:
    """Yield signs ± and pieces F (B, K, n) with Σ ± F Fᵀ = J Σ Jᵀ, Σ of one member.

    `units` are the output units in a piece of a plain part.
    """
    if form.variance is not None:
        for part in parts:
            yield from ((1, piece) for piece in _whitened(form, part, units))
    yield from products(form, parts)


def products(form: Form, parts: Sequence[Part]) -> Iterator[tuple[int, Tensor]]:
    """Yield the signs and pieces of `features`, without those of the variances of Σ."""
    if form.root_MDZ is not None:
        yield 1, _times_root(form.root_MDZ[0], parts)
    if form.directions_MRD is not None:
        pushed = _times(parts, form.directions_MRD[0])
        yield form.sign, pushed if form.shares_MR is None else pushed * form.shares_MR[0].sqrt()


def _whitened(form: Form, part: Part, units: int | None) -> Iterator[Tensor]:
    """Yield J Σ^½ of one part, (B, K, n), a few output units at a time if it is plain."""
    variance, rows, columns = _taken(form, part)
    root = variance.sqrt()
    gradients = part.plain_gradients(rows) if part.is_plain and units else None
    if units is None or gradients is None:
        yield (part.jacobian(rows, columns) * root).flatten(2)
        return
    inputs = part.plain_given(columns)
    for g, r in zip(gradients.split(units, dim=3), root.split(units, dim=1), strict=True):
        yield (g.unsqueeze(-1) * (inputs.unsqueeze(2) * r).unsqueeze(1)).flatten(2)


def _times_root(root_DZ: Tensor, parts: Sequence[Part]) -> Tensor:
    """Return J R, (B, K, Z)."""
    only_part = parts[0] if len(parts) == 1 and parts[0].is_plain else None
    gradients = None if only_part is None else only_part.plain_gradients()
    if only_part is not None and gradients is not None:  # a R first, which has no axis of outputs
        pushed = torch.einsum("bgi,goiz->bgoz", only_part.plain_given(), root_DZ[only_part.where])
        return gradients.flatten(2) @ pushed.flatten(1, 2)
    where = torch.cat([part.where.flatten() for part in parts])
    jacobian = torch.cat([part.jacobian().flatten(2) for part in parts], dim=-1)
    return jacobian @ root_DZ[where]


def _times(parts: Sequence[Part], vectors_RD: Tensor) -> Tensor:
    """Return J V for R vectors, (B, K, R)."""
    terms = []
    for part in parts:
        part_vectors = vectors_RD[:, part.where]  # (R, *index.shape)
        if not part.is_plain:
            terms.append(part.jacobian().flatten(2) @ part_vectors.flatten(1).T)
            continue
        pushed = torch.einsum("bgi,rgoi->brgo", part.plain_given(), part_vectors).flatten(2)
        gradients = part.plain_gradients()
        if gradients is None and part.centre_BK is not None:
            pushed = pushed - pushed @ part.centre_BK.unsqueeze(-1)
        terms.append(pushed.mT if gradients is None else gradients.flatten(2) @ pushed.mT)
    return sum_of(terms)
