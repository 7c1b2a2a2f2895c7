"""Networks that the library's own kernel can run, extracted from a module.

Such a network is an nn.Sequential of Linear layers and activations, with or without a leading Flatten; or of Conv2d
layers, pools and activations, then Flatten and such layers. Dropout, which is the identity in evaluation mode, may
stand anywhere. In front of the first Linear layer columns may be encoded, which is done once for all members.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from torchbayes.model.layout import Layout
from torchbayes.native.build import UnavailableError
from torchbayes.native.description import Activation, Kind, Layer, Stage
from torchbayes.networks import ColumnEncoding

_ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.ReLU: Activation.RELU,
    nn.Tanh: Activation.TANH,
    nn.Sigmoid: Activation.SIGMOID,
    nn.SiLU: Activation.SILU,
}


_NOTHING = {nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout}
_STAGES = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d)
# largest number of values of one image in a layer, because the kernel counts those of a few images in 32 bits
_LARGEST = 1 << 22


@dataclass(frozen=True)
class Architecture:
    """The kernel's description of a network."""

    stages: tuple[Stage, ...]  # convolutions and pools, in order; empty where rows are vectors
    layers: tuple[Layer, ...]  # the linear layers after them
    flatten: bool  # whether the network flattens its inputs itself
    encoding: ColumnEncoding | None = None  # of the columns of a row, in front of the layers

    @property
    def rows(self) -> str:
        """A description of one row for messages."""
        if self.encoding is not None:
            return f"{self.columns} columns"
        width = f"{self.columns} features"
        return f"{self.stages[0].channels[0]} channels that come to {width}" if self.stages else width

    @property
    def columns(self) -> int:
        """The number of values in a row, where rows are vectors."""
        return self.layers[0].fan_in if self.encoding is None else len(self.encoding.centre)

    def takes(self, shape: Sequence[int]) -> bool:
        """Return whether rows of this shape go through the network."""
        if not self.stages:
            return math.prod(shape) == self.columns and (self.flatten or len(shape) == 1)
        if len(shape) != 3 or shape[0] != self.stages[0].channels[0]:
            return False
        high, wide = shape[1:]
        for stage in self.stages:
            bordered = (high + 2 * stage.padding[0]) * (wide + 2 * stage.padding[1])
            if stage.channels[0] * bordered > _LARGEST:
                return False
            high, wide = stage.sides(high, wide)
            if high < 1 or wide < 1 or stage.channels[1] * high * wide > _LARGEST:
                return False
        return self.stages[-1].channels[1] * high * wide == self.layers[0].fan_in


def architecture(module: nn.Module, layout: Layout, *, device: torch.device) -> Architecture:
    """Return the kernel's description of a module, whose random weights have this layout.

    Raises an UnavailableError if the kernel cannot run it; the message says why.
    """
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    stages: list[Stage] = []
    layers: list[Layer] = []
    flatten, encoding = False, None
    for child in list(_parts(module)):
        last = layers or stages
        if type(child) in _NOTHING:
            continue
        if type(child) is nn.Linear and (flatten or not stages):
            weight_at, bias_at = (_offset(names, layout, p) for p in (child.weight, child.bias))
            layers.append(Layer(weight_at, bias_at, child.in_features, child.out_features))
        elif type(child) is nn.Flatten and not flatten and not layers and (child.start_dim, child.end_dim) == (1, -1):
            flatten = True
        elif type(child) is ColumnEncoding and encoding is None and not last:
            encoding = child
        elif type(child) in _ACTIVATIONS and last and last[-1].activation == Activation.IDENTITY:
            last[-1] = replace(last[-1], activation=_ACTIVATIONS[type(child)])  # type: ignore[call-overload]
        elif type(child) in _STAGES and not flatten and not layers:
            stages += _stage(child, names, layout, stages)
        else:
            raise UnavailableError(f"the network has a {type(child).__name__} where the kernel knows none")
    _check(stages, layers)
    if device.type != "cpu" or any(p.dtype not in {torch.float32, torch.float64} for p in module.parameters()):
        raise UnavailableError("the kernel runs float32 and float64 on a CPU")
    if encoding is not None and (stages or encoding.centre.dtype != next(module.parameters()).dtype):
        raise UnavailableError("the columns are encoded in another precision, or for convolutions")
    return Architecture(tuple(stages), tuple(layers), flatten, encoding)


