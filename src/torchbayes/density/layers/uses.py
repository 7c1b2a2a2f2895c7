"""Which random weights belong to layers, and which axis of their inputs is that of the rows, by watching calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from torchbayes.density.density import LogDensity
from torchbayes.density.loop import drawing
from torchbayes.model.batches.batch import repeated, tensors_of
from torchbayes.model.model import Batch
from torchbayes.model.network import Network
from torchbayes.randomness.generators import DispatchMode
from torchbayes.randomness.seeds import Purpose, mix

Estimator = Literal["auto", "local", "flipout"]
How = Literal["local", "flipout", "drawn"]

_MATRIX = 2  # axes of rows with one position each
_LAYERS: tuple[Callable[..., Tensor], ...] = (F.linear, F.conv1d, F.conv2d, F.conv3d)
_DESCRIBED = ("dtype", "device", "shape", "ndim", "layout", "requires_grad", "is_cuda", "is_nested", "is_sparse")
_DESCRIPTIONS: set[Any] = {Tensor.size, Tensor.dim, Tensor.numel, Tensor.is_floating_point, Tensor.is_contiguous} | {
    getattr(Tensor, name).__get__ for name in _DESCRIBED
}
_ATTENTION = inspect.signature(F.multi_head_attention_forward)


class Use(NamedTuple):
    """How a layer uses one of its parameters in a forward pass."""

    layer: int  # number of the layer call, from 1
    ndim: int  # axes of its inputs
    axis: int  # number of the axis of the rows
    single: bool  # whether it has one position for each row


class _Watch(TorchFunctionMode):
    """While active, notes which functions take which parameters.

    `counts` says how many calls take each parameter. `calls` has the layer call, with its number, that takes a
    parameter as weight or bias. `differentiates` says whether the network takes a derivative, as physics-informed
    ones do; the noise of outputs has none.
    """

    def __init__(self, held: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.counts, self.calls, self.differentiates = dict.fromkeys(held, 0), dict[str, tuple[int, Call]](), False
        self._names, self._number = {id(tensor): name for name, tensor in held.items()}, 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        attention = taken_apart(self, func, args, kwargs=kwargs)
        if attention is not None:
            return attention
        self.differentiates |= func is torch.autograd.grad
        if not describes(func):
            self._count(func, args, kwargs)
        return func(*args, **kwargs)

    def _count(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        layer = layer_call(func, args, kwargs)
        if layer is not None:
            self._number += 1
        for leaf in pytree.tree_leaves((args, kwargs)):
            name = self._names.get(id(leaf))
            if name is None:
                continue
            self.counts[name] += 1
            if layer is not None and (leaf is layer.weight or leaf is layer.bias):
                self.calls[name] = self._number, layer


class _Sizes(DispatchMode):
    """While active, sets `depend` if the size of a tensor depends on numbers in others, as that of `x[mask]` does."""

    depend = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.depend |= torch.Tag.dynamic_output_shape in func.tags
        return func(*args, **(kwargs or {}))


class Call(NamedTuple):
    """A call of a layer's function."""

    linear: bool  # whether it is linear rather than a convolution
    inputs: Tensor
    weight: Tensor
    bias: Tensor | None
    rest: tuple[Any, ...]  # other arguments
    named: dict[str, Any]  # other arguments by name

    def of(self, func: Callable[..., Tensor], inputs: Tensor, weight: Tensor, *, bias: Tensor | None) -> Tensor:
        """Return the outputs of the function at other tensors."""
        return func(inputs, weight, bias, *self.rest, **self.named)


def describes(func: Callable[..., Any]) -> bool:
    """Return whether a function describes a tensor, such as its dtype, whatever its numbers are."""
    return func in _DESCRIPTIONS


