"""Sums over the data for curvatures: the tensors that a pass adds up, batch by batch, for one member.

A sum is a mapping name -> tensor. `empty` creates it, `add_` adds one batch in place, `curvature` turns it into H, in
units of the prior. H is the sum over all rows, never a mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from torchbayes.curvature.capture import Captured
from torchbayes.curvature.discovery import CaptureScope, NetworkLayers
from torchbayes.curvature.layers import Affine, Call, Layer, Lookup, outer, sum_of
from torchbayes.curvature.parts import Squares
from torchbayes.curvature.roots import root
from torchbayes.linalg import Curvature, DenseCurvature, DiagonalCurvature
from torchbayes.linalg.curvature import Correlations
from torchbayes.linalg.matrices import add_gram_
from torchbayes.model.likelihoods.protocol import Counted, counted
from torchbayes.model.model import Batch
from torchbayes.model.network import Buffers
from torchbayes.native.process import differentiable
from torchbayes.randomness.seeds import Purpose, seeded

Sum = dict[str, Tensor]


@dataclass(frozen=True)
class Piece:
    """Some rows of a batch, seen by one member.

    Attributes:
        network: the layers.
        views: the member's random weights by name.
        parameters: learned likelihood parameters.
        rows: the rows.
        buffers: of the network.
        scale_D: s, the units of the member's weights.
        kind: kind of curvature: "ggn", "fisher", "empirical" or "hessian".
        samples: targets drawn for each row by "fisher".
        seed: seed of those targets.
    """

    network: NetworkLayers
    views: Mapping[str, Tensor]
    parameters: Mapping[str, Tensor]
    rows: Batch
    buffers: Buffers | None
    scale_D: Tensor
    kind: str
    samples: int = 1
    seed: int = 0

    @cached_property
    def seen(self) -> Captured:
        """The forward pass."""
        return self.network.watch(self.views, self.rows.inputs, self.buffers)

    def root(self, outputs: Tensor) -> Tensor:
        """Return the columns (R, B, ...) of the outputs' curvature."""
        with seeded(Purpose.FISHER, self.seed, device=outputs.device):
            return root(
                self.kind,
                self.network.model.likelihood,
                outputs,
                targets=self.rows.targets,
                parameters=self.parameters,
                samples=self.samples,
            )

    @cached_property
    def counts(self) -> Counted:
        """The targets as fits use them, and how often each counts."""
        return counted(self.network.model.likelihood, self.seen.outputs.detach(), self.rows.targets)

    @property
    def row_weights(self) -> Tensor | None:
        """How often each row counts, (B,); None where each counts once."""
        weights = self.counts.row_weights
        return weights if weights is None else weights.to(self.seen.outputs)

    @property
    def place_weights(self) -> Tensor | None:
        """How often each place of a row counts, (B, ...); None where places have no weights."""
        weights = self.counts.weights
        return None if weights is None or weights.ndim == 1 else weights.to(self.seen.outputs)

    def log_likelihood(self, into_D: Tensor | None) -> Tensor:
        """Return Σ log p(y|f), float64, and add its gradient to `into_D` unless that is None."""
        with differentiable():
            parameters = {name: parameter.detach().requires_grad_() for name, parameter in self.parameters.items()}
            log_prob = self.network.model.likelihood.log_prob(self.seen.outputs, self.rows.targets, parameters)
            if into_D is not None:
                leaves = [*self.seen.leaves.values(), *parameters.values()]
                gradients = torch.autograd.grad(log_prob.sum(), leaves, retain_graph=True, materialize_grads=True)
                into_D += torch.cat([gradient.flatten() for gradient in gradients])
        return log_prob.detach().sum(dtype=torch.float64)

    def given(self) -> dict[Layer, list[Tensor]]:
        """Return the inputs of the units of every affine layer, (B, G, T, I), one tensor per call."""
        return {
            layer: [layer.inputs(call.inputs) for call in self.seen.calls[layer.module]]
            for layer in self.network.layers
            if isinstance(layer, Affine)
        }

    def columns(self) -> Iterator[tuple[Tensor, dict[str, list[Call]]]]:
        """Yield every column of the outputs' curvature, with the calls and their gradients."""
        columns = self.root(self.seen.outputs)
        if not self.network.layers:
            yield from ((column, {}) for column in columns)
            return
        yield from zip(columns, self.seen.columns(columns), strict=True)

    def squares(self, layer: Affine, rows_GOO: Tensor | None = None, columns_GII: Tensor | None = None) -> Squares:
        """Return an empty sum of squares of Uᵀ J V of a layer, to which columns are added."""
        inputs = [call.inputs for call in self.seen.calls[layer.module]]
        return Squares(layer, inputs, layer.module in self.network.shared, rows_GOO, columns_GII)

    def rest(self, column: Tensor) -> Tensor:
        """Return the Jacobian in the weights that no layer holds, (B, n)."""
        assert self.network.whole is not None
        return self.network.whole.jacobian(self.views, self.rows.inputs, column, buffers=self.buffers)


