"""Which random weights belong to layers: found by watching the functions that a network calls, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from torchbayes.density.density import LogDensity
from torchbayes.density.layers.attention import taken_apart
from torchbayes.density.loop import drawing
from torchbayes.model.model import Batch
from torchbayes.model.network import Network
from torchbayes.native.seeds import Purpose, mix

Estimator = Literal["auto", "local", "flipout"]
How = Literal["local", "flipout", "drawn"]

_LAYERS: tuple[Callable[..., Tensor], ...] = (F.linear, F.conv1d, F.conv2d, F.conv3d)
_DESCRIBED = ("dtype", "device", "shape", "ndim", "layout", "requires_grad", "is_cuda", "is_nested", "is_sparse")
_DESCRIPTIONS: set[Any] = {Tensor.size, Tensor.dim, Tensor.numel, Tensor.is_floating_point, Tensor.is_contiguous} | {
    getattr(Tensor, name).__get__ for name in _DESCRIBED
}


@dataclass
class _Use:
    """How one parameter is used in a forward pass.

    Attributes:
        count: calls that it takes part in.
        layer: number of the layer call whose weight or bias it is; None if it is none.
        single: whether that layer has one position for each example.
    """

    count: int = 0
    layer: int | None = None
    single: bool = False


class _Watch(TorchFunctionMode):
    """While active, notes which functions take which parameters.

    Attributes:
        uses: by name.
        differentiates: whether the network takes a derivative, as informed by physics; noise of outputs has none.
    """

    def __init__(self, held: Mapping[str, Tensor], rows: int) -> None:
        super().__init__()
        self.uses, self.differentiates = {name: _Use() for name in held}, False
        self._names, self._rows, self._calls = {id(tensor): name for name, tensor in held.items()}, rows, 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return what the call gives."""
        kwargs = kwargs or {}
        attention = taken_apart(self, func, args, kwargs=kwargs)
        if attention is not None:
            return attention
        self.differentiates |= func is torch.autograd.grad
        if describes(func):
            return func(*args, **kwargs)
        layer = layer_call(func, args, kwargs)
        if layer is not None:
            self._calls += 1
        for leaf in pytree.tree_leaves((args, kwargs)):
            name = self._names.get(id(leaf))
            if name is None:
                continue
            use = self.uses[name]
            use.count += 1
            if layer is not None and (leaf is layer.weight or leaf is layer.bias):
                use.layer = self._calls
                use.single = func is F.linear and layer.inputs.ndim == 2 and len(layer.inputs) == self._rows
        return func(*args, **kwargs)


class Call(NamedTuple):
    """A call of a layer's function.

    Attributes:
        inputs: x.
        weight: its weight.
        bias: its bias, if any.
        rest: other arguments.
        named: other arguments by name.
    """

    inputs: Tensor
    weight: Tensor
    bias: Tensor | None
    rest: tuple[Any, ...]
    named: dict[str, Any]


def describes(func: Callable[..., Any]) -> bool:
    """Return whether a function says what a tensor is, such as its dtype, whatever its numbers are."""
    return func in _DESCRIPTIONS


def layer_call(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call | None:
    """Return the call of a linear or convolutional layer; None for any other function."""
    if func not in _LAYERS:
        return None
    given = dict(zip(("input", "weight", "bias"), args, strict=False)) | dict(kwargs)
    named = {name: value for name, value in kwargs.items() if name not in {"input", "weight", "bias"}}
    return Call(given["input"], given["weight"], given.get("bias"), args[3:], named)


_FOUND: WeakKeyDictionary[Network, dict[str, _Use]] = WeakKeyDictionary()


def hows(density: LogDensity, batch: Batch, estimator: Estimator) -> dict[str, How]:
    """Return by which estimator each parameter is taken, from one minibatch per member, (M, B, ...)."""
    first = batch.map(lambda t: t[0])
    return how(density, first._replace(inputs=density.model.network.arrange(first.inputs)), estimator)


def has_layers(density: LogDensity, batch: Batch) -> bool:
    """Return whether any layer can take its weights as distributions, from one minibatch per member, (M, B, ...)."""
    return any(value != "drawn" for value in hows(density, batch, "auto").values())


def how(density: LogDensity, rows: Batch, estimator: Estimator) -> dict[str, How]:
    """Return by which estimator each parameter is taken.

    Args:
        density: whose model it is; the network is watched once.
        rows: some rows, (B, ...).
        estimator: the setting.
    """
    network, layout = density.model.network, density.model.layout
    if network not in _FOUND:
        held = dict(network.initial)
        watch = _Watch(held, rows.size)
        state = {name: buffer.clone() for name, buffer in network.buffers.items()}
        with torch.no_grad(), network.training(), drawing(network, mix(Purpose.LAYER_TRIAL, 0)):
            network.ask(held, rows.inputs, state)  # which may run it once more
            with watch:
                network(held, rows.inputs, state)
        _FOUND[network] = {} if watch.differentiates else watch.uses  # then all weights are drawn
    uses = _FOUND[network]
    found: dict[str, How] = dict.fromkeys(layout.names, "drawn")
    for name, use in uses.items():
        if use.count == 1 and use.layer is not None:
            found[name] = ("local" if use.single else "flipout") if estimator == "auto" else estimator
    whole = {use.layer for name, use in uses.items() if use.layer is not None and found[name] == "drawn"}
    # a layer one of whose tensors is used elsewhere draws both
    return {name: "drawn" if name in uses and uses[name].layer in whole else value for name, value in found.items()}
