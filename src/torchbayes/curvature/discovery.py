"""The layers that hold a model's random weights, and how the curvature of each is computed: found by probing, once.

A layer's own form is used only where it is valid: its module must turn one tensor into one tensor whose first axis is
the rows, and the resulting gradient must equal that of autograd. Weights for which this fails (tied ones, those of
`nn.MultiheadAttention` and of recurrent layers) fall back to vector-Jacobian products of the whole network, one per
row: exact, and slow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap
from torch.utils import _pytree as pytree

from torchbayes.curvature.capture import Captured, probe, pulled_back, random_column, requires_grad, watch, watched
from torchbayes.curvature.layers import Affine, Call, Layer, Other, layers_of, linear_by
from torchbayes.curvature.parts import COLUMNS_AT_ONCE
from torchbayes.model.batches.batch import batch_size, on_rows, row_axes, rows_of
from torchbayes.model.layout import Layout
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers, Network, taking
from torchbayes.model.probes.functions import refuse_coupled
from torchbayes.native.process import differentiable, plain_attention, quiet_vmap
from torchbayes.randomness.seeds import Purpose

CaptureScope = Literal["everywhere", "in turn", "few"]
"""Inputs of layers at every place are held for all layers, for one layer at a time, or for a few of its rows."""

_PROBE_ROWS = 4
SPREAD_ROWS = 16
_WIDTHS = 10  # a forward pass may hold this many tensors of the size of the largest output of a module


@dataclass(frozen=True, eq=False)
class Whole:
    """Weights without a layer form of their own: vector-Jacobian products of the whole network, one per row."""

    index: Tensor  # positions of the weights in the flat vector, int64 (n,)
    network: Network
    layout: Layout
    reason: str  # why no layer holds them
    stacked: bool = True  # whether rows go together, by `vmap`, or one after the other

    module = ""
    description = "rows of the whole network"

    def jacobian(self, views: Mapping[str, Tensor], inputs: Any, column: Tensor, *, buffers: Buffers | None) -> Tensor:
        """Return the Jacobian of one column (B, ...) for each row, (B, n)."""
        weights = {name: views[name].detach() for name in self.layout.names}
        constants = {n: v.detach() for n, v in views.items() if n not in weights}

        def run(named: dict[str, Tensor], row: Any, cotangent: Tensor) -> Tensor:
            alone = on_rows(lambda t: t.unsqueeze(0), row)
            return self.network({**constants, **named}, alone, buffers or None).view_as(cotangent)

        def one(row: Any, cotangent: Tensor) -> Tensor:
            return self.layout.join(vjp(lambda named: run(named, row, cotangent), weights)[1](cotangent)[0])

        def plain(row: Any, cotangent: Tensor) -> Tensor:
            leaves = {name: view.requires_grad_() for name, view in weights.items()}
            with differentiable():
                gradients = torch.autograd.grad(
                    run(leaves, row, cotangent),
                    [*leaves.values()],
                    cotangent,
                    create_graph=keep,
                    materialize_grads=True,
                )
            return self.layout.join(dict(zip(leaves, gradients, strict=True)))

        # derivatives of vectorised derivatives are wrong for some of torch's layers, such as layer norm
        keep = column.requires_grad or requires_grad(inputs)
        with plain_attention(), quiet_vmap():
            if self.stacked and not keep:
                return vmap(one, in_dims=(row_axes(inputs, 0), 0))(inputs, column)
            return torch.stack([plain(rows_of(inputs, b), column[b]) for b in range(len(column))])


@dataclass(frozen=True, eq=False)
class NetworkLayers:
    """The layers of a model's random weights.

    Attributes:
        model: the model.
        layers: in the order of the flat vector; together with `whole` they hold every random weight once.
        whole: weights that belong to no layer, or None.
        shared: modules that use their weights at several places for one row.
    """

    model: Model
    layers: tuple[Layer, ...]
    whole: Whole | None = None
    shared: frozenset[str] = frozenset()

    @property
    def single(self) -> Affine | None:
        """The only layer, if it is affine and used at one place."""
        only = self.layers[0] if len(self.parts) == 1 and self.layers else None
        return only if isinstance(only, Affine) and len(only.index) == 1 and only.module not in self.shared else None

    @property
    def parts(self) -> tuple[Any, ...]:
        """All layers, and last the weights that belong to none."""
        return (*self.layers, self.whole) if self.whole else self.layers

    @property
    def size(self) -> int:
        """Number of random weights of the network."""
        return self.model.network.layout.size

    @property
    def order(self) -> Tensor:
        """Positions of the weights in the flat vector, part by part, int64 (D,)."""
        return torch.cat([layer.index.flatten() for layer in self.parts])

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules whose calls are captured."""
        return tuple(dict.fromkeys(layer.module for layer in self.layers))

    def watch(
        self, views: Mapping[str, Tensor], inputs: Any, buffers: Buffers | None, *, keep: bool = False
    ) -> Captured:
        """Return a forward pass with the captured inputs of the layers."""
        network = self.model.network
        return watch(network, views, inputs, modules=self.modules, buffers=buffers, keep_inputs=keep)

    def describe(self) -> str:
        """Return a few lines that say how the curvature of each layer is computed."""
        lines = [f"{layer.module or 'the network itself'}: {layer.description}" for layer in self.layers]
        if self.whole:
            lines.append(f"{', '.join(self.whole.layout.names)}: {self.whole.description} ({self.whole.reason})")
        return "\n".join(lines)