class Sums(Protocol):
    """How the sums of one structure are made, for one member; `curvature` takes all members together.

    `held` says which inputs of layers are in memory while rows are added, in any of the passes, and `correlations`
    which correlations between weights the curvature keeps.
    """

    held: ClassVar[tuple[CaptureScope, ...]]
    correlations: ClassVar[Correlations] = "some"
    passes: int  # over the data

    def empty(self, network: NetworkLayers, like: Tensor, seed: int = 0) -> Sum:
        """Return the sum over no data."""
        ...

    def add_(self, total: Sum, piece: Piece, number: int = 0) -> None:
        """Add rows in place, in pass number `number`."""
        ...

    def turn_(self, total: Sum, network: NetworkLayers, scale_D: Tensor, *, number: int) -> None:
        """Finish pass number `number`, in place."""

    def curvature(self, network: NetworkLayers, totals_M: Sum, scale_MD: Tensor) -> Curvature:
        """Return diag(s) H diag(s) from the sums of all members, each (M, ...)."""
        ...


class OnePass(Sums, Protocol):
    """Sums of a single pass."""

    held = ("everywhere",)
    passes = 1


@dataclass(frozen=True)
class DiagonalSums(OnePass):
    """diag H = Σ_n Σ_r J_nr²: the squares of every weight's Jacobian."""

    held: ClassVar[tuple[CaptureScope, ...]] = ("few",)
    correlations: ClassVar[Correlations] = "none"

    def empty(self, network: NetworkLayers, like: Tensor, seed: int = 0) -> Sum:
        return {"diagonal": like.new_zeros(network.size)}

    def add_(self, total: Sum, piece: Piece, number: int = 0) -> None:
        into, layers, whole = total["diagonal"], piece.network.layers, piece.network.whole
        squares = {layer: piece.squares(layer) for layer in layers if isinstance(layer, Affine)}
        for column, calls in piece.columns():
            for layer in layers:
                layer_calls = calls[layer.module]
                if isinstance(layer, Affine):
                    squares[layer].add(layer_calls)
                elif isinstance(layer, Lookup) and len(layer_calls) == 1:
                    _add(into, layer, layer.squares(*layer.weighted(layer_calls[0].inputs, layer_calls[0].outputs)))
                else:
                    _add(into, layer, layer.rows(layer_calls).square().sum(0))
            if whole:
                _add(into, whole, piece.rest(column).square().sum(0))
        for layer, squares_of_layer in squares.items():
            _add(into, layer, squares_of_layer.total())

    def curvature(self, network: NetworkLayers, totals_M: Sum, scale_MD: Tensor) -> DiagonalCurvature:
        return DiagonalCurvature(totals_M["diagonal"] * scale_MD**2)


def _add(total_D: Tensor, layer: Any, layer_sums: Tensor) -> None:
    total_D.index_add_(0, layer.index.flatten(), layer_sums.flatten())


def _jacobian(layer: Layer, calls: Sequence[Call], unit_inputs: Sequence[Tensor] | None) -> Tensor:
    """Return the Jacobian of one column in a layer's weights, for each row, (B, *index.shape)."""
    if isinstance(layer, Affine) and unit_inputs is not None:
        return sum_of(outer(layer.gradients(c.outputs), a) for c, a in zip(calls, unit_inputs, strict=True))
    return layer.rows(calls)


