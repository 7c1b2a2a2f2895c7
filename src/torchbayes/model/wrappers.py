"""Modules wrapped by `torch.compile`, whose parameters are named as in the modules inside.

A wrapper holds its module as `_orig_mod`, and so would every name, of a file or a glob, depend on whether it is there.
It is taken off: a wrapper is compiled for the parameters that it holds, and is compiled again for those of every call.
The plan "compiled" compiles a fit as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

_INSIDE = "_orig_mod"


def unwrapped(module: nn.Module) -> nn.Module:
    """Return a module without wrappers; its own submodules are replaced in place."""
    while _INSIDE in module._modules:
        module = module.get_submodule(_INSIDE)
    for part in module.modules():
        for name, child in [*part._modules.items()]:  # not `named_children`, which gives a shared one once
            if child is not None and _INSIDE in child._modules:
                part._modules[name] = unwrapped(child)
    return module


def plainly_named(named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Return parameters or buffers by the names that they have without wrappers."""
    return {name.replace(f"{_INSIDE}.", ""): tensor for name, tensor in named}
