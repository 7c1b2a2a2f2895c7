"""The network linearised at some weights: its Jacobian, layer by layer, and covariances of its outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchbayes.curvature.anatomy import Anatomy, anatomy, look
from torchbayes.curvature.capture import Seen, requires_grad, rows_of
from torchbayes.curvature.features import Leaf, Part, covariance, cross_covariance, leaves
from torchbayes.curvature.layers import Affine
from torchbayes.linalg import Blocks, Dense, Kronecker, Scaled, Structure
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers, batch_size


class Linear(NamedTuple):
    """Outputs at the weights, and their Jacobian in the weights.

    Attributes:
        outputs_BK: f(x).
        parts: J, in factors.
    """

    outputs_BK: Tensor
    parts: list[Part]


@dataclass(frozen=True, eq=False)
class Tangent:
    """f(x) + J(x) (w − w*).

    Attributes:
        layers: of the network.
        weights_D: w*.
        buffers: of the network; its own if None.
        row_numbers: numbers that a row takes, roughly.
        chunk: numbers that a piece of the rows may take.
    """

    layers: Anatomy
    weights_D: Tensor
    buffers: Buffers | None
    row_numbers: int
    chunk: int

    @classmethod
    def at(
        cls, model: Model, weights_D: Tensor, inputs: Any, *, buffers: Buffers | None, structure: Structure, chunk: int
    ) -> Tangent:
        """Look at a network and return it linearised.

        Args:
            model: the model.
            weights_D: w*.
            inputs: some rows.
            buffers: of the network.
            structure: a covariance of the weights that will be asked about.
            chunk: numbers that a piece of the rows may take.

        Returns:
            The tangent.

        Raises:
            ValueError: if the covariance is not one of this network's layers, or the outputs have several axes.
        """
        findings = look(model, weights_D, inputs)
        both = [anatomy(model, findings, joint_bias=joint) for joint in (True, False)]
        everywhere = torch.arange(structure.size, device=weights_D.device)
        fitting = [layers for layers in both if _fits(structure, everywhere, layers)]
        if not fitting:
            raise ValueError(
                "the covariance is not one of the layers of this network. Fit the posterior again with this model."
            )
        seen = fitting[0].watch(model.split(weights_D)[0], rows_of(inputs, slice(0, 1)), buffers)
        if seen.outputs.ndim != 2:
            raise ValueError(
                f"a linearised predictive needs one axis of outputs, (B, K); the network gives "
                f"{tuple(seen.outputs.shape)}. Use predict(posterior, inputs)."
            )
        numbers = max(_numbers(fitting[0], seen, structure), findings.widest)
        return cls(fitting[0], weights_D, buffers, numbers, chunk)

    def linear(self, inputs: Any) -> Linear:
        """Return outputs and Jacobian at inputs; differentiable in inputs that require a gradient."""
        keep, layers = requires_grad(inputs), self.layers
        views, _ = layers.model.split(self.weights_D)
        seen = layers.watch(views, inputs, self.buffers, keep=keep)
        outputs = seen.outputs if keep else seen.outputs.detach()
        single = layers.single
        if single is not None and seen.is_last(single.module):
            given = [single.inputs(call.inputs).expand(len(outputs), -1, -1, -1) for call in seen.calls[single.module]]
            return Linear(outputs, [Part(single, single.index, None, given)])
        units = torch.eye(outputs.shape[1], dtype=outputs.dtype, device=outputs.device)
        columns = [unit.expand_as(outputs) for unit in units]
        parts = _parts(layers, seen, columns, keep=keep)
        if layers.whole:
            whole = layers.whole
            rows = [whole.jacobian(views, inputs, column, buffers=self.buffers) for column in columns]
            parts.append(Part(whole, whole.index, [], [], torch.stack(rows, dim=1)))
        return Linear(outputs, parts)

    def leaves(self, structure: Structure) -> list[Leaf]:
        """Return the covariance of one member as `functions` and `joint` take it."""
        return leaves(structure, [part.index for part in self.layers.parts])

    def functions(self, inputs: Any, over: list[Leaf], *, diagonal: bool) -> tuple[Tensor, Tensor]:
        """Return f (B, K) and J Σ Jᵀ (B, K, K), or its diagonal (B, K), in pieces of rows that fit the chunk.

        Args:
            inputs: (B, ...), or a tuple or mapping of such.
            over: Σ.
            diagonal: return the diagonal alone.
        """
        size, rows = max(1, self.chunk // self.row_numbers), batch_size(inputs)
        found = []
        for start in range(0, rows, size):
            outputs, parts = self.linear(rows_of(inputs, slice(start, start + size)))
            found.append((outputs, covariance(over, parts, diagonal=diagonal)))
        return torch.cat([outputs for outputs, _ in found]), torch.cat([spread for _, spread in found])

    def joint(self, inputs: Any, over: list[Leaf]) -> tuple[Tensor, Tensor]:
        """Return f (B, K) and J Σ Jᵀ over all rows together, (B, K, B, K)."""
        outputs, parts = self.linear(inputs)
        matrix = cross_covariance(over, (parts, parts), limit=self.chunk)
        return outputs, matrix.view(*outputs.shape, *outputs.shape)


def _parts(layers: Anatomy, seen: Seen, columns: list[Tensor], *, keep: bool) -> list[Part]:
    """Return the Jacobian of the columns, layer by layer."""
    calls = list(seen.columns(columns, keep=keep)) if layers.layers else []
    found = []
    for layer in layers.layers:
        own = [each[layer.module] for each in calls]
        if isinstance(layer, Affine):
            given = [layer.inputs(call.inputs) for call in seen.calls[layer.module]]
            pairs = zip(*[[layer.gradients(c.outputs) for c in each] for each in own], strict=True)
            found.append(Part(layer, layer.index, [torch.stack(each, dim=1) for each in pairs], given))
        else:
            found.append(Part(layer, layer.index, [], [], torch.stack([layer.rows(each) for each in own], dim=1)))
    return found


def _numbers(layers: Anatomy, seen: Seen, structure: Structure) -> int:
    """Return how many numbers a row takes, roughly, from one row.

    What layers see is there once; gradients, and Jacobians where there are no factors, once for each output. Some
    things are there twice: what layers see unfolded, gradients as they come and stacked, Jacobians before they are
    turned and after.
    """
    whole = layers.whole.index.numel() if layers.whole else 0
    once, each = seen.outputs.numel(), 2 * whole
    for layer in layers.layers:
        plain = isinstance(layer, Affine) and layer.module not in layers.shared
        each += layer.index.numel() * (0 if plain else 2)
        for call in seen.calls[layer.module]:
            given = layer.inputs(call.inputs) if isinstance(layer, Affine) else call.inputs
            once += given.numel() + call.inputs.numel()
            places = given.shape[1] * given.shape[2] if isinstance(layer, Affine) else 1
            each += 2 * (places * layer.index.shape[1] if isinstance(layer, Affine) else given.numel())
    if not _is_factored(structure):
        each += layers.model.layout.size * (1 if layers.single else 2)
    return once + seen.outputs.numel() * each


def _fits(structure: Structure, where: Tensor, layers: Anatomy) -> bool:
    """Return whether every Kronecker product of a covariance over the weights at `where` is over one of the layers."""
    if isinstance(structure, Scaled):
        return _fits(structure.structure, where, layers)
    if isinstance(structure, Blocks):
        each = zip(structure.blocks, where[structure.order_D].split(structure.sizes), strict=True)
        return all(_fits(block, mine, layers) for block, mine in each)
    if isinstance(structure, Kronecker):
        shape = structure.variance_MGOI.shape[1:]
        return any(p.index.shape == shape and torch.equal(p.index.flatten(), where) for p in layers.parts)
    return True


def _is_factored(structure: Structure) -> bool:
    if isinstance(structure, Scaled):
        return _is_factored(structure.structure)
    if isinstance(structure, Blocks):
        return all(_is_factored(block) for block in structure.blocks)
    return not isinstance(structure, Dense)
