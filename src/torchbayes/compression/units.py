"""Hidden units without effect, found and taken out, so that a network becomes smaller and its outputs stay.

A unit has no effect if all weights that take it are zero; or if it is a constant, for which the layers that take it
can make up (`constants`). Its other weights are then set to zero as well, which may leave units before it without
effect, so units are searched for until no more are found. `torchbayes.geometry` finds which axes of which parameters
hold the same units. Linear layers finally take only those inputs whose weights are not zero. After each step outputs
are compared with those of the given network; a step that changes them is taken back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchbayes.compression.constants import ROUNDING, fold, outputs_of
from torchbayes.compression.plain import filled
from torchbayes.compression.surgery import CONVOLUTIONS, NORMS, Surgery
from torchbayes.geometry.symmetry.permutations import PermutationGroup, Place, distance, permutation_groups
from torchbayes.model.batches.batch import rows_of
from torchbayes.model.layout import Globs
from torchbayes.model.model import Model, having
from torchbayes.model.network import Network
from torchbayes.model.priors.univariate import Flat
from torchbayes.model.sources.sources import as_source

_ROWS = 256


class Smaller(NamedTuple):
    """A network after units were taken out."""

    network: nn.Module
    surgery: Surgery  # how the smaller network was made
    stayed: tuple[str, ...]  # why hidden units without effect may still be there, a sentence each
    difference: float  # largest difference to outputs of the given network, relative to the largest output
    change: float  # likewise, to the network before its weights were set to zero


def smaller(
    network: nn.Module, like: Model, data: Any, *, random: Globs = "*", original: nn.Module | None = None
) -> Smaller:
    """Return a plain network without the units that have no effect because weights are zero.

    `like` is a model of such a network, which says how rows are unpacked; up to 256 rows are used. Units stay if
    their weights are not `random` parameters. `original` is the network before weights were set to zero; the same one
    if None.
    """
    plain_network = Network(network, random, class_axis=like.network.class_axis)
    model = having(like, network=plain_network, prior=Flat())
    inputs = rows_of(next(iter(as_source(model, data, 1024).inputs())), slice(0, _ROWS))
    full_size, stayed = filled(network, {}), list[str]()
    expected, groups = outputs_of(full_size, inputs), tuple[PermutationGroup, ...]()
    try:
        groups = permutation_groups(model, data).groups
    except ValueError as error:
        stayed.append(f"hidden units stay: {error}")
    cleared, surgery = _without_effect(full_size, groups, inputs, expected=expected, stayed=stayed)
    for name, mask in _inputs(surgery.apply(cleared)):
        trial = Surgery(surgery.kept, {**surgery.inputs, name: mask})
        surgery = surgery if _differs(trial, cleared, inputs, expected) else trial
    small = surgery.apply(cleared)
    outputs = outputs_of(small, inputs)
    change = distance(outputs, outputs_of(filled(original or network, {}), inputs))
    return Smaller(small, surgery, tuple(dict.fromkeys(stayed)), distance(outputs, expected), change)


def _without_effect(
    whole: nn.Module, groups: Sequence[PermutationGroup], inputs: Any, *, expected: Sequence[Tensor], stayed: list[str]
) -> tuple[nn.Module, Surgery]:
    """Return a network with zeros for units without effect, and the surgery that takes them out.

    Outputs for the inputs must remain as `expected`. Reasons why units stay are added to `stayed`.
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
            trial = Surgery(_without(surgery, whole, group, gone))
            if why := _differs(trial, network, inputs, expected):
                stayed.append(f"units stay ({group}): {why}")
                steps.remove((group, constants))
            else:
                cleared, surgery, changed = network, trial, True
                alive[group] &= ~gone
    return cleared, surgery


