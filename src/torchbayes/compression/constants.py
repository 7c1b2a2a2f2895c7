"""Units that are constants, and how the layers behind them make up for them.

A unit with zeros for all of its own weights is a constant only if nothing on its way to the next layer mixes it with
others: a norm, a gate or a softmax over units makes it a function of the inputs again. To test this, the network runs
with noise in place of its inputs and of all units that have weights. A constant c that a layer takes with weights w
goes into the layer's bias, b ← b + w c. If that is not possible, because the layer has no bias or sees zeros beyond a
border, one constant c₀ stays and represents all: w₀ ← w₀ + w c/c₀.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from torchbayes.compression.surgery import CONVOLUTIONS
from torchbayes.geometry.symmetry.permutations import Place
from torchbayes.model.batches.batch import arguments, copied
from torchbayes.randomness.seeds import Purpose, generator

ROUNDING = 1000  # units of the last place, because sums of fewer terms are taken in another order


class Taken(NamedTuple):
    """Constants as a layer takes them."""

    layer: Any
    positions: Tensor  # of the units along its inputs, (units, inner)
    values: Tensor  # likewise
    steady: Tensor  # which units are constants there, bool (units,)

    @property
    def needs_carrier(self) -> bool:
        """Whether constants cannot go into a bias, or the layer sees zeros beyond the border of its inputs."""
        padding = getattr(self.layer, "padding", 0)
        is_padded = padding == "same" if isinstance(padding, str) else bool(torch.tensor(padding).any())
        return self.layer.bias is None or (is_padded and self.layer.padding_mode == "zeros")

    def give_up(self, units: Tensor, carrier: int | None) -> None:
        """Let the bias, or one of the constants, represent some units, whose weights become zero."""
        weight = self.layer.weight
        gone, values = self.positions[units].flatten(), self.values[units].flatten()
        if not self.needs_carrier:
            self.layer.bias += weight.index_select(1, gone).unsqueeze(-1).flatten(2).sum(2) @ values
        elif carrier is not None:
            shares = (self.values[units] / self.values[carrier]).view(-1, *[1] * (weight.ndim - 2))
            added = (weight.index_select(1, gone) * shares).unflatten(1, (-1, self.positions.shape[1])).sum(1)
            weight.index_add_(1, self.positions[carrier], added)
        weight.index_fill_(1, gone, 0.0)


@torch.no_grad()
def fold(network: nn.Module, taking: Sequence[Place], units: Tensor, *, inputs: Any) -> None:
    """Let biases, or one constant, represent those of `units`, bool (size,), that are constants; others stay.

    `taking` are the places where layers take the units. The network is changed in place.
    """
    numbers = units.nonzero()[:, 0]
    taken = _constants(network, taking, numbers, inputs)
    if taken is None:
        return
    gone, carrier = torch.stack([layer.steady for layer in taken]).all(0), None
    if sizes := [layer.values.abs() for layer in taken if layer.needs_carrier]:
        least = torch.stack([size.amin(1) for size in sizes]).amin(0).where(gone, 0.0)
        if least.any():
            carrier = int(least.argmax())
            gone[carrier] = False
        else:
            gone &= torch.stack([size.amax(1) == 0 for size in sizes]).all(0)
    for layer in taken if gone.any() else ():
        layer.give_up(gone, carrier)


def _constants(network: nn.Module, taking: Sequence[Place], numbers: Tensor, inputs: Any) -> list[Taken] | None:
    """Return units as layers take them; None if a layer is not seen, or the network does not run on noise."""
    owners = [place.name.rpartition(".")[0] for place in taking]
    try:
        runs = [_inputs_of(network, set(owners), rows, noise) for rows, noise in ((inputs, False), (inputs, True))]
    except (RuntimeError, ValueError, TypeError, IndexError):
        return None
    constants = []
    for place, owner in zip(taking, owners, strict=True):
        layer: Any = network.get_submodule(owner)
        index, axis = place.positions(numbers).to(layer.weight.device), _axis(layer)
        activations = [x.movedim(axis, 0)[index].flatten(2) for run in runs for x in run[owner]]
        if not activations:
            return None
        values = torch.cat(activations, dim=2)
        spread, size = values.amax(2) - values.amin(2), values.abs().amax(2)
        steady = (spread <= ROUNDING * torch.finfo(values.dtype).eps * size).all(1)
        constants.append(Taken(layer, index, values[..., 0], steady))
    return constants


def outputs_of(network: nn.Module, inputs: Any) -> list[Tensor]:
    """Return the tensors that a network returns for inputs, which are not changed."""
    args, kwargs = arguments(copied(inputs))
    with torch.no_grad():
        return [leaf for leaf in pytree.tree_leaves(network(*args, **kwargs)) if isinstance(leaf, Tensor)]


def _inputs_of(network: nn.Module, layers: Set[str], inputs: Any, noise: bool) -> dict[str, list[Tensor]]:
    """Return the inputs of some layers at each call; with noise in place of network inputs and units with weights."""
    inputs_seen: dict[str, list[Tensor]] = {name: [] for name in layers}

    def note(name: str, _: nn.Module, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        inputs_seen[name].append(args[0] if args else named["input"])

    hooks = [
        network.get_submodule(name).register_forward_pre_hook(partial(note, name), with_kwargs=True) for name in layers
    ]
    if noise:
        random = partial(_noise, generator(Purpose.UNIT_NOISE))
        hooks += [
            layer.register_forward_hook(partial(_disturbed, random), prepend=True)
            for layer in network.modules()
            if isinstance(layer, (nn.Linear, *CONVOLUTIONS))
        ]
        inputs = pytree.tree_map_only(Tensor, lambda x: random(x) if x.is_floating_point() else x, copied(inputs))
    try:
        outputs_of(network, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return inputs_seen


def _noise(source: torch.Generator, like: Tensor) -> Tensor:
    """Return noise like a tensor: of both signs and all sizes, so that no threshold hides it."""
    return torch.empty(like.shape, dtype=torch.float64).cauchy_(generator=source).to(like)


def _disturbed(random: Callable[[Tensor], Tensor], layer: Any, args: Any, output: Tensor) -> Tensor:
    """Return noise in place of the outputs of a layer; outputs without weights stay."""
    del args
    has_weights = (layer.weight.detach() != 0).flatten(1).any(1)
    axis = _axis(layer) % output.ndim
    return torch.where(has_weights.view(-1, *[1] * (output.ndim - 1 - axis)), random(output), output)


def _axis(layer: Any) -> int:
    """Return the axis of channels or features, counted from the last."""
    return 1 - layer.weight.ndim if isinstance(layer, CONVOLUTIONS) else -1
