"""Parameters that are split over processes (DTensor), and whole only while the layer that holds them is called.

Each process holds a shard of every such parameter. The hooks of a layer gather its parameters from all processes when
it is called, and put the shards back after that. Where autograd saves a gathered parameter for the backward pass, it
saves how to gather it again. So a process holds its shards and one layer, in both passes. Gathering is a collective:
all processes must call the same layers in the same order.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack  # no public function says whether a transform is active

from torchbayes.checks import SettingError
from torchbayes.native.processes import answered

_OF_FSDP = "torch.distributed.fsdp"
_SHARDS: dict[int, Tensor] = {}  # address of the memory of a parameter gathered now -> its shard


class _Saved(NamedTuple):
    """A view of a gathered parameter that autograd asks for again."""

    shard: Tensor
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is split over processes, so that this one holds a shard of it."""
    return hasattr(tensor, "full_tensor")


def sharded(named: Iterable[tuple[str, Tensor | None]]) -> dict[str, Tensor]:
    """Return those of named tensors that are split over processes."""
    return {name: tensor for name, tensor in named if hasattr(tensor, "full_tensor") and tensor is not None}


def local(tensor: Tensor) -> Tensor:
    """Return the shard that this process holds of a tensor; the tensor itself if it is not split."""
    return tensor._local_tensor if is_sharded(tensor) else tensor  # pyright: ignore[reportAttributeAccessIssue]


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor without gradient that has all elements, which all processes must ask for; itself if not split.

    It raises LostRankError if one of them does not.
    """
    if not is_sharded(tensor):
        return tensor
    with torch.no_grad(), answered(), _outside_of_transforms():
        return tensor.full_tensor()  # pyright: ignore[reportAttributeAccessIssue]


def _outside_of_transforms() -> AbstractContextManager[Any]:
    """Return a context without transforms of `torch.func`, under which a DTensor cannot be gathered."""
    if not peek_interpreter_stack():
        return nullcontext()
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack  # only where it is loaded already

    return temporarily_clear_interpreter_stack()


def by_fsdp(module: nn.Module) -> list[Any]:
    """Return the parts of a module that `fully_shard` was called on."""
    kind = getattr(sys.modules.get(_OF_FSDP), "FSDPModule", ())
    return [submodule for submodule in module.modules() if isinstance(submodule, kind)]


def plainly_copied(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Return a deep copy of a module whose layers gather their parameters in calls; `memo` is as of `copy.deepcopy`.

    Parts that `fully_shard` was called on are of their own class in the copy, without the hooks of FSDP.
    """
    parts = by_fsdp(module)
    for submodule in parts:
        kind: Any = next(kind for kind in type(submodule).__mro__ if not kind.__module__.startswith(_OF_FSDP))
        memo[id(submodule)] = kind.__new__(kind)
    made = copy.deepcopy(module, memo)
    for submodule in parts:
        vars(memo[id(submodule)]).update(copy.deepcopy(_without_fsdp(vars(submodule)), memo))
    gather_in_calls(made)
    return made


def _without_fsdp(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a module without the hooks and records of FSDP."""
    kept = {name: value for name, value in attributes.items() if not name.startswith("__composable_api")}
    for name, hooks in kept.items():
        if name.endswith("hooks"):
            foreign = {key: hook for key, hook in hooks.items() if not _module(hook).startswith(_OF_FSDP)}
            kept[name] = type(hooks)(foreign)
    return kept


def _module(hook: Any) -> str:
    return getattr(getattr(hook, "hook", hook), "__module__", "")  # hooks of state dicts are wrapped


def gather_in_calls(module: nn.Module) -> None:
    """Let the layers of a module that hold split parameters gather them in their calls."""
    for submodule in module.modules():
        split = bool(sharded(submodule._parameters.items()))
        if split and _gather not in submodule._forward_pre_hooks.values():
            submodule.register_forward_pre_hook(_gather, prepend=True)
            submodule.register_forward_hook(_release, always_call=True)


def _gather(submodule: nn.Module, _: Any) -> None:
    for name, tensor in submodule._parameters.items():
        if tensor is not None and is_sharded(tensor):
            gathered: Any = whole(tensor)
            gathered._shard = tensor
            _SHARDS[_address(gathered)] = tensor
            submodule._parameters[name] = gathered


def _release(submodule: nn.Module, *_: Any) -> None:
    for name, tensor in submodule._parameters.items():
        if tensor is not None and (shard := getattr(tensor, "_shard", None)) is not None:
            _SHARDS.pop(_address(tensor), None)
            submodule._parameters[name] = shard


@contextmanager
def gathered_again() -> Iterator[None]:
    """Let autograd save how to gather parameters again inside the `with`, in the place of these.

    Transforms of `torch.func` allow no such hooks. Under them gathered parameters stay until the backward pass. It
    raises SettingError if a layer uses a parameter that is not gathered.
    """
    hooks = torch.autograd.graph.saved_tensors_hooks(_packed, _unpacked)
    try:
        with nullcontext() if peek_interpreter_stack() else hooks:
            yield
    except RuntimeError as error:
        if "DTensor" not in str(error):
            raise
        raise SettingError(
            "a layer of the network reads a parameter that is split over processes from another layer, without calling "
            "it, as DoRA and nn.MultiheadAttention do. Leave such parameters whole: `tb.adapters.shard` does so for "
            "these two, and `fully_shard` takes them as `ignored_params`."
        ) from error


def _packed(tensor: Tensor) -> Any:
    shard = _SHARDS.get(_address(tensor))
    if shard is None or shard.dtype != tensor.dtype:
        return tensor
    return _Saved(shard, tensor.size(), tensor.stride(), int(tensor.storage_offset()))


def _unpacked(packed: Any) -> Tensor:
    if not isinstance(packed, _Saved):
        return packed
    shard, size, stride, offset = packed
    return whole(shard).as_strided(size, stride, offset)


def _address(tensor: Tensor) -> int:
    """Return the address of the memory of a tensor; 0 if it has none of the usual kind."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse tensors, and classes that hold others
        return 0
