"""The Jacobian of the outputs, layer by layer, in factors: gradients at a layer's outputs, and its inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from torchbayes.curvature.layers import Affine, Call, outer, sum_of, turn
from torchbayes.linalg.bases import coordinates, is_whole

_CACHED = 2**20  # numbers that a processor's cache holds
COLUMNS_AT_ONCE = 16  # most columns whose gradients are held at a time


@dataclass(frozen=True, eq=False)
class Part:
    """The Jacobian of K outputs in the weights of one layer, for B rows, as far as possible in factors.

    If the layer's outputs are those of the network, `centre_BK` may hold weights c of a mean Σ_l c_l f_l of the outputs
    that is subtracted from each of them: equal, but 0 for some. None stands for the outputs themselves.
    """

    layer: Any
    where: Tensor  # position of each of its weights in the structure, shape of its index
    inputs: Sequence[Tensor]  # of the layer at every call, (B, ...); empty if it is not affine
    # gradients at its outputs at every call, (B, ...) for each of the K outputs; None if the layer's outputs are those
    # of the network
    columns: Sequence[Sequence[Tensor]] | None
    rows: Tensor | None = None  # J itself, (B, K, *index.shape), if there are no factors
    centre_BK: Tensor | None = None

    def double(self) -> Part:
        """Return the Jacobian in double precision."""
        columns = None if self.columns is None else [[tensor.double() for tensor in column] for column in self.columns]
        rows = None if self.rows is None else self.rows.double()
        centre = None if self.centre_BK is None else self.centre_BK.double()
        return Part(self.layer, self.where, [tensor.double() for tensor in self.inputs], columns, rows, centre)

    @property
    def is_plain(self) -> bool:
        """Whether J is g aᵀ, of one call at one place."""
        if not isinstance(self.layer, Affine) or len(self.inputs) != 1:
            return False
        return self.places == 1

    @property
    def places(self) -> int:
        """T, of the first call."""
        return 1 if self.columns is None else self.layer.gradients(self.columns[0][0]).shape[2]

    @property
    def unit_numbers(self) -> int:
        """Numbers of the Jacobian for one output unit, all rows and outputs together."""
        gradients = self.plain_gradients() if self.is_plain else None
        return 1 if gradients is None else gradients.shape[:2].numel() * self.where.shape[0] * self.where.shape[2]

    @cached_property
    def given(self) -> list[Tensor]:
        """Inputs a of the units at every call, (B, G, T, I); T is 1 for a bias alone."""
        return [self.layer.inputs(inputs).expand(len(inputs), -1, -1, -1) for inputs in self.inputs]

    @cached_property
    def gradients(self) -> list[Tensor]:
        """Gradients of every call, g: (B, G, T, K, O)."""
        return [self.layer.stacked(gradients) for gradients in self.columns or ()]

    def units(self, which: Tensor) -> list[Tensor]:
        """Return gradients at some outputs of a last layer, (B, n) for each of the network's K outputs."""
        (inputs,) = self.inputs
        ones_K = torch.eye(self.where.shape[1], dtype=inputs.dtype, device=inputs.device)[:, which]
        if self.centre_BK is None:
            return [unit.expand(len(inputs), -1) for unit in ones_K]
        return [unit - self.centre_BK[:, which] for unit in ones_K]

    def plain_given(self, basis_GII: Tensor | None = None) -> Tensor:
        """Return the inputs of the units of a plain part, (B, G, I), in a basis."""
        return (self.given[0] if basis_GII is None else turn(self.given[0], basis_GII)).squeeze(2)

    def plain_gradients(self, basis_GOO: Tensor | None = None) -> Tensor | None:
        """Return gradients g of a plain part, (B, K, G, O), in a basis; None stands for the identity."""
        if self.columns is None:
            return None
        gradients = self.gradients[0] if basis_GOO is None else _turned(self.gradients[0], basis_GOO)
        return gradients.squeeze(2).transpose(1, 2)

    def jacobian(self, rows_GOO: Tensor | None = None, columns_GII: Tensor | None = None) -> Tensor:
        """Return Uᵀ J V, (B, K, *index.shape), rotating g and a instead of J where they have fewer numbers.

        U and V are for an affine layer, and None for the identity. Incomplete bases give coordinates, k more of a side.
        """
        rows, columns = rows_GOO, columns_GII
        if self.rows is not None:
            jacobian = self.rows
        elif self.columns is None:
            units = torch.stack(self.units(torch.arange(self.where.shape[1])), dim=1)
            jacobian = units[:, :, None, :, None] * self.plain_given().unsqueeze(2).unsqueeze(1)
        else:
            gradients, unit_inputs = self.gradients, self.given
            places, outputs = unit_inputs[0].shape[2], gradients[0].shape[3]
            if columns is not None and places < outputs * self.where.shape[1]:
                unit_inputs, columns = [turn(a, columns) for a in unit_inputs], None
            if rows is not None and places < self.where.shape[2]:
                gradients, rows = [_turned(g, rows) for g in gradients], None
            together = sum_of([outer(g.flatten(3), a) for g, a in zip(gradients, unit_inputs, strict=True)])
            jacobian = together.unflatten(2, (outputs, -1)).transpose(1, 2)
        if rows is not None:
            jacobian = rows.mT @ jacobian if is_whole(rows) else turn(jacobian.mT, rows).mT
        return jacobian if columns is None else turn(jacobian, columns)

    def pieces(self) -> Iterator[Part]:
        """Yield the part for a few rows at a time: so few that they fit in the processor's cache."""
        if self.rows is not None:
            yield self
            return
        assert self.columns is not None
        groups, units, num_inputs = self.where.shape
        outputs, places = len(self.columns[0]), self.places
        row = groups * max(outputs * units * num_inputs, places * num_inputs, outputs * units * places)
        for start in range(0, len(self.inputs[0]), size := max(1, _CACHED // row)):
            some = slice(start, start + size)
            columns = [[g[some] for g in column] for column in self.columns]
            yield replace(self, inputs=[a[some] for a in self.inputs], columns=columns)


def _turned(gradients: Tensor, basis_GOO: Tensor) -> Tensor:
    """Return gradients (B, G, T, K, O) in a basis of the units."""
    return coordinates(gradients, basis_GOO, ("bgtko,gop->bgtkp", "bgtkp,gop->bgtko"))


@dataclass
class Squares:
    """Adds up the squares of Uᵀ J V over rows and columns, one column at a time, for one affine layer.

    Without weight sharing Σ_r (Uᵀ g_r (Vᵀ a)ᵀ)² = (Σ_r (Uᵀ g_r)²) ((Vᵀ a)²)ᵀ, one product for all rows; else columns
    are collected into larger products.
    """

    layer: Affine
    inputs: Sequence[Tensor]  # of the layer at every call
    shared: bool  # whether it uses its weights at several places
    rows_GOO: Tensor | None = None  # U; None for the identity
    columns_GII: Tensor | None = None  # V likewise
    # gradients at every call, of columns that are not in the sum yet
    waiting: list[list[Tensor]] = field(default_factory=list)
    summed: Tensor | None = None  # of the other columns: without sharing of gradients alone, (B, G, O), else (G, O, I)

    def add(self, calls: Sequence[Call]) -> None:
        """Add a column."""
        if self.shared:
            self.waiting.append([call.outputs for call in calls])
            if len(self.waiting) == COLUMNS_AT_ONCE:
                self._take()
            return
        gradient = self.layer.gradients(calls[0].outputs).squeeze(2)
        gradient = gradient if self.rows_GOO is None else torch.einsum("bgo,gop->bgp", gradient, self.rows_GOO)
        self.summed = gradient.square() if self.summed is None else self.summed.addcmul_(gradient, gradient)

    def total(self) -> Tensor:
        """Return the sum, (G, O, I)."""
        if self.waiting:
            self._take()
        assert self.summed is not None
        if self.shared:
            return self.summed
        inputs = Part(self.layer, self.layer.index, self.inputs, None).plain_given(self.columns_GII)
        return torch.einsum("bgo,bgi->goi", self.summed, inputs.square())

    def _take(self) -> None:
        part = Part(self.layer, self.layer.index, self.inputs, list(zip(*self.waiting, strict=True)))
        self.waiting = []
        if self.summed is None:
            self.summed = self.inputs[0].new_zeros(self.layer.index.shape)
        for piece in part.pieces():
            self.summed += piece.jacobian(self.rows_GOO, self.columns_GII).square_().sum((0, 1))
