"""The network linearised at some weights: its Jacobian, layer by layer, and covariances of its outputs.

It runs by `capture.watch` and not by a backend of the density, because the Jacobian needs the inputs of each layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchbayes.curvature.capture import Captured, requires_grad
from torchbayes.curvature.discovery import LayerSupport, NetworkLayers, layer_support, network_layers
from torchbayes.curvature.features import Leaf, covariance, cross_covariance, leaves
from torchbayes.curvature.layers import Affine
from torchbayes.curvature.parts import Part
from torchbayes.linalg import Structure
from torchbayes.linalg.structure import PlacedForm, forms
from torchbayes.model.batches.batch import batch_size, rows_of
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers, taking

Centre = Callable[[Tensor], Tensor]
"""Outputs (..., K) -> weights c (..., K) of their mean Σ_k c_k f_k: equal, but 0 for some."""


class Linear(NamedTuple):
    """Outputs at the weights, and their Jacobian in the weights."""

    outputs_BK: Tensor  # f(x), (B, ..., K)
    parts: list[Part]  # J of all outputs of a row, in factors


@dataclass(frozen=True, eq=False)
class Tangent:
    """f(x) + J(x) (w − w*).

    Attributes:
        network: the layers of the network.
        weights_D: w*.
        buffers: of the network; its own if None.
        shape: outputs of a row, (K,), or (..., K) with places of a sequence or an image.
        once: numbers that a row takes, approximately, for any number of outputs at a time.
        each: numbers that a row takes for each of these outputs.
        last: whether the outputs are those of the only layer, so that a variance takes no gradient.
        chunk: numbers that a piece of the rows may hold.
        over: the covariance that it was built for, as `functions` and `joint` take it.
    """

    network: NetworkLayers
    weights_D: Tensor
    buffers: Buffers | None
    shape: tuple[int, ...]
    once: int
    each: int
    last: bool
    chunk: int
    over: list[Leaf]

    @property
    def outputs(self) -> int:
        """K."""
        return self.shape[-1]

    @property
    def row_numbers(self) -> int:
        """Numbers that a row takes for all its outputs, approximately."""
        return self.once + math.prod(self.shape) * self.each

    @classmethod
    def at(
        cls,
        model: Model,
        weights_D: Tensor,
        inputs: Any,
        *,
        buffers: Buffers | None,
        structure: Structure,
        chunk: int,
        support: LayerSupport | None = None,
    ) -> Tangent:
        """Return a network linearised at some weights.

        Args:
            model: the model.
            weights_D: w*.
            inputs: some rows.
            buffers: of the network.
            structure: the covariance of the weights.
            chunk: numbers that a piece of the rows may hold.
            support: of its layers, if it is known; found with these rows if None.

        Raises:
            ValueError: if the covariance does not match this network's layers.
        """
        support = support or layer_support(model, weights_D, inputs)
        candidates = [network_layers(model, support, joint_bias=joint) for joint in (True, False)]
        placed = list(forms(structure))
        fitting = [network for network in candidates if _fits(placed, network)]
        if not fitting:
            raise ValueError(
                "the covariance is not one of the layers of this network. Fit the posterior again with this model."
            )
        with taking(inputs):
            captured = fitting[0].watch(model.split(weights_D)[0], rows_of(inputs, slice(0, 1)), buffers)
        network = _moving(fitting[0], leaves(placed, [layer.index for layer in fitting[0].parts]))
        over = leaves(placed, [layer.index for layer in network.parts])
        once, each = _numbers(network, captured, over)
        shape = tuple(captured.outputs.shape[1:])
        last = network.single is not None and captured.is_last(network.single.module)
        return cls(network, weights_D, buffers, shape, max(once, support.widest), each, last, chunk, over)

    def linear(self, inputs: Any, *, centre: Centre | None = None) -> Linear:
        """Return outputs and the Jacobian of all of them; differentiable in inputs that require a gradient.

        Args:
            inputs: (B, ...), or a tuple or mapping of such.
            centre: if given, the Jacobian is that of the outputs less their mean.
        """
        outputs, (parts,) = self._linear(inputs, math.prod(self.shape), centre)
        return Linear(outputs, parts)

    def _linear(self, inputs: Any, count: int, centre: Centre | None = None) -> tuple[Tensor, Iterator[list[Part]]]:
        """Return outputs, and an iterator over the Jacobians of `count` outputs of each row at a time."""
        keep, network = requires_grad(inputs), self.network
        views, _ = network.model.split(self.weights_D)
        captured = network.watch(views, inputs, self.buffers, keep=keep)
        outputs = captured.outputs if keep else captured.outputs.detach()
        centre_BK = None if centre is None else centre(outputs.detach())
        single = network.single
        if single is not None and captured.is_last(single.module):
            layer_inputs = [call.inputs for call in captured.calls[single.module]]
            return outputs, iter([[Part(single, single.index, layer_inputs, None, centre_BK=centre_BK)]])

        def groups() -> Iterator[list[Part]]:
            total = math.prod(self.shape)
            for start in range(0, total, count):
                columns = [_unit(outputs, number, centre_BK) for number in range(start, start + count)]
                parts = _parts(network, captured, columns, keep=keep, last=start + count == total)
                if network.whole:
                    whole = network.whole
                    rows = [whole.jacobian(views, inputs, column, buffers=self.buffers) for column in columns]
                    parts.append(Part(whole, whole.index, [], [], torch.stack(rows, dim=1)))
                yield parts

        return outputs, groups()

    def leaves(self, structure: Structure) -> list[Leaf]:
        """Return a covariance, of one member, as `functions` and `joint` take it."""
        return leaves(list(forms(structure)), [layer.index for layer in self.network.parts])

    def functions(
        self,
        inputs: Any,
        over: list[Leaf],
        *,
        diagonal: bool,
        together: bool = False,
        centre: Centre | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return f (B, ..., K) and J Σ Jᵀ of each place (B, ..., K, K), in pieces of rows that fit the chunk.

        Args:
            inputs: (B, ...), or a tuple or mapping of such.
            over: Σ.
            diagonal: return only the diagonal, (B, ..., K).
            together: return the covariance of all N outputs of a row instead, (B, N, N).
            centre: if given, return the covariance of the outputs less their mean at each place.
        """
        count, rows = math.prod(self.shape) if together else self.outputs, batch_size(inputs)
        size = max(1, self.chunk // (self.once + count * (4 if diagonal and self.last else self.each)))
        pieces: list[tuple[Tensor, Tensor]] = []
        for start in range(0, rows, size):
            outputs, groups = self._linear(rows_of(inputs, slice(start, start + size)), count, centre)
            places = torch.stack([covariance(over, parts, diagonal=diagonal) for parts in groups], dim=1)
            spread = places[:, 0] if together else places.view(len(outputs), *self.shape[:-1], *places.shape[2:])
            pieces.append((outputs, spread))
        return torch.cat([outputs for outputs, _ in pieces]), torch.cat([spread for _, spread in pieces])

    def joint(self, inputs: Any, over: list[Leaf]) -> tuple[Tensor, Tensor]:
        """Return f (B, ..., K) and J Σ Jᵀ over all rows and places together, (B, ..., K, B, ..., K)."""
        outputs, parts = self.linear(inputs)
        matrix = cross_covariance(over, (parts, parts), limit=self.chunk)
        return outputs, matrix.view(*outputs.shape, *outputs.shape)

    def cross(self, inputs: Any, others: Any, over: list[Leaf]) -> Tensor:
        """Return J Σ J'ᵀ between two sets of rows, (B, ..., K, B', ..., K)."""
        (outputs, parts), (other_outputs, other_parts) = self.linear(inputs), self.linear(others)
        matrix = cross_covariance(over, (parts, other_parts), limit=self.chunk)
        return matrix.view(*outputs.shape, *other_outputs.shape)


def _moving(network: NetworkLayers, over: Sequence[Leaf]) -> NetworkLayers:
    """Return a network with only those of its layers whose weights have a variance: J of the others is not needed."""
    covered = {cover.part for leaf in over for cover in leaf.coverage}
    layers = tuple(layer for number, layer in enumerate(network.layers) if number in covered)
    whole = network.whole if len(network.layers) in covered else None
    return replace(network, layers=layers, whole=whole)


def _unit(outputs: Tensor, number: int, centre: Tensor | None = None) -> Tensor:
    """Return 1 at one of the outputs of every row and 0 at the others, less the weights of the mean at its place."""
    unit = torch.zeros(outputs.shape[1:], dtype=outputs.dtype, device=outputs.device)
    unit.view(-1)[number] = 1.0
    if centre is None:
        return unit.expand_as(outputs)
    last_axis = slice(number - number % outputs.shape[-1], number - number % outputs.shape[-1] + outputs.shape[-1])
    column = unit.repeat(len(outputs), *[1] * unit.ndim)
    column.flatten(1)[:, last_axis] -= centre.flatten(1)[:, last_axis]
    return column


def _parts(
    network: NetworkLayers, seen: Captured, columns: list[Tensor], *, keep: bool, last: bool = True
) -> list[Part]:
    """Return the Jacobian of the columns, layer by layer; the graph is freed after the last ones."""
    calls = list(seen.columns(columns, keep=keep, last=last)) if network.layers else []
    parts: list[Part] = []
    for layer in network.layers:
        if not isinstance(layer, Affine):
            rows = [layer.rows(by_module.pop(layer.module)) for by_module in calls]  # popped, to free their memory
            parts.append(Part(layer, layer.index, [], [], torch.stack(rows, dim=1)))
            continue
        inputs = [call.inputs for call in seen.calls[layer.module]]
        gradients = [
            [call.outputs for call in by_module] for by_module in zip(*[c[layer.module] for c in calls], strict=True)
        ]
        parts.append(Part(layer, layer.index, inputs, gradients))
    return parts


def _numbers(network: NetworkLayers, seen: Captured, over: list[Leaf]) -> tuple[int, int]:
    """Return approximately how many numbers a row takes once, and for each of its outputs, from one row.

    Inputs of layers are held once, gradients once per output. Intermediate results of the Jacobian count too, and the
    Jacobian itself where it has no factors. Layers with shared weights whose covariance is over each layer alone are an
    exception, because they are computed for a few rows at a time.
    """
    whole = network.whole.index.numel() if network.whole else 0
    spectral = [cover for leaf in over if leaf.form.is_spectral for cover in leaf.coverage]
    whole_layers = {cover.part for cover in spectral if cover.mask is None}
    once, per_output = seen.outputs.numel(), 2 * whole
    calls = next(seen.columns([torch.ones_like(seen.outputs)])) if network.layers else {}
    for number, layer in enumerate(network.layers):
        factors = isinstance(layer, Affine)
        by_rows = factors and layer.module in network.shared and number in whole_layers
        per_output += 0 if by_rows or (factors and layer.module not in network.shared) else 2 * layer.index.numel()
        for call in calls.pop(layer.module, ()):  # popped, because weights and biases of one module share the calls
            per_output += call.outputs.numel() * (1 if by_rows else 4)  # computed, stacked, rotated and squared
            once += call.inputs.numel()
            once += layer.inputs(call.inputs).numel() if isinstance(layer, Affine) and not by_rows else 0
    dense = [sum(cover.where.numel() for cover in leaf.coverage) for leaf in over if leaf.is_root]
    per_output += max(dense, default=0) * (1 if network.single else 2)
    return once, per_output


def _fits(covariance: list[PlacedForm], network: NetworkLayers) -> bool:
    """Return whether every grid of a covariance covers the weights of one of the layers."""
    for where, form in covariance:
        if form.variance is None or form.variance.ndim == 2:
            continue
        shape = form.shape
        if not any(p.index.shape == shape and torch.equal(p.index.flatten(), where) for p in network.parts):
            return False
    return True