def layer_call(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call | None:
    """Return the call of a linear or convolutional layer; None for any other function."""
    if func not in _LAYERS:
        return None
    arguments = dict(zip(("input", "weight", "bias"), args, strict=False)) | dict(kwargs)
    named = {name: value for name, value in kwargs.items() if name not in {"input", "weight", "bias"}}
    return Call(func is F.linear, arguments["input"], arguments["weight"], arguments.get("bias"), args[3:], named)


def taken_apart(
    mode: TorchFunctionMode, func: Callable[..., Any], args: tuple[Any, ...], *, kwargs: Mapping[str, Any]
) -> tuple[Tensor, Tensor | None] | None:
    """Return the outputs, and where asked for the weights of positions, of self-attention with one projection weight.

    Its two products with weights go through `mode` as if the network had called layers. PyTorch hands all of its
    weights to one function; here that function gets the result of the first product, and identity matrices instead of
    weights, so it still handles masks, dropout and heads. Returns None for any other call.
    """
    if func is not F.multi_head_attention_forward:
        return None
    arguments = dict(_ATTENTION.bind(*args, **kwargs).arguments)
    is_self = arguments["query"] is arguments["key"] and arguments["key"] is arguments["value"]
    if not is_self or arguments.get("use_separate_proj_weight"):
        return None

    def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return mode.__torch_function__(F.linear, (), (inputs, weight, bias))

    projected = linear(arguments["query"], arguments["in_proj_weight"], arguments["in_proj_bias"])
    identity = torch.eye(projected.shape[-1] // 3, dtype=projected.dtype, device=projected.device)
    identities = dict.fromkeys(("q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj_weight"), identity)
    without = {"in_proj_weight": None, "in_proj_bias": None, "out_proj_bias": None, "use_separate_proj_weight": True}
    parts = dict(zip(("query", "key", "value"), projected.chunk(3, dim=-1), strict=True))
    options = {**arguments, **parts, **identities, **without}
    mixed, weights = mode.__torch_function__(F.multi_head_attention_forward, (), (), options)
    return linear(mixed, arguments["out_proj_weight"], arguments["out_proj_bias"]), weights


_USES: WeakKeyDictionary[Network, dict[Any, dict[str, Use]]] = WeakKeyDictionary()


def taken(density: LogDensity, batch: Batch, estimator: Estimator) -> tuple[dict[str, How], dict[str, Use]]:
    """Return the estimator of each parameter, and how layers use those that are not drawn.

    `batch` holds one minibatch per member, (M, B, ...).
    """
    rows = batch.map(lambda t: t[0])
    return how(density, rows, estimator), uses(density.model.network, rows.inputs)


def has_layers(density: LogDensity, batch: Batch) -> bool:
    """Return whether any layer can take its weights as distributions, from one minibatch per member, (M, B, ...)."""
    return bool(uses(density.model.network, batch.map(lambda t: t[0]).inputs))


def how(density: LogDensity, rows: Batch, estimator: Estimator) -> dict[str, How]:
    """Return the estimator of each parameter, from some rows, (B, ...)."""
    used = uses(density.model.network, rows.inputs)
    auto: dict[bool, How] = {True: "local", False: "flipout"}
    return {
        name: (auto[used[name].single] if estimator == "auto" else estimator) if name in used else "drawn"
        for name in density.model.layout.names
    }


def uses(network: Network, inputs: Any) -> dict[str, Use]:
    """Return the parameters that layers can take as distributions, by name, from some rows (B, ...).

    The first row is passed twice and three times: the axis of the rows is the one that grows with them, whatever the
    other lengths are. It is found once for rows of one shape.
    """
    known, key = _USES.setdefault(network, {}), tuple(tuple(t.shape[1:]) for t in tensors_of(inputs))
    if key not in known:
        try:
            two, three = (_watched(network, repeated(inputs, count)) for count in (2, 3))
        except Exception:
            known[key] = {}
        else:
            known[key] = _compared(two, three)
    return known[key]


def _watched(network: Network, inputs: Any) -> _Watch | None:
    """Return how a network in training mode uses its parameters; None if layers cannot take distributions."""
    held, inputs = dict(network.initial), network.arrange(inputs)
    state = {name: buffer.clone() for name, buffer in network.buffers.items()}
    with torch.no_grad(), network.training(), drawing(network, mix(Purpose.LAYER_TRIAL, 0)):
        network.ask(held, inputs, state)  # may run the network once more
        with _Watch(held) as watch, _Sizes() as sizes:
            network(held, inputs, state)
    return None if watch.differentiates or sizes.depend else watch


def _compared(two: _Watch | None, three: _Watch | None) -> dict[str, Use]:
    """Return the uses of parameters by layers whose rows are known, from passes of two and of three rows."""
    if two is None or three is None:
        return {}
    known = dict[str, Use]()
    for name, (layer, call) in three.calls.items():
        before = two.calls.get(name)
        axis = None if before is None else _row_axis(before[1], call)
        if axis is not None and two.counts[name] == three.counts[name] == 1:
            known[name] = Use(layer, call.inputs.ndim, axis, call.linear and call.inputs.ndim == _MATRIX)
    # If one tensor of a layer is used elsewhere, both are drawn.
    drawn = {layer for name, (layer, _) in three.calls.items() if name not in known}
    return {name: use for name, use in known.items() if use.layer not in drawn}


def _row_axis(two: Call, three: Call) -> int | None:
    """Return the axis of the rows in a layer's inputs; None without one, or if rows share it with positions.

    In a linear layer it is any axis but the channels, in a convolution the one in front of them.
    """
    sizes = [*zip(two.inputs.shape, three.inputs.shape, strict=False)]
    grown = [axis for axis, (a, b) in enumerate(sizes) if a != b]
    if two.inputs.ndim != three.inputs.ndim or len(grown) != 1 or sizes[grown[0]] != (2, 3):
        return None
    axes, (axis,) = three.inputs.ndim, grown
    fits = axis < axes - 1 if three.linear else axis == 0 and axes == three.weight.ndim
    return axis if fits else None
