"""Layers for their curvature: the Jacobian of each from a row's inputs and the gradient at its outputs.

For an affine layer the Jacobian of one output of the network, for one row of data, is Σ_t g_t a_tᵀ: the gradient g at
the layer's outputs times its inputs a, summed over the places t (pixels, tokens) where the weights are used. Axes: B
rows, G groups of a convolution, T places, I inputs of a unit (the bias sees a last input of 1), O outputs.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from torchbayes.linalg.bases import coordinates
from torchbayes.model.layout import Layout
from torchbayes.native.process import quiet_vmap
from torchbayes.native.recomputation import activations_kept


class Call(NamedTuple):
    """One use of a layer in a forward pass."""

    inputs: Tensor
    outputs: Any  # the graph edge of its outputs, or later the gradient there
    held: Mapping[str, Tensor]  # parameters and buffers of the module at the call, by their names in it


@dataclass(frozen=True, eq=False)
class Layer(ABC):
    """Random weights of one layer."""

    module: str  # name of the module whose calls are captured
    index: Tensor  # positions of the weights in the flat vector, int64; (G, O, I) for affine layers

    description: ClassVar[str]  # how their curvature is computed, in words

    @abstractmethod
    def rows(self, calls: Sequence[Call]) -> Tensor:
        """Return the Jacobian of each row, (B, *index.shape), from calls that hold gradients (B, ...)."""


@dataclass(frozen=True, eq=False)
class Affine(Layer):
    """A linear layer or convolution: weights and, as a last column, biases."""

    part: nn.Module  # the module itself, for its sizes
    weight: bool  # whether its weights are included
    bias: bool  # whether its biases are included

    description = "affine"

    @property
    def joint(self) -> bool:
        """Whether biases are an extra column of the weights."""
        return self.weight and self.bias

    def inputs(self, inputs: Tensor, *, ones: bool = True) -> Tensor:
        """Return the inputs of each unit at each place, (B, G, T, I), with or without the 1 of a joint bias."""
        if not self.weight:
            return inputs.new_ones(1, 1, 1, 1)
        units = _unfolded(self.part, inputs) if isinstance(self.part, nn.Conv1d | nn.Conv2d) else _places(inputs)
        return F.pad(units, (0, 1), value=1.0) if self.bias and ones else units

    def gradients(self, gradient: Tensor) -> Tensor:
        """Return gradients at the outputs, (B, G, T, O)."""
        if not isinstance(self.part, nn.Conv1d | nn.Conv2d):
            return _places(gradient)
        return gradient.flatten(2).unflatten(1, (self.part.groups, -1)).transpose(2, 3)

    def stacked(self, columns: Sequence[Tensor]) -> Tensor:
        """Return gradients at the outputs for K columns, (B, G, T, K, O), in their order in memory."""
        if isinstance(self.part, nn.Conv1d | nn.Conv2d):
            units = torch.stack(list(columns), dim=1).flatten(3).unflatten(2, (self.part.groups, -1))
            return units.permute(0, 2, 4, 1, 3)
        places = torch.stack(list(columns), dim=-2)
        return places.reshape(len(places), 1, -1, *places.shape[-2:])

    def rows(self, calls: Sequence[Call]) -> Tensor:
        return sum_of([outer(self.gradients(c.outputs), self.inputs(c.inputs)) for c in calls])


@dataclass(frozen=True, eq=False)
class Lookup(Layer):
    """An embedding: a linear layer whose inputs are one-hot; `index` is (1, V, O) for V entries."""

    padding: int  # entry without gradient, or -1

    description = "embedding"

    def weighted(self, inputs: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Return entries (B, T) and gradients (B, T, O), zero where the entry is padding."""
        entries = inputs.flatten(1) if inputs.ndim > 1 else inputs.unsqueeze(1)
        gradient = gradient.reshape(*entries.shape, -1)
        return entries, gradient * (entries != self.padding).unsqueeze(-1)

    def rows(self, calls: Sequence[Call]) -> Tensor:
        by_call = []  # (B, V, O), so for small embeddings
        for call in calls:
            entries, gradient = self.weighted(call.inputs, call.outputs)
            rows = gradient.new_zeros(len(entries), *self.index.shape[1:])
            by_call.append(rows.scatter_add(1, entries.unsqueeze(-1).expand_as(gradient), gradient))
        return sum_of(by_call).unsqueeze(1)

    def squares(self, entries: Tensor, gradient: Tensor) -> Tensor:
        """Return Σ_b (Σ_t g_bt)² of each entry, (1, V, O), without a tensor over all rows and entries."""
        rows = len(entries)
        keys = entries + self.index.shape[1] * torch.arange(rows, device=entries.device).unsqueeze(1)
        unique, where = keys.flatten().unique(return_inverse=True)
        sums = gradient.new_zeros(len(unique), gradient.shape[-1]).index_add_(0, where, gradient.flatten(0, 1))
        total = gradient.new_zeros(self.index.shape[1:])
        return total.index_add_(0, unique % self.index.shape[1], sums.square()).unsqueeze(0)