def _check(stages: list[Stage], layers: list[Layer]) -> None:
    """Raise an UnavailableError if the kernel cannot run this combination of layers."""
    if stages and not layers:
        raise UnavailableError("the network has no linear layer behind its Conv2d layers")
    places = [at for layer in (*stages, *layers) for at in (layer.weight_at, layer.bias_at) if at >= 0]
    if not layers or len(set(places)) < len(places):
        raise UnavailableError("the network is not a plain stack of layers with weights of their own")
    if layers[-1].activation != Activation.IDENTITY:
        raise UnavailableError("the network ends in an activation")


def _stage(module: nn.Module, names: dict[int, str], layout: Layout, before: list[Stage]) -> list[Stage]:
    """Return a convolution or a pool; an empty list where it is the identity."""
    if isinstance(module, nn.Conv2d):
        if module.groups != 1 or module.padding_mode != "zeros":
            raise UnavailableError("the kernel knows no convolution by groups of channels, and pads with zeros alone")
        channels, stride, dilation = (
            (module.in_channels, module.out_channels),
            _pair(module.stride),
            _pair(module.dilation),
        )
        window = (_pair(module.kernel_size), stride, _padding(module), dilation)
        weight_at, bias_at = (_offset(names, layout, p) for p in (module.weight, module.bias))
        return [Stage(Kind.CONVOLUTION, channels, *window, weight_at=weight_at, bias_at=bias_at)]
    assert isinstance(module, nn.MaxPool2d | nn.AvgPool2d), "the caller knows"
    kernel, stride = _pair(module.kernel_size), _pair(module.stride)
    if isinstance(module, nn.MaxPool2d):
        plain = not module.return_indices and _pair(module.dilation) == (1, 1)
    else:
        plain = module.divisor_override is None
    if not plain or module.ceil_mode or _pair(module.padding) != (0, 0):
        raise UnavailableError(f"the kernel knows {type(module).__name__} by kernel size and stride alone")
    if not before:
        raise UnavailableError("the network pools its inputs")
    if kernel == stride == (1, 1):
        return []
    kind, channels = Kind.MAXIMUM if isinstance(module, nn.MaxPool2d) else Kind.AVERAGE, before[-1].channels[1]
    return [Stage(kind, (channels, channels), kernel, stride)]


def _padding(module: nn.Conv2d) -> tuple[int, int]:
    """Return the zeros on each side, which must be the same on both."""
    if not isinstance(module.padding, str):
        return _pair(module.padding)
    if module.padding == "valid":
        return 0, 0
    high, wide = (d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True))
    if high % 2 or wide % 2:
        raise UnavailableError("the kernel knows no padding that differs from one side to the other")
    return high // 2, wide // 2


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the leaves of nested nn.Sequential modules in the order they run.

    Only exact types without hooks are accepted, because a subclass or a hook may do anything.
    """
    if vars(module).get("forward") or any(
        getattr(module, table, None) for table in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    ):
        raise UnavailableError("a module of the network has hooks")
    if type(module) is nn.Sequential:
        for child in module:
            yield from _parts(child)
    else:
        yield module


def _offset(names: dict[int, str], layout: Layout, parameter: Tensor | None) -> int:
    """Return where a parameter starts in the flat vector, -1 if there is none; it must be random as a whole."""
    if parameter is None:
        return -1
    name = names[id(parameter)]
    if name not in layout.slices:
        raise UnavailableError(f"`{name}` is not random")
    if tuple(layout.shapes[name]) != tuple(parameter.shape):
        raise UnavailableError(f"only some weights of `{name}` are random")
    return layout.slices[name].start