@dataclass(frozen=True)
class LayerSupport:
    """The layers of a network that can be treated by their own forms, in a form that files can hold.

    Attributes:
        lost: parameter -> why no layer holds it.
        shared: modules that use their weights at several places for one row.
        stacked: whether rows of the whole network go together under `vmap`.
        numbers: numbers that a row takes while the curvature is summed, roughly, by `CaptureScope`.
        widest: numbers that a row takes in the forward pass, perhaps mostly in modules without random weights.
        linear: modules that are linear layers but of no class of torch -> the axis of their weights that has the
            outputs, "rows" or "columns".
        outputs: numbers that the network gives for a row.
    """

    lost: Mapping[str, str]
    shared: tuple[str, ...]
    stacked: bool
    numbers: Mapping[CaptureScope, int]
    widest: int = 1
    linear: Mapping[str, str] = field(default_factory=dict)
    outputs: int = 1

    def text(self) -> str:
        """Return the support as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> LayerSupport:
        """Return the support from its `text`."""
        values = json.loads(text)
        return cls(**{**values, "shared": tuple(values["shared"])})


def network_layers(model: Model, support: LayerSupport, *, joint_bias: bool = True) -> NetworkLayers:
    """Return the layers of a model's random weights.

    Args:
        model: the model.
        support: as `layer_support` found it.
        joint_bias: whether biases are an extra column of their weights, or layers of their own.
    """
    network, places = model.network, _places(model.network)
    layers: list[Layer] = []
    for module, parameters in _owners(network)[0].items():
        index_by_key = {key: places[name] for key, name in parameters.items() if name not in support.lost}
        if index_by_key:
            layer_module, linear = network.module.get_submodule(module), support.linear.get(module)
            layers += layers_of(module, layer_module, index_by_key, joint=joint_bias, linear=linear)
    whole = None
    if support.lost:
        layout = Layout({n: s for n, s in network.layout.shapes.items() if n in support.lost})
        index = torch.cat([places[name].flatten() for name in layout.names])
        whole = Whole(index, network, layout, "; ".join(dict.fromkeys(support.lost.values())), support.stacked)
    return NetworkLayers(model, tuple(layers), whole, frozenset(support.shared))


def layer_support(model: Model, weights_D: Tensor, inputs: Any) -> LayerSupport:
    """Return which layers of a model's network can be treated by their own forms.

    Args:
        model: the model.
        weights_D: any weights; the answer does not depend on them, except by coincidence.
        inputs: some rows of data.

    Raises:
        ValueError: if the network has batch norm without running statistics, or cannot take the inputs.
    """
    network = model.network
    refuse_coupled(model)
    views, _ = model.split(weights_D)
    rows = network.arrange(_few(inputs))
    with torch.no_grad(), taking(inputs):  # an error then names the shape of all rows, not of these few
        network(views, rows)
    owners, lost = _owners(network)
    reasons: dict[str, str] = {}
    for order in _spread(inputs):
        reasons |= probe(network, views, network.arrange(order), modules=list(owners))
    while True:  # until every layer's gradient equals autograd's
        lost |= {name: reasons[module] for module in reasons for name in owners[module].values()}
        linear = _linear(network_layers(model, LayerSupport(lost, (), True, {})), views, rows)
        layers = network_layers(model, LayerSupport(lost, (), True, {}, linear=linear))
        wrong = _wrong(layers, views, rows)
        if not wrong:
            break
        reasons |= dict.fromkeys(wrong, "its weights are used outside its forward")
    sizes = [1]  # numbers per row of each output of the innermost modules

    def see(_: str, __: Any, output: Any) -> None:
        leaves = (t for t in pytree.tree_leaves(output) if isinstance(t, Tensor))
        sizes.extend(t.numel() // len(t) for t in leaves if t.ndim and t.numel())

    innermost = [name for name, child in network.module.named_modules() if not [*child.children()]]
    with watched(network, innermost, see):
        captured = layers.watch(views, rows, None)
    shared = tuple(module for module, calls in captured.calls.items() if _several(network, module, calls))
    stacked = layers.whole is None or _can_stack(layers.whole, views, rows)
    numbers, outputs = _numbers(layers, captured, shared), captured.outputs[0].numel()
    return LayerSupport(lost, shared, stacked, numbers, _WIDTHS * max(sizes), linear, outputs)


def _places(network: Network) -> dict[str, Tensor]:
    """Return the positions of each parameter's elements in the flat vector, in its shape."""
    slices, shapes = network.layout.slices, network.layout.shapes
    return {n: torch.arange(s.start, s.stop, device=network.device).view(shapes[n]) for n, s in slices.items()}


