"""Modules wrapped by `torch.compile` or data parallelism, whose parameters are named as in the modules inside.

A wrapper holds its module as `_orig_mod` or `module`, so that names in files and globs would depend on it. Wrappers are
removed. A wrapper of `torch.compile` would compile again for the parameters of every call, and data parallelism splits
rows, which `ranks=` does. The plan "compiled" compiles a fit as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

_INSIDE, _SHARDED = "_orig_mod", "_fsdp_wrapped_module"


def bare(module: nn.Module) -> nn.Module:
    """Return a module without the wrappers around it; ValueError if its weights are split over processes."""
    shards = any(_SHARDED in part._modules for part in module.modules())
    if shards or any(hasattr(parameter, "full_tensor") for parameter in module.parameters()):
        raise ValueError(
            "the weights of the network are split over processes, as FSDP does, and this one holds only its shards. "
            "Get them with `get_model_state_dict` of torch.distributed.checkpoint.state_dict and "
            "`StateDictOptions(full_state_dict=True)`, load them into the plain module, and pass that."
        )
    while _INSIDE in module._modules or isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        module = module.get_submodule(_INSIDE if _INSIDE in module._modules else "module")
    return module


def unwrapped(module: nn.Module) -> nn.Module:
    """Return a module without wrappers; its own submodules are replaced in place. Errors are as of `bare`."""
    module = bare(module)
    for part in module.modules():
        for name, child in [*part._modules.items()]:  # `named_children` would give a shared module once
            if child is not None and _INSIDE in child._modules:
                part._modules[name] = unwrapped(child)
    return module


def plainly_named(named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Return parameters or buffers of a bare module by the names that they have without wrappers inside it."""
    return {name.replace(f"{_INSIDE}.", ""): tensor for name, tensor in named}