@dataclass(frozen=True, eq=False)
class Other(Layer):
    """Any other layer that turns a row into a row: vector-Jacobian products of the layer alone, one per row.

    `index` is (n,).
    """

    part: nn.Module
    layout: Layout  # its own random parameters

    description = "rows of the layer"

    def rows(self, calls: Sequence[Call]) -> Tensor:
        return sum_of([self._rows(call) for call in calls])

    def _rows(self, call: Call) -> Tensor:
        weights = {name: call.held[name] for name in self.layout.names}

        def gradient_of_row(row: Tensor, cotangent: Tensor) -> Tensor:
            def run(named: Any) -> Tensor:
                return functional_call(self.part, {**call.held, **named}, (row.unsqueeze(0),))

            pull: Any = vjp(run, dict(weights))[1]
            return self.layout.join(pull(cotangent.unsqueeze(0))[0])

        if call.inputs.requires_grad or call.outputs.requires_grad:
            # derivatives of vectorised derivatives are wrong for some of torch's layers, such as layer norm
            with activations_kept():
                return torch.stack([gradient_of_row(row, g) for row, g in zip(call.inputs, call.outputs, strict=True)])
        with quiet_vmap(), activations_kept():
            return vmap(gradient_of_row)(call.inputs, call.outputs)


def _places(tensor: Tensor) -> Tensor:
    """Return (B, ..., I) as (B, 1, T, I)."""
    return tensor.reshape(len(tensor), 1, -1, tensor.shape[-1])


def outer(gradient: Tensor, inputs: Tensor) -> Tensor:
    """Return Σ_t g aᵀ, (..., G, O, I), of gradients (..., G, T, O) and inputs (..., G, T, I)."""
    if inputs.shape[-2] != gradient.shape[-2]:  # a bias alone, whose input is 1
        gradient = gradient.sum(-2, keepdim=True)
    return gradient.mT @ inputs


def turn(tensor: Tensor, basis_GII: Tensor) -> Tensor:
    """Return X V, (..., G, T, I), with all other axes as rows of one matrix product per group.

    In an incomplete basis these are its coordinates, k + I (`linalg.bases`).
    """
    return coordinates(tensor, basis_GII, ("...gti,gij->...gtj", "...gtj,gij->...gti"))


