"""Dropout masks that belong to a drawn function: the same for every row of every batch (Gal and Ghahramani 2016).

Under q a unit of layer l is kept with probability k_l; if it is dropped, the rows of the weights that act on it are
zero. A draw of the weights is thus one mask z of each dropout layer, shared by all rows, and inverted dropout
multiplies its inputs by z / k. PyTorch in training mode draws a mask for every row. Each row's outputs then have the
same distribution, but belong to no one function: two rows of a batch are rows of two different networks.

While `Masked` is active, each Bernoulli number that a network draws in training mode is a function of the seed of the
draw, the place of the call among those of a forward pass, and the position in a row: channel, position of a sequence,
pixel. A sequence of another length has the masks of its positions. It works below the modules, and so covers
nn.Dropout, Dropout1d to 3d, AlphaDropout, F.dropout, attention, nn.LSTM and StochasticDepth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import MappingProxyType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase  # no public base class covers every norm with statistics
from torch.nn.modules.dropout import _DropoutNd  # no public base class covers every dropout

from torchbayes.model.batches.batch import batch_size, repeated, tensors_of
from torchbayes.model.functional_call import drops
from torchbayes.model.network import Buffers, Network
from torchbayes.native.process import plain_attention
from torchbayes.randomness.generators import DispatchMode, draws
from torchbayes.randomness.seeds import Purpose, fractions, mix

Draw = Callable[..., Tensor]
Run = Callable[[Any], Tensor]
"""A network with its weights: inputs -> outputs (B, ..., K)."""

_BERNOULLI, _DROPOUT = torch.ops.aten.bernoulli_.float, torch.ops.aten.native_dropout.default
_ADVICE = "Put nn.Dropout between its layers, as torchbayes.networks.mlp(..., dropout=0.1) does."


class DropoutError(ValueError):
    """A network's dropout cannot be drawn as masks of a function."""


class Mask(NamedTuple):
    """The dropout masks of one drawn function."""

    seed: int
    rates: Mapping[str, float] = MappingProxyType({})  # of layers by name, where they differ from the layers' own


def dropouts(network: Network) -> tuple[str, ...]:
    """Return the names of the dropout layers that are on in training mode and have a positive rate, in order."""
    with network.training():
        named = [(n, m) for n, m in network.module.named_modules() if isinstance(m, _DropoutNd) and m.training]
    return tuple(n for n, m in named if m.p > 0)


def rates(network: Network) -> list[float]:
    """Return the probabilities that the layers of `dropouts` drop a unit."""
    layers: list[Any] = [network.module.get_submodule(name) for name in dropouts(network)]
    return [float(layer.p) for layer in layers]


def has_dropout(network: Network) -> bool:
    """Return whether a network has a dropout layer, or a module with a setting of that name, as attention has."""
    with network.training():
        return any(drops(m) for m in network.module.modules() if m.training)


def check_dropout(network: Network) -> None:
    """Raise DropoutError if a network has no dropout in a part with random weights."""
    if not has_dropout(network):
        raise DropoutError(
            f"the network has no dropout in a part with random weights, so all its draws would be one function. "
            f"{_ADVICE} Dropout in parts that are frozen stays off."
        )


def distinct(seed: int, call: int, shape: Sequence[int], *, keep: float) -> Tensor:
    """Return numbers from 1 to 2 in the place of `kept` ones; no two places share a number, whatever `keep` is."""
    return 1 + _fractions(seed, call, shape)


def kept(seed: int, call: int, shape: Sequence[int], *, keep: float) -> Tensor:
    """Return which units are kept, bool, of the shape of one row; a longer row begins with the mask of a shorter one.

    `call` is the place of the dropout among those of a forward pass, `keep` the probability of being kept.
    """
    return _fractions(seed, call, shape) < keep


def _fractions(seed: int, call: int, shape: Sequence[int]) -> Tensor:
    """Return uniform numbers for a call of dropout."""
    return torch.from_numpy(fractions(mix(Purpose.MASKS, seed, call), shape))


