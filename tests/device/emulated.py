"""A device that is not there: tensors that say they are elsewhere and keep their numbers on the CPU.

Every operation is computed on the CPU, under the rules of a GPU: tensors on different devices must not meet, except
that a tensor without axes may join any operation between elements, and that indices may stay on the CPU. What a GPU
would make the program wait for is counted.

The device is called `meta`: of the names that PyTorch knows it is the one that needs no driver. Fake tensors on `cuda`
(torch._subclasses.FakeTensorMode) keep the first of these rules too, but a build of PyTorch without CUDA ends the
process when autograd meets one, and they have no numbers, so that no Metropolis test, no tree and no file could be
tried.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

DEVICE = torch.device("meta")
aten = torch.ops.aten
# the number of what they return, or whether they fail, depends on values, which the program waits for
_WAITING = {
    aten._local_scalar_dense,
    aten.equal,
    aten.nonzero,
    aten.masked_select,
    aten._unique2,
    aten.unique_dim,
    aten.unique_consecutive,
    aten.bincount,
    aten.repeat_interleave,
    aten._linalg_check_errors,
}
_OTHER = 0x5DEECE66D  # makes a seed another one
_COPIES = {aten._to_copy, aten.copy_}
_INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._unsafe_index, aten._index_put_impl_}
_NO_SCALARS = {aten.cat, aten.stack, aten.mm, aten.bmm, aten.addmm, aten.mv, aten.dot}


class Elsewhere(Tensor):
    """A tensor on the device that is not there."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Elsewhere:
        made: Any = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        made.held = held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        return _computed(func, args, kwargs or {}, None)

    def __repr__(self, **_: Any) -> str:
        return f"Elsewhere({self.held!r})"


class _Source(torch.Generator):
    """A generator of the device, whose numbers are not those of the CPU.

    Operations recognise it by its seed, as they are not given the object itself.
    """

    seeds: ClassVar[set[int]] = set()

    def manual_seed(self, seed: int) -> torch.Generator:
        own = seed ^ _OTHER
        self.seeds.add(own)
        return super().manual_seed(own)


class _Sources(type):
    """The class `torch.Generator` while the device is in use: it makes generators of both devices."""

    def __call__(cls, device: torch.device | str = "cpu") -> torch.Generator:
        return _Source() if torch.device(device).type == DEVICE.type else _GENERATOR(device)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _GENERATOR)


_GENERATOR = torch.Generator


class _Generator(metaclass=_Sources):
    """What stands in for `torch.Generator`."""


class Emulated(TorchDispatchMode):
    """While active, tensors can be made on the device.

    Attributes:
        waits: where the program waited for a number of the device.
        uploads: where it waited while numbers were copied to it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.uploads: list[str] = []

    def forget(self) -> None:
        """Count from zero."""
        self.waits.clear()
        self.uploads.clear()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        return _computed(func, args, kwargs or {}, self)


def _computed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], mode: Emulated | None) -> Any:
    """Return what an operation gives, on the device where a GPU would have it."""
    leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    there = [leaf for leaf in leaves if isinstance(leaf, Elsewhere)]
    here = [leaf for leaf in leaves if not isinstance(leaf, Elsewhere)]
    packet, device = func.overloadpacket, kwargs.get("device")
    _check(func, packet, args, there=there, here=here)
    onto = bool(there) if device is None else torch.device(device).type == DEVICE.type
    if packet is aten.copy_:
        onto = isinstance(args[0], Elsewhere)
    for leaf in pytree.tree_leaves((args, kwargs)):
        if isinstance(leaf, _GENERATOR) and (leaf.initial_seed() in _Source.seeds) != onto:
            raise RuntimeError(f"Expected a generator of the device on which {func} makes numbers; got another's.")
    if mode is not None:
        _count(mode, packet, args, from_there=bool(there), onto=onto)
    if device is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    plain_args, plain_kwargs = pytree.tree_map_only(Elsewhere, lambda t: t.held, (args, kwargs))
    out = func(*plain_args, **plain_kwargs)
    if not onto:
        return out
    wrapped = pytree.tree_map_only(Tensor, lambda t: t if isinstance(t, Elsewhere) else Elsewhere(t), out)
    return return_and_correct_aliasing(func, args, kwargs, wrapped) if there else wrapped


def _check(func: Any, packet: Any, args: tuple[Any, ...], *, there: list[Any], here: list[Tensor]) -> None:
    """Refuse tensors on different devices, as a GPU does.

    Raises:
        RuntimeError: if they are.
    """
    if not there or packet in _COPIES:
        return
    if packet in _INDEXING and isinstance(args[0], Elsewhere):
        here = [t for t in args[2:3] if isinstance(t, Tensor) and not isinstance(t, Elsewhere)]
    if any(t.ndim or packet in _NO_SCALARS for t in here):
        shapes = [tuple(t.shape) for t in here]
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but {func} got some elsewhere and those of shapes "
            f"{shapes} on cpu."
        )


def _count(mode: Emulated, packet: Any, args: tuple[Any, ...], *, from_there: bool, onto: bool) -> None:
    if packet in _COPIES:
        source = args[1] if packet is aten.copy_ else args[0]
        leaves, arrives = isinstance(source, Elsewhere) and not onto, not isinstance(source, Elsewhere) and onto
        # a number is an argument of the kernel that writes it
        arrives = arrives and not (packet is aten.copy_ and source.ndim == 0)
    else:
        indices = args[1] if packet in _INDEXING and isinstance(args[0], Elsewhere) else ()
        masks = any(t is not None and t.dtype in {torch.bool, torch.uint8} for t in indices)
        leaves = from_there and (packet in _WAITING or masks)
        arrives = any(t is not None and not isinstance(t, Elsewhere) for t in indices)
    if leaves:
        mode.waits.append(_place(packet))
    if arrives:
        mode.uploads.append(_place(packet))


def _place(packet: Any) -> str:
    """Return an operation and the line of the library that asked for it."""
    frame = sys._getframe()  # a traceback would read the files of all frames at each operation
    while frame is not None and "torchbayes/" not in frame.f_code.co_filename:
        frame = frame.f_back
    if frame is None:
        return f"{packet} at a test"
    return f"{packet} at {frame.f_code.co_filename.rpartition('torchbayes/')[2]}:{frame.f_lineno}"


class _FromNumbers(TorchFunctionMode):
    """While active, numbers become tensors and tensors numbers by way of the CPU, as on a GPU but not on `meta`."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = dict(kwargs or {})
        if func is Tensor.tolist and isinstance(args[0], Elsewhere):
            return args[0].cpu().tolist()
        if func is Tensor.new_tensor and isinstance(args[0], Elsewhere):
            return torch.tensor(*args[1:], **{"dtype": args[0].dtype, **kwargs}).to(args[0].device)
        if func not in {torch.tensor, torch.as_tensor} or kwargs.get("device") is None:
            return func(*args, **kwargs)
        device = kwargs.pop("device")
        return func(*args, **kwargs).to(device)


@contextmanager
def emulated() -> Iterator[Emulated]:
    """Let tensors be made on the device while the `with` lasts.

    Yields:
        The counts.
    """
    with mock.patch.object(torch, "Generator", _Generator), _FromNumbers(), Emulated() as mode:
        yield mode