@dataclass(frozen=True)
class DenseSums(OnePass):
    """H = Σ_n Σ_r J_nr J_nrᵀ as a matrix."""

    chunk: int = 2**23  # numbers that the Jacobian of a chunk of rows may hold

    correlations: ClassVar[Correlations] = "all"

    def empty(self, network: NetworkLayers, like: Tensor, seed: int = 0) -> Sum:
        if network.single is not None:
            _, outputs, inputs = network.single.index.shape
            return {"units": like.new_zeros(outputs, outputs * inputs, inputs)}
        return {"dense": like.new_zeros(network.size, network.size)}

    def add_(self, total: Sum, piece: Piece, number: int = 0) -> None:
        """Add rows in place.

        If all weights are those of one affine layer without sharing, Σ_r J Jᵀ = (Σ_r g gᵀ) ⊗ a aᵀ. A product of
        matrices (O I', I') for each of O output units then replaces one of (O I, O I) for each column.
        """
        if "units" in total:
            _add_units(total["units"], piece, self.chunk)
            return
        inputs = piece.given()
        order = piece.network.order
        for column, calls in piece.columns():
            jacobians = [_jacobian(layer, calls[layer.module], inputs.get(layer)) for layer in piece.network.layers]
            jacobians += [piece.rest(column)] if piece.network.whole else []
            jacobian = torch.cat([jacobian_of_layer.flatten(1) for jacobian_of_layer in jacobians], dim=1)
            for rows in jacobian.split(max(1, self.chunk // len(order))):
                placed = rows.new_zeros(len(rows), len(total["dense"]))
                placed[:, order] = rows
                add_gram_(total["dense"], placed)

    def curvature(self, network: NetworkLayers, totals_M: Sum, scale_MD: Tensor) -> DenseCurvature:
        if "dense" in totals_M:
            matrix = totals_M["dense"].clone()
        else:
            assert network.single is not None
            matrix = _assembled(totals_M["units"], network.single)
        return DenseCurvature(matrix.mul_(scale_MD.unsqueeze(-1)).mul_(scale_MD.unsqueeze(-2)))


def _add_units(total_OJI: Tensor, piece: Piece, chunk: int) -> None:
    """Add Σ_n M_n ⊗ a_n a_nᵀ, M_n = Σ_r g_r g_rᵀ, of each output unit and later ones; H is symmetric."""
    (layer,) = piece.network.layers
    assert isinstance(layer, Affine)
    (unit_inputs,) = piece.given()[layer]
    columns = [layer.gradients(calls[layer.module][0].outputs).flatten(1) for _, calls in piece.columns()]
    gradients_BRO = torch.stack(columns, dim=1)
    weights_BOO, size = gradients_BRO.mT @ gradients_BRO, unit_inputs.shape[-1]
    given_BI = unit_inputs.flatten(1).expand(len(weights_BOO), size)
    rows = max(1, chunk // (len(total_OJI) * size))
    half = size // 2
    for weights, inputs in zip(weights_BOO.split(rows), given_BI.split(rows), strict=True):
        for unit in range(len(total_OJI)):
            weighted = weights[:, unit, unit:].unsqueeze(-1) * inputs.unsqueeze(1)
            blocks = total_OJI[unit, unit * size :]  # symmetric matrices, stacked
            blocks[:, :half].addmm_(weighted.flatten(1).T, inputs[:, :half])
            lower = weighted[..., half:].flatten(1).T @ inputs[:, half:]
            unit_blocks = blocks.view(-1, size, size)
            unit_blocks[:, half:, half:] += lower.view(len(unit_blocks), size - half, size - half)
            unit_blocks[:, :half, half:] = unit_blocks[:, half:, :half].mT


def _assembled(units_MOJI: Tensor, layer: Affine) -> Tensor:
    """Return the matrices (M, D, D) whose upper blocks `_add_units` adds up."""
    members, _, size, inputs = units_MOJI.shape
    matrix_MDD = units_MOJI.new_empty(members, size, size)
    for m in range(members):
        for unit, where in enumerate(layer.index[0]):
            block = units_MOJI[m, unit, unit * inputs :]  # (weights from this unit on, inputs of this unit)
            later = layer.index[0, unit:].flatten()
            matrix_MDD[m, later.unsqueeze(1), where] = block
            matrix_MDD[m, where.unsqueeze(1), later] = block.T
    return matrix_MDD