class Masked(DispatchMode):
    """While active, the Bernoulli numbers of one forward pass are the masks of one drawn function."""

    def __init__(self, seed: int, rows: int, axes: Sequence[int | None], *, draw: Draw | None = None) -> None:
        """Begin a forward pass.

        For each call of dropout, `axes` is the axis of the batch's `rows`, or None. `draw` makes the masks: by default
        zeros and ones of `kept`.
        """
        super().__init__()
        self._seed, self._rows, self._axes, self._calls, self._draw = seed, rows, axes, 0, draw or kept

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return an operation's result, with masks for Bernoulli numbers; other random numbers are refused."""
        if func is _BERNOULLI:
            return args[0].copy_(
                self._mask(args[0].shape, args[1] if len(args) > 1 else 0.5)
            )  # a call leaves out the default, 0.5
        if func is _DROPOUT and (args[2] is None or args[2]):
            mask = self._mask(args[0].shape, 1 - args[1]).to(args[0].device).expand(args[0].shape)
            return args[0] * mask.to(args[0]) / (1 - args[1]), mask
        check_drawn(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _mask(self, shape: Sequence[int], keep: float) -> Tensor:
        """Return the mask of the next call, which can be broadcast to its shape.

        It raises DropoutError if the shape does not fit that for the first rows.
        """
        call, sizes = self._calls, [*shape]
        self._calls += 1
        axis = self._axes[call] if call < len(self._axes) else -1
        if axis is None:
            return self._draw(self._seed, call, sizes, keep=keep)
        if axis < 0 or axis >= len(sizes) or sizes[axis] % self._rows:
            raise DropoutError(
                f"dropout acts on other shapes from batch to batch: call {call + 1} of a forward pass is on shape "
                f"{tuple(shape)} for {self._rows} rows, unlike for the first rows. Its masks cannot be one function's."
            )
        copies = sizes.pop(axis) // self._rows
        if copies == 1:
            return self._draw(self._seed, call, sizes, keep=keep).unsqueeze(axis)
        sizes.insert(axis, copies)  # heads or windows, next to each other for each row
        repeats = [self._rows if at == axis else 1 for at in range(len(sizes))]
        return self._draw(self._seed, call, sizes, keep=keep).repeat(repeats)


class _Seen(DispatchMode):
    """Notes the shapes on which dropout acts, and drops nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return an operation's result, with ones in the place of random numbers."""
        if func is _BERNOULLI or (func is _DROPOUT and (args[2] is None or args[2])):
            self.shapes.append(tuple(args[0].shape))
            return args[0].fill_(1.0) if func is _BERNOULLI else (args[0].clone(), torch.ones_like(args[0]).bool())
        check_drawn(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def check_drawn(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise DropoutError if an operation draws random numbers."""
    if draws(func, args, kwargs):
        raise DropoutError(
            f"the network draws random numbers in training mode that are no dropout masks: {func}. A drawn function "
            f"must have none of its own. Take noise layers out of the network, or replace them by dropout."
        )


@contextmanager
def dropping(network: Network) -> Iterator[None]:
    """Switch on dropout inside the `with`: training mode for all live modules but norms with statistics."""
    with network.training(), _attention_in_pieces(network.device):
        for submodule in network.module.modules():
            if isinstance(submodule, _NormBase):
                submodule.training = False
        yield


def _attention_in_pieces(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which attention with dropout runs in no kernel that draws masks of its own."""
    return nullcontext() if device.type == "cpu" else plain_attention()


_AXES: WeakKeyDictionary[Any, dict[Any, list[int | None]]] = WeakKeyDictionary()


def row_axes(owner: Any, run: Run, inputs: Any, *, idle: Sequence[str] = ()) -> list[int | None]:
    """Return, for each call of dropout in a forward pass, which axis holds the rows, or None.

    The first row of `inputs` is passed twice and three times: the axis of the rows is the one that grows. A third pass,
    with numbers that differ at all places instead of masks, must give equal outputs for equal rows. The result is
    remembered for `owner` (the network), rows of one shape, and the layers that are `idle`, whose rate is 0. It raises
    DropoutError if there is no dropout, or its masks cannot be the same for all rows.
    """
    shapes_of_row = tuple(tuple(t.shape[1:]) for t in tensors_of(inputs))
    axes_by_shape, key = _AXES.setdefault(owner, {}), (shapes_of_row, tuple(idle))
    if key in axes_by_shape:
        return axes_by_shape[key]
    shapes = []
    for count in (2, 3):
        with _Seen() as seen:
            run(repeated(inputs, count))
        shapes.append(seen.shapes)
    if not shapes[0] and not idle:
        raise DropoutError(f"no dropout acts in a forward pass, so all draws are one function. {_ADVICE}")
    if len(shapes[0]) != len(shapes[1]):
        raise DropoutError("dropout acts on some rows and not on others, so that its masks cannot be one function's.")
    axes = [_row_axis(two, three) for two, three in zip(*shapes, strict=True)]
    with Masked(0, 3, axes, draw=distinct):
        outputs = run(repeated(inputs, 3))
    scale = float(outputs.abs().max())
    if not torch.allclose(outputs, outputs[:1].expand_as(outputs), rtol=1e-3, atol=1e-3 * scale, equal_nan=True):
        raise DropoutError(
            "three equal rows of a batch have unequal outputs under one set of dropout masks, so the network lays out "
            "rows in a way that is not known here. Use dropout on tensors whose first axis is the rows."
        )
    axes_by_shape[key] = axes
    return axes


def _row_axis(two: Sequence[int], three: Sequence[int]) -> int | None:
    """Return which axis of the shapes for two and three rows holds the rows; DropoutError if this is not clear."""
    grown = [axis for axis, (a, b) in enumerate(zip(two, three, strict=False)) if a != b]
    if not grown and len(two) == len(three):
        return None
    if len(two) != len(three) or len(grown) > 1 or two[grown[0]] * 3 != three[grown[0]] * 2:
        raise DropoutError(
            f"dropout acts on shape {tuple(two)} for two rows and on {tuple(three)} for three, in which no axis is "
            f"that of the rows, so that its masks cannot be one function's."
        )
    return grown[0]


def masked(
    network: Network, views: Mapping[str, Tensor], inputs: Any, *, buffers: Buffers | None, mask: Mask
) -> Tensor:
    """Return the outputs of a network under the masks of one draw, inside `dropping`; buffers are not changed."""
    originals = network.buffers if buffers is None else buffers

    def run(rows: Any) -> Tensor:  # in training mode a network may write to its buffers
        return network(views, rows, {name: buffer.clone() for name, buffer in originals.items()})

    network.ask(views, inputs, {name: buffer.clone() for name, buffer in originals.items()})
    return under(mask, network, network.module, run=run, inputs=inputs)


def under(mask: Mask, owner: Any, module: nn.Module, *, run: Run, inputs: Any) -> Tensor:
    """Return the outputs of a network in training mode under the masks of one draw.

    `owner` is the key of `row_axes`. The layers of `module` have the rates of the draw meanwhile.
    """
    layers: dict[str, Any] = {name: module.get_submodule(name) for name in mask.rates}
    before = {name: layer.p for name, layer in layers.items()}
    try:
        for name, layer in layers.items():
            layer.p = mask.rates[name]
        idle = [name for name, rate in mask.rates.items() if not rate]  # PyTorch draws no numbers for them
        axes = row_axes(owner, run, inputs, idle=idle)
        with Masked(mask.seed, batch_size(inputs), axes):
            return run(inputs)
    finally:
        for name, layer in layers.items():
            layer.p = before[name]
