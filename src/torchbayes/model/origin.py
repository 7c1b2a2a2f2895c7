"""Where random weights come from: the module that holds them, a factory, or the initialisers of an empty module.

The weights that a module holds are kept, once. Those of a factory, or of a module on the meta device, are drawn again
on demand, so that a large network takes no memory beside the members' weights. If most of what a factory makes is not
random, as in a pretrained network with an adapter, it is the other way round: making it again would take the memory and
time of the whole. The first network is then kept, and the initialisers of its parts draw the members' weights, as for a
module. The factory draws them only where these initialisers do not: if nothing initialises a parameter, or magnitudes
differ from those in the first network by more than chance. Its networks are made one at a time, and dropped at once.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from torchbayes.checks import seen
from torchbayes.model.functional_call import without_memory
from torchbayes.model.initialisation import drawn_alike, reinitialised, without_values
from torchbayes.model.layout import Layout, RandomMask, only
from torchbayes.model.wrappers import bare, plainly_named
from torchbayes.native.process import as_the_program, default_device
from torchbayes.randomness.seeds import Purpose, seeded

Given = nn.Module | Callable[[], nn.Module]


@dataclass(frozen=True, eq=False)
class Origin:
    """The source of a network's random weights."""

    # makes freshly initialised networks; None if there is none
    factory: Callable[[], nn.Module] | None
    module: nn.Module
    layout: Layout
    mask: RandomMask
    device: torch.device
    loaded: Sequence[str] = ()  # names of parameters from a checkpoint
    held: bool = True  # whether the random weights of the first network are kept

    def drawn(self, seed: int | None = None, *, warn: bool = False) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the random weights, and all buffers, of one freshly initialised network, by name.

        The seed is that of a member; None gives the network of the model itself. Errors and `warn` are as of
        `reinitialised`; a factory that makes another network than before raises ValueError too.
        """
        with _seeded(seed, self.device):
            if self.factory is not None and self._made_again:
                with as_the_program():
                    module = bare(self.factory())
            else:
                fresh = reinitialised(self.module, self.layout, self.loaded, device=self.device)
                module = fresh.module
                if warn and self.factory is None:
                    fresh.warn()
        named = plainly_named(module.named_parameters())
        if not named.keys() >= set(self.layout.names):
            raise ValueError("the factory must make networks with the same parameter names at every call.")
        weights = self.mask.select(only(self.layout.names, named))
        return {n: t.detach().to(self.device) for n, t in weights.items()}, plainly_named(module.named_buffers())

    @cached_property
    def _made_again(self) -> bool:
        """Whether the factory draws members, and not the initialisers of the network that it made first."""
        if not self.held:
            return True
        with _seeded(None, self.device):
            return not drawn_alike(self.module, self.layout, device=self.device)


def made_by(given: Given) -> nn.Module:
    """Return a module without wrappers around it, or the one that a factory makes; TypeError if there is none."""
    if isinstance(given, nn.Module):
        return bare(given)
    if not callable(given):
        inside = " Give its `module_`." if hasattr(given, "module_") else ""  # a fitted net of skorch
        raise TypeError(f"`network` must be an nn.Module or a function that makes one; got {seen(given)}.{inside}")
    with _seeded(None), as_the_program():  # a factory draws from the global generator, which is the user's
        module = given()
    if not isinstance(module, nn.Module):
        raise TypeError(f"`network` must be an nn.Module or a function that makes one; got {seen(module)} from it.")
    return bare(module)


def _seeded(seed: int | None, device: torch.device | str = "cpu") -> AbstractContextManager[Any]:
    """Return the context in which a network is drawn."""
    if seed is None:
        return seeded(Purpose.FACTORY, device=device)
    return seeded(Purpose.INITIALISATION, seed, device=device)


def device_of(made: nn.Module, chosen: Mapping[str, Tensor], factory: Callable[[], nn.Module] | None) -> torch.device:
    """Return the device of random weights; if they have no values, that of the other tensors, or else the default one.

    It raises ValueError if only some of the weights have values, or a factory or the default device gives none.
    """
    absent = [name for name, tensor in chosen.items() if without_values(tensor)]
    if not absent:
        return next(iter(chosen.values())).device
    devices = [tensor.device for tensor in (*made.parameters(), *made.buffers()) if not without_values(tensor)]
    device = (devices or [default_device()])[0]
    if factory is not None or device.type == "meta":
        raise ValueError(
            f"`{absent[0]}` is made on the meta device, where it gets no values. Call Model outside of `with "
            f"torch.device('meta')`, and let a function make networks that have values."
        )
    if len(absent) < len(chosen):
        raise ValueError(
            f"{len(absent)} of the {len(chosen)} random parameters, such as `{absent[0]}`, {_elsewhere(made)}. Load "
            f"their values, or put all of them there."
        )
    return device


def away(chosen: Mapping[str, Tensor], device: torch.device) -> dict[str, torch.device]:
    """Return the devices of random parameters that hold values on another device than the vector of weights."""
    return {n: t.device for n, t in chosen.items() if t.device != device and not without_values(t)}


def _elsewhere(module: nn.Module) -> str:
    """Return where the parameters without values are, as a predicate."""
    if any(hasattr(submodule, "_hf_hook") for submodule in module.modules()):
        return (
            "are offloaded: accelerate keeps their values in memory or on disk, and loads them as each layer runs, "
            "which a copy of the network cannot do. Load it without offloading (`device_map=None`, or a device for all "
            "of it)"
        )
    return "are on the meta device, without values"


def places(
    named: Mapping[str, Tensor], layout: Layout, mask: RandomMask, *, held_D: Tensor | None
) -> dict[int, nn.Parameter]:
    """Return the parameters that replace random ones in the network's module, by identity.

    They are views of `held_D`, or tensors without memory if that is None; those that are random in part are the tensors
    of the mask. Parameters of other dtypes or devices are copied, and cast in a call.
    """
    masked = {
        id(named[name]): nn.Parameter(t, requires_grad=False)
        for name, t in mask.tensors.items()
        if named[name].dtype == t.dtype
    }
    whole = [name for name in layout.names if name not in mask.indices]
    if held_D is None:
        empty = {id(named[name]): nn.Parameter(without_memory(named[name]), requires_grad=False) for name in whole}
        return {**masked, **empty}
    views = layout.split(held_D)
    same = [name for name in whole if (named[name].dtype, named[name].device) == (held_D.dtype, held_D.device)]
    return {**masked, **{id(named[name]): nn.Parameter(views[name], requires_grad=False) for name in same}}


def outweighed(chosen: Mapping[str, Tensor], module: nn.Module) -> bool:
    """Return whether most of a network's parameters, in bytes, are not random."""
    return 2 * sum(t.nbytes for t in chosen.values()) < sum(parameter.nbytes for parameter in module.parameters())


def check_known(module: nn.Module, drawn: Container[str]) -> None:
    """Raise ValueError if a parameter or buffer has no values and is neither drawn nor computed from drawn ones."""
    named, derived = [*module.named_parameters(), *module.named_buffers()], getattr(module, "derived", ())
    constants = [(name, tensor) for name, tensor in named if name not in drawn and name not in derived]
    absent = [name for name, tensor in constants if without_values(tensor)]
    if absent:
        raise ValueError(
            f"{len(absent)} parameters and buffers that are not random, such as `{absent[0]}`, {_elsewhere(module)}. "
            f"Nothing draws them: load their values first, or widen `random`."
        )
