r"""Hidden units without effect, found and taken out, so that a network becomes smaller and its outputs stay.

A unit has no effect where all weights that take it are zero; or where all its own weights are, so that it is a
constant, which goes into the biases of what takes it. Its other weights are then zero as well, which may leave units
before it without effect: units are looked for until no more are found. `torchbayes.geometry` says which axes of which
parameters hold the same units. What is left of a linear layer then takes those inputs alone whose weights are not zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from torchbayes.compression.plain import filled
from torchbayes.compression.surgery import CONVOLUTIONS, NORMS, Surgery
from torchbayes.geometry.symmetry.permutations import PermutationGroup, Place, permutation_groups
from torchbayes.model.layout import Globs
from torchbayes.model.model import Model, having
from torchbayes.model.network import Network
from torchbayes.model.priors.univariate import Flat
from torchbayes.model.rows.batch import arguments, copied, rows_of
from torchbayes.model.rows.sources import as_source

_ROWS = 64
_ROUNDING = 1000  # units of the last place: sums of fewer terms are taken in another order


class Smaller(NamedTuple):
    """A network before and after units were taken out.

    Attributes:
        whole: the network in full size, with zeros for what is gone.
        network: the smaller one.
        surgery: how it was made.
        stayed: why hidden units without effect may still be there, a sentence each.
        difference: the largest between outputs of the two, relative to the largest output.
    """

    whole: nn.Module
    network: nn.Module
    surgery: Surgery
    stayed: tuple[str, ...]
    difference: float


def smaller(network: nn.Module, like: Model, data: Any, *, random: Globs = "*") -> Smaller:
    """Return a network without the units that have no effect, as its weights that are zero say.

    Args:
        network: a plain network.
        like: a model of such a network: how rows are unpacked.
        random: its random parameters; units stay whose weights are constants.
        data: as for `fit`; a few rows are looked at.

    Returns:
        The network before and after.

    Raises:
        ValueError: if there are no rows.
    """
    own = Network(network, random, class_axis=like.network.class_axis)
    model = having(like, network=own, prior=Flat())
    inputs = rows_of(next(iter(as_source(model, data, 1024).inputs())), slice(0, _ROWS))
    whole, groups, stayed = filled(network, {}), tuple[PermutationGroup, ...](), list[str]()
    try:
        groups = permutation_groups(model, data).groups
    except ValueError as error:
        stayed.append(f"hidden units stay: {error}")
    for group in groups:
        if why := _kept_whole(whole, group):
            stayed.append(f"units stay ({group}): {why}")
    groups = tuple(group for group in groups if not _kept_whole(whole, group))
    alive = _cleared(whole, groups, inputs)
    expected, surgery = outputs_of(whole, inputs), Surgery()
    for group, keep in zip(groups, alive, strict=True):
        tried = Surgery(_without(surgery, whole, group, ~keep))
        if why := _differs(tried, whole, inputs, expected):
            stayed.append(f"units stay ({group}): {why}")
        else:
            surgery = tried
    for name, mask in _inputs(surgery.apply(whole)):
        tried = Surgery(surgery.kept, {**surgery.inputs, name: mask})
        surgery = surgery if _differs(tried, whole, inputs, expected) else tried
    made = surgery.apply(whole)
    return Smaller(whole, made, surgery, tuple(stayed), _distance(outputs_of(made, inputs), expected))


def outputs_of(network: nn.Module, inputs: Any) -> list[Tensor]:
    """Return the tensors that a network gives for inputs, which are not changed."""
    args, kwargs = arguments(copied(inputs))
    with torch.no_grad():
        return [leaf for leaf in pytree.tree_leaves(network(*args, **kwargs)) if isinstance(leaf, Tensor)]


def _kept_whole(network: nn.Module, group: PermutationGroup) -> str:
    """Return why no unit of a group is taken out; nothing if it may be."""
    for place in group.places:
        part = network.get_submodule(place.name.rpartition(".")[0])
        if not isinstance(part, (nn.Linear, *CONVOLUTIONS, *NORMS)) or getattr(part, "groups", 1) > 1:
            return f"`{place.name}` belongs to a {type(part).__name__}, which is not cut"
    return "" if any(_takes(network, place) for place in group.places) else "nothing takes them"


def _takes(network: nn.Module, place: Place) -> bool:
    """Return whether a place is of weights that take units, not of their own weights."""
    return place.axis == 1 and _is_weight(network, place)


def _is_weight(network: nn.Module, place: Place) -> bool:
    owner, _, own = place.name.rpartition(".")
    return own == "weight" and not isinstance(network.get_submodule(owner), NORMS)


def _cleared(network: nn.Module, groups: Sequence[PermutationGroup], inputs: Any) -> list[Tensor]:
    """Return which units of each group stay, bool (size,); weights of all others are set to zero in place."""
    alive = [torch.ones(group.size, dtype=torch.bool) for group in groups]
    changed = True
    while changed:
        changed = False
        for number, group in enumerate(groups):
            stay = alive[number]
            made, taken = _used(network, group, takes=False), _used(network, group, takes=True)
            constant, gone = stay & ~made & taken, stay & ~(made & taken)
            if constant.any():
                _fold(network, group, constant, inputs)
            if bool((gone == stay).all()):
                gone[int(gone.nonzero()[0])] = False  # a layer needs one unit
            if gone.any():
                for place in group.places:
                    _zero(network, place, gone)
                alive[number] = stay & ~gone
                changed = True
    return alive


def _used(network: nn.Module, group: PermutationGroup, *, takes: bool) -> Tensor:
    """Return of which units any weight is not zero: those that take them, or their own."""
    found = torch.zeros(group.size, dtype=torch.bool)
    for place in group.places:
        if _is_weight(network, place) and _takes(network, place) == takes:
            tensor = network.get_parameter(place.name).detach().movedim(place.axis, 0)
            own = tensor[place.start : place.start + group.size * place.inner]
            found |= (own.reshape(group.size, -1) != 0).any(1).cpu()
    return found


def _places(place: Place, units: Tensor) -> Tensor:
    """Return the positions of units, a bool (size,), along the axis of a place."""
    return place.start + (units.nonzero() * place.inner + torch.arange(place.inner)).flatten()


@torch.no_grad()
def _zero(network: nn.Module, place: Place, units: Tensor) -> None:
    """Set the parameters of units at a place to zero."""
    owner, _, own = place.name.rpartition(".")
    parameter = network.get_submodule(owner)._parameters.get(own)
    if parameter is not None:
        parameter.index_fill_(place.axis, _places(place, units).to(parameter.device), 0.0)


@torch.no_grad()
def _fold(network: nn.Module, group: PermutationGroup, units: Tensor, inputs: Any) -> None:
    """Add what constant units give to the biases of the layers that take them, whose weights of them become zero.

    A constant is dropped where a layer has no bias to take it, pads its inputs by zeros in the place of it, or is not
    called as a module.
    """
    taking = [place for place in group.places if _takes(network, place)]
    seen = _inputs_of(network, {place.name.rpartition(".")[0] for place in taking}, inputs)
    for place in taking:
        owner = place.name.rpartition(".")[0]
        layer: Any = network.get_submodule(owner)
        index = _places(place, units).to(layer.weight.device)
        axis = -1 if isinstance(layer, nn.Linear) else 1
        each = [x.movedim(axis, 0).index_select(0, index).flatten(1) for x in seen[owner]]
        values = torch.cat([layer.weight.new_empty(len(index), 0), *each], dim=1)
        steady = values.numel() > 0 and bool(torch.isclose(values, values[:, :1], rtol=1e-5, atol=1e-7).all())
        if steady and layer.bias is not None and not _padded(layer):
            weight = layer.weight.index_select(1, index)
            layer.bias.data += weight.flatten(2).sum(2) @ values[:, 0] if weight.ndim > 2 else weight @ values[:, 0]
        layer.weight.index_fill_(1, index, 0.0)


def _inputs_of(network: nn.Module, layers: Set[str], inputs: Any) -> dict[str, list[Tensor]]:
    """Return what each of some layers is given at each of its calls."""
    seen: dict[str, list[Tensor]] = {name: [] for name in layers}

    def note(name: str, _: nn.Module, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        seen[name].append(args[0] if args else named["input"])

    hooks = [
        network.get_submodule(name).register_forward_pre_hook(partial(note, name), with_kwargs=True) for name in layers
    ]
    try:
        outputs_of(network, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _padded(layer: Any) -> bool:
    padding = getattr(layer, "padding", 0)
    return padding == "same" if isinstance(padding, str) else bool(torch.tensor(padding).any())


def _without(
    surgery: Surgery, network: nn.Module, group: PermutationGroup, gone: Tensor
) -> dict[tuple[str, int], Tensor]:
    """Return what is kept once units of a group are gone too."""
    kept = dict(surgery.kept)
    held = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    for place in group.places if gone.any() else ():
        key = place.name, place.axis
        mask = kept.get(key, torch.ones(held[place.name].shape[place.axis], dtype=torch.bool)).clone()
        mask[_places(place, gone)] = False
        kept[key] = mask
    return kept


def _inputs(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield linear layers some of whose inputs have no weight but zero, with those that have others."""
    for name, layer in network.named_modules():
        if isinstance(layer, nn.Linear):
            used = (layer.weight.detach() != 0).any(0).cpu()
            used[0] |= not bool(used.any())  # a layer needs one input
            if not used.all():
                yield name, used


def _differs(surgery: Surgery, whole: nn.Module, inputs: Any, expected: Sequence[Tensor]) -> str:
    """Return why the smaller network is not the same function; nothing if it is."""
    try:
        found = outputs_of(surgery.apply(whole), inputs)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        return f"the network does not run without some ({str(error).splitlines()[0]})"
    if [t.shape for t in found] != [t.shape for t in expected]:
        return "the shape of the outputs depends on them"
    distance = _distance(found, expected)
    eps = max(torch.finfo(t.dtype).eps for t in expected if t.is_floating_point())
    return "" if distance <= _ROUNDING * eps else f"without some the outputs differ by {distance:.1g}"


def _distance(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest difference, relative to the largest number."""
    apart = [
        (float((a - b).abs().max()), float(b.abs().max())) for a, b in zip(found, expected, strict=True) if b.numel()
    ]
    return max((gap / (size or 1.0) for gap, size in apart), default=0.0)