def _few(inputs: Any) -> Any:
    """Return a few rows, at least two."""
    first = rows_of(inputs, slice(0, _PROBE_ROWS))
    return on_rows(lambda t: torch.cat([t, t]), first) if batch_size(first) == 1 else first


def _spread(inputs: Any) -> list[Any]:
    """Return rows spread over a batch, at least two, and the same ones in reverse.

    A network may reorder its rows, for example by length. Rows of different length cannot be in that order both ways.
    """
    rows = batch_size(inputs)
    places = torch.arange(0, rows, -(-rows // SPREAD_ROWS)) if rows > 1 else torch.zeros(2, dtype=torch.int64)
    return [rows_of(inputs, numbers) for numbers in (places, places.flip(0))]


def _owners(network: Network) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Return module -> its random parameters (name in it -> name in the layout), and lost parameters -> why."""
    held: dict[str, list[tuple[str, str]]] = {}
    names = {id(p): n for n, p in network.module.named_parameters()}
    for module, owner in network.module.named_modules():
        for key, tensor in owner._parameters.items():
            name = names.get(id(tensor), "")
            if name in network.layout.shapes:
                held.setdefault(name, []).append((module, key))
    owners: dict[str, dict[str, str]] = {}
    lost: dict[str, str] = {}
    for name in network.layout.names:
        if len(held[name]) > 1:
            lost[name] = "several layers share the weights"
        elif name in network.mask.indices:
            lost[name] = "only some of the weights are random"
        else:
            module, key = held[name][0]
            owners.setdefault(module, {})[key] = name
    return owners, lost


def _linear(network: NetworkLayers, views: Mapping[str, Tensor], inputs: Any) -> dict[str, str]:
    """Return the modules without a form of their own that prove to be linear layers, as `linear_by` says."""
    parts = {layer.module: layer.part for layer in network.layers if isinstance(layer, Other)}
    if not parts:
        return {}
    calls = watch(network.model.network, views, inputs, modules=[*parts]).calls
    by = {module: linear_by(layer_module, calls[module][0]) for module, layer_module in parts.items()}
    return {module: axis for module, axis in by.items() if axis}


def _wrong(network: NetworkLayers, views: Mapping[str, Tensor], inputs: Any) -> list[str]:
    """Return the modules whose layers do not give autograd's gradient of a random combination of the outputs."""
    if not network.layers:
        return []
    captured = network.watch(views, inputs, None)
    column = random_column(captured.outputs, Purpose.LAYERS)
    leaves = list(captured.leaves.values())
    truth = pulled_back(captured.outputs, leaves, column, retain_graph=True, allow_unused=True)
    exact = [torch.zeros_like(v) if t is None else t for t, v in zip(truth, captured.leaves.values(), strict=True)]
    exact_D = torch.cat([t.flatten() for t in exact])
    (calls,) = captured.columns(column.unsqueeze(0))
    wrong = []
    for layer in network.layers:
        expected = exact_D[layer.index.flatten()]
        tolerance = 1e3 * torch.finfo(expected.dtype).eps * float(exact_D.abs().max())
        try:
            total = layer.rows(calls[layer.module]).sum(0).flatten()
        except Exception:  # it cannot be vectorised, or takes its input by a keyword alone
            total = torch.full_like(expected, torch.nan)
        if not torch.allclose(total, expected, rtol=1e-2 if total.dtype == torch.float32 else 1e-6, atol=tolerance):
            wrong.append(layer.module)
    return wrong


def _several(network: Network, module: str, calls: Sequence[Call]) -> bool:
    """Return whether a module is called several times, or sees several places of a row."""
    convolves = isinstance(network.module.get_submodule(module), nn.Conv1d | nn.Conv2d)
    return convolves or len(calls) > 1 or calls[0].inputs.ndim > 2


def _numbers(network: NetworkLayers, seen: Captured, shared: Sequence[str]) -> dict[CaptureScope, int]:
    """Return how many numbers one row takes, by scope."""
    calls = next(seen.columns([torch.ones_like(seen.outputs)])) if network.layers else {}
    columns = min(COLUMNS_AT_ONCE, seen.outputs[0].numel())
    total_inputs, places, jacobian, few = 0, [0], 1, 0
    for layer in network.layers:
        factors = isinstance(layer, Affine) and layer.module in shared  # computed for a few rows at a time
        for call in calls[layer.module]:
            num_inputs, num_outputs = call.inputs[0].numel(), call.outputs[0].numel()
            places.append((layer.inputs(call.inputs)[0] if isinstance(layer, Affine) else call.inputs[0]).numel())
            total_inputs += num_inputs
            few += num_inputs + columns * num_outputs if factors else 2 * (num_inputs + places[-1] + num_outputs)
        if layer.module in shared:
            jacobian = max(jacobian, layer.index.numel())
            few += 0 if factors else layer.index.numel()
    whole = network.whole.index.numel() if network.whole else 0
    return {
        "everywhere": 2 * (sum(places) + total_inputs) + jacobian + whole,
        "in turn": 3 * max(places) + 4 * total_inputs + whole,
        "few": few + whole,
    }


def _can_stack(whole: Whole, views: Mapping[str, Tensor], inputs: Any) -> bool:
    """Return whether rows of the whole network can go together."""
    with torch.no_grad():
        column = torch.ones_like(whole.network(views, inputs))
    try:
        whole.jacobian(views, inputs, column, buffers={n: b.clone() for n, b in whole.network.buffers.items()})
    except RuntimeError:
        return False
    return True