def _kept_whole(network: nn.Module, group: PermutationGroup) -> str:
    """Return why no unit of a group may be taken out; empty if one may."""
    for place in group.places:
        layer = network.get_submodule(place.name.rpartition(".")[0])
        if not isinstance(layer, (nn.Linear, *CONVOLUTIONS, *NORMS)) or getattr(layer, "groups", 1) > 1:
            return f"`{place.name}` belongs to a {type(layer).__name__}, which is not cut"
    return "" if any(_takes(network, place) for place in group.places) else "nothing takes them"


def _takes(network: nn.Module, place: Place) -> bool:
    """Return whether a place is of weights that take units, not of the units' own weights."""
    return place.axis == 1 and _is_weight(network, place)


def _is_weight(network: nn.Module, place: Place) -> bool:
    owner, _, attribute = place.name.rpartition(".")
    return attribute == "weight" and not isinstance(network.get_submodule(owner), NORMS)


@torch.no_grad()
def _cleared(network: nn.Module, group: PermutationGroup, stay: Tensor, *, constants: bool, inputs: Any) -> Tensor:
    """Set the parameters of units that nothing takes to zero, in place, and return these units, bool (size,).

    `stay` are the units that are still there. With `constants`, layers first make up for units that are constants.
    """
    taken = _used(network, group, takes=True)
    made = _used(network, group, takes=False)
    if constants and bool((candidates := stay & taken & ~made).any()):
        fold(network, [place for place in group.places if _takes(network, place)], candidates, inputs=inputs)
        taken = _used(network, group, takes=True)
    gone = stay & ~taken
    if bool((gone == stay).all()):
        gone[int(gone.nonzero()[0])] = False  # a layer needs one unit
    for place in group.places if gone.any() else ():
        owner, _, attribute = place.name.rpartition(".")
        parameter = network.get_submodule(owner)._parameters.get(attribute)
        if parameter is not None:
            positions = place.positions(gone.nonzero()[:, 0]).flatten()
            parameter.index_fill_(place.axis, positions.to(parameter.device), 0.0)
    return gone


def _used(network: nn.Module, group: PermutationGroup, *, takes: bool) -> Tensor:
    """Return which units have a weight that is not zero: among weights that take them, or among their own."""
    used = torch.zeros(group.size, dtype=torch.bool)
    for place in group.places:
        if _is_weight(network, place) and _takes(network, place) == takes:
            weights = place.rows(network.get_parameter(place.name).detach(), group.size)
            used |= (weights != 0).any(1).cpu()
    return used


def _without(
    surgery: Surgery, network: nn.Module, group: PermutationGroup, gone: Tensor
) -> dict[tuple[str, int], Tensor]:
    """Return the kept positions once units of a group are gone too."""
    kept = dict(surgery.kept)
    held = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    for place in group.places if gone.any() else ():
        key = place.name, place.axis
        mask = kept.get(key, torch.ones(held[place.name].shape[place.axis], dtype=torch.bool)).clone()
        mask[place.positions(gone.nonzero()[:, 0]).flatten()] = False
        kept[key] = mask
    return kept


def _inputs(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield linear layers with inputs that have only zero weights, and a mask of the others."""
    for name, layer in network.named_modules():
        if isinstance(layer, nn.Linear):
            used = (layer.weight.detach() != 0).any(0).cpu()
            used[0] |= not bool(used.any())  # a layer needs one input
            if not used.all():
                yield name, used


def _differs(surgery: Surgery, whole: nn.Module, inputs: Any, expected: Sequence[Tensor]) -> str:
    """Return why the smaller network is not the same function; empty if it is."""
    try:
        outputs = outputs_of(surgery.apply(whole), inputs)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        return f"the network does not run without some ({str(error).splitlines()[0]})"
    if [t.shape for t in outputs] != [t.shape for t in expected]:
        return "the shape of the outputs depends on them"
    apart = distance(outputs, expected)
    eps = max(torch.finfo(t.dtype).eps for t in expected if t.is_floating_point())
    return "" if apart <= ROUNDING * eps else f"without some the outputs differ by {apart:.1g}"
