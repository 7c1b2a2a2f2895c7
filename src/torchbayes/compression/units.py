r"""Hidden units without effect, found and taken out, so that a network becomes smaller and its outputs stay.

A unit has no effect where all weights that take it are zero; or where it is a constant, for which the layers that take
it can make up (`constants`). Its other weights are then zero as well, which may leave units before it without effect:
units are looked for until no more are found. `torchbayes.geometry` says which axes of which parameters hold the same
units. What is left of a linear layer then takes those inputs alone whose weights are not zero. After each step outputs
are compared with those of the network as it was given; a step that changes them is taken back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchbayes.compression.constants import ROUNDING, fold, outputs_of
from torchbayes.compression.plain import filled
from torchbayes.compression.surgery import CONVOLUTIONS, NORMS, Surgery
from torchbayes.geometry.symmetry.permutations import PermutationGroup, Place, permutation_groups
from torchbayes.geometry.symmetry.same import distance
from torchbayes.model.batches.batch import rows_of
from torchbayes.model.layout import Globs
from torchbayes.model.model import Model, having
from torchbayes.model.network import Network
from torchbayes.model.priors.univariate import Flat
from torchbayes.model.sources.sources import as_source

_ROWS = 256


class Smaller(NamedTuple):
    """A network before and after units were taken out.

    Attributes:
        whole: the network in full size, as it was given.
        network: the smaller one.
        surgery: how it was made.
        stayed: why hidden units without effect may still be there, a sentence each.
        difference: the largest between outputs of the two, relative to the largest output.
        change: likewise, of the smaller one and of the network before its weights were set to zero.
    """

    whole: nn.Module
    network: nn.Module
    surgery: Surgery
    stayed: tuple[str, ...]
    difference: float
    change: float


def smaller(
    network: nn.Module, like: Model, data: Any, *, random: Globs = "*", original: nn.Module | None = None
) -> Smaller:
    """Return a network without the units that have no effect, as its weights that are zero say.

    Args:
        network: a plain network.
        like: a model of such a network: how rows are unpacked.
        data: as for `fit`; up to 256 rows are looked at.
        random: its random parameters; units stay whose weights are constants.
        original: the network before weights were set to zero; the same one if None.

    Returns:
        The network before and after.

    Raises:
        ValueError: if there are no rows.
    """
    own = Network(network, random, class_axis=like.network.class_axis)
    model = having(like, network=own, prior=Flat())
    inputs = rows_of(next(iter(as_source(model, data, 1024).inputs())), slice(0, _ROWS))
    whole, stayed = filled(network, {}), list[str]()
    expected, groups = outputs_of(whole, inputs), tuple[PermutationGroup, ...]()
    try:
        groups = permutation_groups(model, data).groups
    except ValueError as error:
        stayed.append(f"hidden units stay: {error}")
    cleared, surgery = _without_effect(whole, groups, inputs, expected=expected, stayed=stayed)
    for name, mask in _inputs(surgery.apply(cleared)):
        tried = Surgery(surgery.kept, {**surgery.inputs, name: mask})
        surgery = surgery if _differs(tried, cleared, inputs, expected) else tried
    made = surgery.apply(cleared)
    outputs = outputs_of(made, inputs)
    change = distance(outputs, outputs_of(filled(original or network, {}), inputs))
    return Smaller(whole, made, surgery, tuple(dict.fromkeys(stayed)), distance(outputs, expected), change)


def _without_effect(
    whole: nn.Module, groups: Sequence[PermutationGroup], inputs: Any, *, expected: Sequence[Tensor], stayed: list[str]
) -> tuple[nn.Module, Surgery]:
    """Return a network with zeros for units without effect, and what takes them out.

    Args:
        whole: the network in full size.
        groups: its units.
        inputs: rows.
        expected: outputs for them, which must not change.
        stayed: here is noted why units stay.
    """
    cleared, surgery = filled(whole, {}), Surgery()
    alive = {group: torch.ones(group.size, dtype=torch.bool) for group in groups}
    for group in groups:
        if why := _kept_whole(whole, group):
            stayed.append(f"units stay ({group}): {why}")
            del alive[group]
    steps = [(group, constants) for constants in (False, True) for group in alive]
    changed = True
    while changed:
        changed = False
        for group, constants in list(steps):
            network = filled(cleared, {})
            gone = _cleared(network, group, alive[group], constants=constants, inputs=inputs)
            if not gone.any():
                continue
            tried = Surgery(_without(surgery, whole, group, gone))
            if why := _differs(tried, network, inputs, expected):
                stayed.append(f"units stay ({group}): {why}")
                steps.remove((group, constants))
            else:
                cleared, surgery, changed = network, tried, True
                alive[group] &= ~gone
    return cleared, surgery


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


@torch.no_grad()
def _cleared(network: nn.Module, group: PermutationGroup, stay: Tensor, *, constants: bool, inputs: Any) -> Tensor:
    """Set the parameters of units that nothing takes to zero, in place.

    Args:
        network: the network.
        group: the units.
        stay: those that are still there.
        constants: whether layers first make up for units that are constants.
        inputs: rows.

    Returns:
        Those units, bool (size,).
    """
    taken = _used(network, group, takes=True)
    made = _used(network, group, takes=False)
    if constants and bool((lone := stay & taken & ~made).any()):
        fold(network, [place for place in group.places if _takes(network, place)], lone, inputs=inputs)
        taken = _used(network, group, takes=True)
    gone = stay & ~taken
    if bool((gone == stay).all()):
        gone[int(gone.nonzero()[0])] = False  # a layer needs one unit
    for place in group.places if gone.any() else ():
        owner, _, own = place.name.rpartition(".")
        parameter = network.get_submodule(owner)._parameters.get(own)
        if parameter is not None:
            parameter.index_fill_(place.axis, _places(place, gone).to(parameter.device), 0.0)
    return gone


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
        outputs = outputs_of(surgery.apply(whole), inputs)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        return f"the network does not run without some ({str(error).splitlines()[0]})"
    if [t.shape for t in outputs] != [t.shape for t in expected]:
        return "the shape of the outputs depends on them"
    apart = distance(outputs, expected)
    eps = max(torch.finfo(t.dtype).eps for t in expected if t.is_floating_point())
    return "" if apart <= ROUNDING * eps else f"without some the outputs differ by {apart:.1g}"
