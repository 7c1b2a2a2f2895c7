"""Modules wrapped by `torch.compile` or data parallelism, whose parameters are named as in the modules inside.

A wrapper holds its module as `_orig_mod` or `module`, so that names in files and globs would depend on it. Wrappers are
removed. A wrapper of `torch.compile` would compile again for the parameters of every call, and data parallelism splits
rows, which `ranks=` does. The plan "compiled" compiles a fit as a whole. Parameters that are split over processes stay
so (`torchbayes.native.sharding`).

Layers of PEFT that scale the rows of a weight by m/n, n the norms of W + s B A (DoRA), take n for a constant in the
backward pass, so that their gradient is not that of their outputs. `differentiated` gives it back.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from torch import Tensor, nn

from torchbayes.native.sharding import by_fsdp, local, sharded

_INSIDE, _SHARDED = "_orig_mod", "_fsdp_wrapped_module"
_SPLIT = "torch.distributed.tensor"


def bare(module: nn.Module) -> nn.Module:
    """Return a module without the wrappers around it.

    Parameters that `fully_shard` gathered for a call are split again.

    Raises:
        ValueError: if it is split over processes in a way that is not supported.
    """
    if _SPLIT in sys.modules:  # without it nothing is split
        for submodule in by_fsdp(module):
            submodule.reshard()
        _check_split(module)
    while _INSIDE in module._modules or isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        module = module.get_submodule(_INSIDE if _INSIDE in module._modules else "module")
    return module


def _check_split(module: nn.Module) -> None:
    """Raise ValueError if a module is split over processes otherwise than in parameters that can be gathered."""
    if any(_SHARDED in submodule._modules for submodule in module.modules()):
        raise ValueError(
            "the network is wrapped by FullyShardedDataParallel, the first FSDP, whose layers have no parameters of "
            "their own. Split it by `fully_shard` of torch.distributed.fsdp, or by `tb.adapters.shard`."
        )
    if any(getattr(submodule, "_distribute_module_applied", False) for submodule in module.modules()):
        raise ValueError(
            "layers of the network compute on shards, as tensor parallelism does (`parallelize_module`). Split the "
            "parameters alone, by `tb.adapters.shard` or by `fully_shard` of torch.distributed.fsdp."
        )
    split = sharded(module.named_parameters())
    away = [n for n, t in split.items() if not t.is_meta and local(t).device.type != t.device_mesh.device_type]  # pyright: ignore[reportAttributeAccessIssue]
    if away:
        raise ValueError(
            f"`{away[0]}` is split over processes and kept on another kind of device than they compute on, as "
            f"`CPUOffloadPolicy` does. Split the network without offloading."
        )
    if buffers := sharded(module.named_buffers()):
        raise ValueError(f"`{next(iter(buffers))}` is a buffer that is split over processes. Split parameters alone.")


def unwrapped(module: nn.Module) -> nn.Module:
    """Return a module without wrappers; its own submodules are replaced in place. Errors are as of `bare`."""
    module = bare(module)
    for submodule in module.modules():
        for name, child in [*submodule._modules.items()]:  # `named_children` would give a shared module once
            if child is not None and _INSIDE in child._modules:
                submodule._modules[name] = unwrapped(child)
    return module


def plainly_named(named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Return parameters or buffers of a bare module by the names that they have without wrappers inside it."""
    return {name.replace(f"{_INSIDE}.", ""): tensor for name, tensor in named}


def without_norms(module: nn.Module) -> dict[str, nn.Module]:
    """Return the layers, by name, whose backward pass leaves out the norms that they divide by: DoRA of PEFT."""
    layers = {}
    for name, submodule in module.named_modules():
        has_norm = type(submodule).__module__.startswith("peft.") and hasattr(submodule, "get_weight_norm")
        if has_norm and _with_norm not in submodule._forward_pre_hooks.values():
            layers[name] = submodule
    return layers


def differentiated(module: nn.Module) -> nn.Module:
    """Return a module of whose layers with norms (DoRA) gradients are those of the outputs; it is changed in place."""
    for submodule in without_norms(module).values():
        submodule.register_forward_pre_hook(_with_norm, with_kwargs=True)
        submodule.register_forward_hook(_without_norm, always_call=True)
    return module


def reset_magnitudes(layer: Any, key: str) -> None:
    """Give the magnitudes of an adapter (DoRA) the norms of the weight that it makes, as they are before training."""
    of_layer = key in layer.lora_A
    first, second = (layer.lora_A, layer.lora_B) if of_layer else (layer.lora_embedding_A, layer.lora_embedding_B)
    factors = (first[key], second[key]) if of_layer else (first[key].mT, second[key].mT)
    magnitudes = layer.lora_magnitude_vector[key]
    magnitudes.weight.copy_(_norm(magnitudes, *factors, base=layer.get_base_layer(), scaling=layer.scaling[key]))


def _norm(layer: Any, first: Any, second: Any, *, base: nn.Module, scaling: float) -> Tensor:
    """Return the norms of the weight W + s B A, of which `layer` holds the magnitudes."""
    weight = import_module("peft.utils.integrations").dequantize_module_weight(base)
    if isinstance(first, Tensor):  # of embeddings, (words, r) and (r, size)
        product = (first @ second).mT
    else:
        product = second.weight.flatten(1) @ first.weight.flatten(1)
        product = product.view_as(weight) if weight.ndim > 2 else product
    return layer.get_weight_norm(weight.to(product.dtype), product, scaling)


def _with_norm(layer: Any, args: Any, named: Mapping[str, Any]) -> None:
    """Let a layer hold m c/n in the place of its magnitudes m, where c equals n and is a constant.

    The layer divides by another constant equal to n, and so by n itself.
    """
    factors = named["lora_A"], named["lora_B"]
    norm = _norm(layer, *factors, base=named["base_layer"], scaling=named["scaling"])
    magnitude = layer.__dict__["magnitude"] = layer._parameters["weight"]
    layer._parameters["weight"] = magnitude * (norm.detach() / norm).to(magnitude.dtype)


def _without_norm(layer: Any, args: Any, made: Any) -> None:
    """Let a layer hold its magnitudes again."""
    if (magnitude := layer.__dict__.pop("magnitude", None)) is not None:
        layer._parameters["weight"] = magnitude
