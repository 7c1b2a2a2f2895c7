"""The network linearised at some weights: its Jacobian, layer by layer, and covariances of its outputs.

It is run by `capture.watch` and not by a backend of the density, as the Jacobian is made of what each layer was given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchbayes.curvature.capture import Seen, requires_grad
from torchbayes.curvature.discovery import Anatomy, Findings, anatomy, look
from torchbayes.curvature.features import Leaf, covariance, cross_covariance, leaves
from torchbayes.curvature.layers import Affine
from torchbayes.curvature.parts import Part
from torchbayes.linalg import Blocks, Dense, Diagonal, Kronecker, Scaled, Structure
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers, taking
from torchbayes.model.rows.batch import batch_size, rows_of


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
        outputs: K.
        row_numbers: numbers that a row takes, roughly.
        chunk: numbers that a piece of the rows may take.
    """

    layers: Anatomy
    weights_D: Tensor
    buffers: Buffers | None
    outputs: int
    row_numbers: int
    chunk: int

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
        findings: Findings | None = None,
    ) -> Tangent:
        """Look at a network and return it linearised.

        Args:
            model: the model.
            weights_D: w*.
            inputs: some rows.
            buffers: of the network.
            structure: a covariance of the weights that will be asked about.
            chunk: numbers that a piece of the rows may take.
            findings: of a look at the network before; it is looked at with these rows if None.

        Returns:
            The tangent.

        Raises:
            ValueError: if the covariance is not one of this network's layers, or the outputs have several axes.
        """
        findings = findings or look(model, weights_D, inputs)
        both = [anatomy(model, findings, joint_bias=joint) for joint in (True, False)]
        everywhere = torch.arange(structure.size, device=weights_D.device)
        fitting = [layers for layers in both if _fits(structure, everywhere, layers)]
        if not fitting:
            raise ValueError(
                "the covariance is not one of the layers of this network. Fit the posterior again with this model."
            )
        with taking(inputs):
            seen = fitting[0].watch(model.split(weights_D)[0], rows_of(inputs, slice(0, 1)), buffers)
        if seen.outputs.ndim != 2:
            raise ValueError(
                f"a linearised predictive needs one axis of outputs for a row, (K,); the network gives "
                f"{tuple(seen.outputs.shape[1:])} for a row. Use predict(posterior, inputs, draws=...)."
            )
        over = leaves(structure, [part.index for part in fitting[0].parts])
        numbers = max(_numbers(fitting[0], seen, over), findings.widest)
        return cls(fitting[0], weights_D, buffers, seen.outputs.shape[1], numbers, chunk)

    def linear(self, inputs: Any) -> Linear:
        """Return outputs and Jacobian at inputs; differentiable in inputs that require a gradient."""
        keep, layers = requires_grad(inputs), self.layers
        views, _ = layers.model.split(self.weights_D)
        seen = layers.watch(views, inputs, self.buffers, keep=keep)
        outputs = seen.outputs if keep else seen.outputs.detach()
        single = layers.single
        if single is not None and seen.is_last(single.module):
            given = [call.inputs for call in seen.calls[single.module]]
            return Linear(outputs, [Part(single, single.index, given, None)])
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
    found: list[Part] = []
    for layer in layers.layers:
        if not isinstance(layer, Affine):
            rows = [layer.rows(each.pop(layer.module)) for each in calls]  # taken out, to be let go of
            found.append(Part(layer, layer.index, [], [], torch.stack(rows, dim=1)))
            continue
        inputs = [call.inputs for call in seen.calls[layer.module]]
        own = [[call.outputs for call in each] for each in zip(*[c[layer.module] for c in calls], strict=True)]
        found.append(Part(layer, layer.index, inputs, own))
    return found


def _numbers(layers: Anatomy, seen: Seen, over: list[Leaf]) -> int:
    """Return how many numbers a row takes, roughly, from one row.

    What layers are given is there once, and gradients once for each output. What makes a Jacobian of them is there too,
    and so is the Jacobian where it is not one of factors; but not for layers with shared weights of which the
    covariance is one of each alone, as these are taken for a few rows at a time.
    """
    whole = layers.whole.index.numel() if layers.whole else 0
    own = [share for leaf in over if isinstance(leaf.structure, Diagonal | Kronecker) for share in leaf.shares]
    alone = {share.part for share in own if share.mask is None}
    once, each = seen.outputs.numel(), 2 * whole
    calls = next(seen.columns([torch.ones_like(seen.outputs)])) if layers.layers else {}
    for number, layer in enumerate(layers.layers):
        factors = isinstance(layer, Affine)
        few = factors and layer.module in layers.shared and number in alone
        each += 0 if few or (factors and layer.module not in layers.shared) else 2 * layer.index.numel()
        for call in calls.pop(layer.module, ()):  # weights and biases apart have the same
            each += call.outputs.numel() * (1 if few else 4)  # as it comes, stacked, turned and squared
            once += call.inputs.numel()
            once += layer.inputs(call.inputs).numel() if isinstance(layer, Affine) and not few else 0
    dense = [sum(share.where.numel() for share in leaf.shares) for leaf in over if isinstance(leaf.structure, Dense)]
    each += max(dense, default=0) * (1 if layers.single else 2)
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
