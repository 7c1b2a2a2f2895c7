"""Modules wrapped by `torch.compile` or data parallelism, whose parameters are named as in the modules inside.

A wrapper holds its module as `_orig_mod` or `module`, so that names in files and globs would depend on it. Wrappers are
removed. A wrapper of `torch.compile` would compile again for the parameters of every call, and data parallelism splits
rows, which `ranks=` does. The plan "compiled" compiles a fit as a whole. Parameters that are split over processes stay
so (`torchbayes.native.sharding`).
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from torchbayes.native.sharding import by_fsdp, is_sharded, local

_INSIDE, _SHARDED = "_orig_mod", "_fsdp_wrapped_module"


def bare(module: nn.Module) -> nn.Module:
    """Return a module without the wrappers around it.

    Parameters that `fully_shard` gathered for a call are split again.

    Raises:
        ValueError: if it is split over processes in a way that is not supported.
    """
    for part in by_fsdp(module):
        part.reshard()
    _check_split(module)
    while _INSIDE in module._modules or isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        module = module.get_submodule(_INSIDE if _INSIDE in module._modules else "module")
    return module


def _check_split(module: nn.Module) -> None:
    """Raise ValueError if a module is split over processes otherwise than in parameters that can be gathered."""
    if any(_SHARDED in part._modules for part in module.modules()):
        raise ValueError(
            "the network is wrapped by FullyShardedDataParallel, the first FSDP, whose layers have no parameters of "
            "their own. Split it by `fully_shard` of torch.distributed.fsdp, or by `tb.adapters.shard`."
        )
    if any(getattr(part, "_distribute_module_applied", False) for part in module.modules()):
        raise ValueError(
            "layers of the network compute on shards, as tensor parallelism does (`parallelize_module`). Split the "
            "parameters alone, by `tb.adapters.shard` or by `fully_shard` of torch.distributed.fsdp."
        )
    split = {name: tensor for name, tensor in module.named_parameters() if is_sharded(tensor)}
    away = [n for n, t in split.items() if not t.is_meta and local(t).device.type != t.device_mesh.device_type]  # pyright: ignore[reportAttributeAccessIssue]
    if away:
        raise ValueError(
            f"`{away[0]}` is split over processes and kept on another kind of device than they compute on, as "
            f"`CPUOffloadPolicy` does. Split the network without offloading."
        )
    if buffers := [name for name, buffer in module.named_buffers() if is_sharded(buffer)]:
        raise ValueError(f"`{buffers[0]}` is a buffer that is split over processes. Split parameters alone.")


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
