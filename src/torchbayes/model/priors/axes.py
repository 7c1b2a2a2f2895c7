"""The meaning of a parameter's axes in its layer: outputs, inputs, or neither. Shapes alone do not tell."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Self

from torch import nn
from torch.nn.modules.batchnorm import _NormBase  # no public base class covers every norm with statistics
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd  # nor every convolution

_NORMS = nn.LayerNorm | nn.GroupNorm | nn.RMSNorm | _NormBase
_TABLES = nn.Embedding | nn.EmbeddingBag
_OUTPUTS_FIRST = nn.Linear | nn.Bilinear | nn.RNNBase | nn.RNNCellBase | nn.MultiheadAttention | _ConvNd


@dataclass(frozen=True)
class Axes:
    """The axes of a parameter."""

    shape: tuple[int, ...]
    outputs: int | None = None  # axis of the output units or channels, 0 or 1; None in biases and weights of norms
    inputs: int | None = None  # axis of the input units or channels, the other of 0 and 1
    places: tuple[int, ...] = ()  # lengths of the other axes: positions in a filter
    groups: int = 1  # G of a convolution: axis 0 has the channels of all groups, axis 1 those of one
    fan_in: float = 1.0  # number of inputs that an output sums over
    unknown: str = ""  # why outputs and inputs are not known; empty if they are

    @classmethod
    def dense(cls, shape: tuple[int, ...]) -> Self:
        """Return the axes of a linear layer (O, I), a convolution without groups (O, I, k, …), or a bias (O,)."""
        return cls(shape, 0, 1, shape[2:], fan_in=math.prod(shape[1:])) if len(shape) > 1 else cls(shape)

    def check(self) -> None:
        """Raise ValueError if outputs and inputs are not known."""
        if self.unknown:
            raise ValueError(
                f"it is not known which axes of shape {self.shape} are those of outputs and of inputs, as "
                f"{self.unknown}. Give it one that does not depend on them, such as Normal, in a glob before this one."
            )

    def grid(self, axis: int) -> tuple[int, int, int, int]:
        """Return how the parameter is cut along axis 0 or 1, (H, outer, units, inner): a unit is all of [h, :, u, :].

        H is 1 along axis 0, and G along axis 1, where each group has units of its own.
        """
        first, others = self.shape[0], self.shape[1:]
        if axis == 0:
            return 1, 1, first, math.prod(others)
        return self.groups, first // self.groups, others[0], math.prod(others[1:])


def axes_of(module: nn.Module, names: Collection[str]) -> dict[str, Axes]:
    """Return the axes of the parameters `names` of a module, by name."""
    named = {id(p): name for name, p in module.named_parameters() if name in names}
    axes: dict[str, Axes] = {}
    for layer in module.modules():
        for key, parameter in layer._parameters.items():
            name = named.get(id(parameter))
            if name is None or parameter is None:
                continue
            axes_here = _axes(layer, key, tuple(parameter.shape))
            if axes.setdefault(name, axes_here) != axes_here:
                axes[name] = replace(Axes(axes_here.shape), unknown="layers share it that use it in different ways")
    return axes


def _axes(layer: nn.Module, key: str, shape: tuple[int, ...]) -> Axes:
    """Return the axes of a parameter by its name in its layer."""
    is_other = isinstance(layer, nn.MultiheadAttention) and "weight" not in key
    if len(shape) < 2 or isinstance(layer, _NORMS) or is_other:
        return Axes(shape)
    if isinstance(layer, _TABLES) and key == "weight":  # whose inputs are one-hot
        return Axes(shape, 1, 0)
    if isinstance(layer, _ConvTransposeNd) and key == "weight":
        # mean number of filter positions that reach an output, over the outputs that any reaches
        reach = math.prod(max(k / s, 1.0) for k, s in zip(layer.kernel_size, layer.stride, strict=True))
        return Axes(shape, 1, 0, shape[2:], layer.groups, shape[0] // layer.groups * reach)
    if isinstance(layer, _OUTPUTS_FIRST) and "weight" in key:
        axes = Axes.dense(shape)
        return replace(axes, groups=layer.groups) if isinstance(layer, _ConvNd) else replace(axes, places=())
    return Axes(shape, unknown=f"{type(layer).__name__} uses it in a way of its own")