def _unfolded(module: nn.Conv1d | nn.Conv2d, inputs: Tensor) -> Tensor:
    """Return the input patch of each output pixel of a convolution, (B, G, T, I).

    Windows are copied with pixels as the innermost axis, then rows, so that products over rows and pixels take the
    result without another copy; `F.unfold` is several times slower and needs that copy.
    """
    flat = isinstance(module, nn.Conv1d)
    sizes = [module.kernel_size, module.stride, module.dilation]
    kernel, stride, dilation = [(1, *s) if flat else s for s in sizes]
    pads = module._reversed_padding_repeated_twice  # the layer's own padding, in every mode
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    inputs = F.pad(inputs, pads, mode=mode) if any(pads) else inputs
    inputs = inputs.unsqueeze(2) if flat else inputs
    for axis in (0, 1):
        inputs = inputs.unfold(axis + 2, (kernel[axis] - 1) * dilation[axis] + 1, stride[axis])
    windows = inputs[..., :: dilation[0], :: dilation[1]]  # (B, C, T_0, T_1, kernel_0, kernel_1)
    patches = windows.permute(1, 4, 5, 0, 2, 3).reshape(module.groups, -1, len(windows), windows.shape[2:4].numel())
    return patches.permute(2, 0, 3, 1)


def sum_of(tensors: Iterable[Tensor]) -> Tensor:
    """Return the sum of one or more tensors, which need not be there at the same time."""
    return reduce(operator.add, tensors)


def linear_by(module: nn.Module, call: Call) -> str | None:
    """Return the axis of a module's weights that has the outputs, if the module computes x Wᵀ + b or x W + b.

    It is "rows" or "columns", and None for other modules. One call shows it, because there are many such classes: that
    of GPT-2 (`Conv1D`) keeps W with a column for each output.
    """
    tensors = {t.ndim: call.held[n] for n, t in module._parameters.items() if t is not None}
    if tensors.keys() not in ({2}, {1, 2}) or len(tensors) != len([*module.parameters(recurse=False)]):
        return None
    try:
        with torch.no_grad():
            outputs = functional_call(module, dict(call.held), (call.inputs,))
    except Exception:  # its inputs may have another width, or go by keyword
        return None
    for axis, weight in (("rows", tensors[2]), ("columns", tensors[2].T)):
        if outputs.shape != (*call.inputs.shape[:-1], len(weight)) or call.inputs.shape[-1:] != weight.shape[1:]:
            continue
        expected = F.linear(call.inputs, weight, tensors.get(1))
        tolerance = 1e3 * torch.finfo(outputs.dtype).eps * float(expected.abs().max())
        if torch.allclose(outputs, expected, rtol=0.0, atol=tolerance):
            return axis
    return None


def layers_of(
    name: str, module: nn.Module, index_by_key: Mapping[str, Tensor], *, joint: bool, linear: str | None = None
) -> list[Layer]:
    """Return the layers that the random parameters of one module make: one, or two if weights and biases are separate.

    `index_by_key` maps the name of each parameter in the module to its positions in the flat vector, in its shape.
    `linear` is the result of `linear_by` for modules of no class of torch.
    """
    forward = type(module).forward
    is_standard = isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d) and index_by_key.keys() <= {"weight", "bias"}
    if linear or (is_standard and forward in {nn.Linear.forward, nn.Conv1d.forward, nn.Conv2d.forward}):
        groups = getattr(module, "groups", 1) if is_standard else 1
        columns: dict[bool, Tensor] = {}  # of the weights, and of the biases
        for where in index_by_key.values():
            placed = where.T if linear == "columns" and where.ndim == 2 else where
            columns[where.ndim > 1] = placed.reshape(groups, placed.shape[0] // groups, -1)
        if joint and len(columns) == 2:
            return [Affine(name, torch.cat([columns[True], columns[False]], -1), module, True, True)]
        return [Affine(name, where, module, weight, not weight) for weight, where in columns.items()]
    if isinstance(module, nn.Embedding) and forward is nn.Embedding.forward and module.max_norm is None:
        padding = -1 if module.padding_idx is None else module.padding_idx
        return [Lookup(name, index_by_key["weight"].unsqueeze(0), padding)]
    layout = Layout({key: tuple(where.shape) for key, where in index_by_key.items()})
    return [Other(name, torch.cat([where.flatten() for where in index_by_key.values()]), module, layout)]
