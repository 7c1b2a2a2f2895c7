"""Settings of PyTorch that belong to the whole process, changed so that threads do not interfere; and its heap.

If each thread saves and restores a setting on its own, it ends wrong where threads overlap: the second one saves what
the first has set. `WhileAny` counts the threads inside. Where a thread can do without the setting, it does: attention
is replaced by a mode of the thread. The working directory belongs to the process too, so paths are made absolute
where they come in.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import cache, cached_property, wraps
from pathlib import Path
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Kind = TypeVar("_Kind", bound=type)
_C: Any = torch._C
AUTOCAST_KINDS = ("cpu", "cuda", "mps", "xpu")  # of devices; the compiler of PyTorch 2.11 cannot ask PyTorch for them
_BLOCK = 31 << 20  # bytes; glibc ignores blocks above 32 MiB

Undo = Callable[[], object]


class WhileAny:
    """A change of the process that lasts while any thread is inside; `change` makes it and returns how to undo it."""

    def __init__(self, change: Callable[[], Undo]) -> None:
        self._change, self._lock, self._inside = change, threading.Lock(), 0
        self._undo: Undo | None = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Make the change while the `with` lasts; the last thread to leave undoes it."""
        with self._lock:
            if not self._inside:
                self._undo = self._change()
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside and self._undo is not None:
                    self._undo()


def _without_vmap_warnings() -> Undo:
    switch: Callable[[bool], object] = torch._C._functorch._set_vmap_fallback_warning_enabled  # type: ignore[attr-defined]
    switch(False)
    return lambda: switch(True)


def _without_fused_encoders() -> Undo:
    fast: Any = torch.backends.mha
    before = fast.get_fastpath_enabled()
    fast.set_fastpath_enabled(False)
    return lambda: fast.set_fastpath_enabled(before)


def _in_full_float32(backend: Any, products: Any) -> Callable[[], Undo]:
    """Return a change after which products of float32 numbers are computed in float32."""
    operations = (products, backend.conv, backend.rnn)

    def change() -> Undo:
        before = [operation.fp32_precision for operation in operations]
        if {"ieee", "none"}.issuperset(before):
            return lambda: None  # full precision already

        def put(values: list[str]) -> None:
            for operation, value in zip(operations, values, strict=True):
                operation.fp32_precision = value

        put(["ieee"] * len(operations))
        return lambda: put(before)

    return change


quiet_vmap = WhileAny(_without_vmap_warnings)
"""Silence torch's warnings about operations that it vectorises slowly."""

encoders_by_parts = WhileAny(_without_fused_encoders)
"""Run encoders of transformers by their parts, because operations inside the fused operator cannot be seen."""

_CPU, _CUDA = torch.backends.mkldnn, torch.backends.cudnn
full_float32 = {
    "cpu": WhileAny(_in_full_float32(_CPU, _CPU.matmul)),
    "cuda": WhileAny(_in_full_float32(_CUDA, torch.backends.cuda.matmul)),
}
"""Compute products of float32 numbers in float32, by the kind of device."""


class _PlainAttention(TorchFunctionMode):
    """While active, attention is made of plain operations."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        if func is F.multi_head_attention_forward and not kwargs.get("need_weights", True):
            # It calls the other function unseen by any mode; if it returns weights, it uses plain operations.
            return func(*args, **{**kwargs, "need_weights": True})[0], None
        return func(*args, **kwargs)


def plain_attention() -> AbstractContextManager[Any]:
    """Return a context in which attention can be differentiated twice and vectorised, in this thread alone.

    PyTorch's other kernels of attention allow neither.
    """
    return _PlainAttention()


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Tensor:
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = query.new_zeros(()).masked_fill(~attn_mask, -torch.inf)
    plain = torch.ops.aten._scaled_dot_product_attention_math
    return plain(query, key, value, attn_mask, dropout_p, is_causal, **options)[0]


def _one_thread() -> None:
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    # A fork copies only one thread, so PyTorch and the kernels would wait forever for their other threads.
    os.register_at_fork(after_in_child=_one_thread)


@cache
def widen() -> None:
    """Let malloc keep up to 62 MiB of freed memory at the top of the heap; once in a process.

    glibc returns that memory to the system as soon as it exceeds twice the largest block that was mapped by itself
    and freed. A step of training frees most of what it allocated, so the system maps and clears the same pages again
    at every step: up to a fifth of its time (docs/benchmarks.md). The threshold grows when a large block is freed;
    this frees one whose pages were never used. Other allocators, and the user's settings in the environment
    (MALLOC_TRIM_THRESHOLD_ and the like), do not change.
    """
    torch.empty(_BLOCK, dtype=torch.uint8, device="cpu")


def trim() -> None:
    """Give freed memory back to the system, in glibc; other allocators have their own rules.

    Blocks below 32 MiB, as most layers are, lie in the heap, which keeps freed blocks except those at its top. A
    network is copied when it is checked and initialised, so the memory kept may be as large as its weights.
    """
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if give_back is not None:
        give_back(0)


def full_path(path: str | os.PathLike[str]) -> Path:
    """Return an absolute path, with ~ as the home directory, because the working directory may change later."""
    path = Path(path)
    with suppress(RuntimeError):  # no such user
        path = path.expanduser()
    return path.absolute()


def short_path(path: str | os.PathLike[str]) -> Path:
    """Return a path for messages: relative to the working directory if it lies below it."""
    path = Path(path)
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


@contextmanager
def outside_inference() -> Iterator[None]:
    """Run without `torch.inference_mode` inside the `with`: tensors made under it cannot be differentiated later.

    Gradients are recorded if, and only if, they were: to leave the mode alone would turn that on, and a network whose
    embeddings ask for gradients, as those of PEFT with checkpoints do, would keep all its activations.
    """
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


@contextmanager
def outside_autocast() -> Iterator[None]:
    """Run without the autocast of the program inside the `with`, which would reach sums and factorisations too.

    A model says itself how its network computes.
    """
    with ExitStack() as stack:
        for kind in filter(torch.is_autocast_enabled, AUTOCAST_KINDS):
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


class _Left(threading.local):
    """Settings of the program that a thread has left."""

    device: torch.device | None = None  # its default device, if that is not the processor


_LEFT = _Left()


@contextmanager
def _on_processor(device: torch.device) -> Iterator[None]:
    """Let tensors that nobody places be on the processor inside the `with`, as where no default device is set."""
    before, _LEFT.device = _LEFT.device, device
    try:
        with torch.device("cpu"):
            yield
    finally:
        _LEFT.device = before


def default_device() -> torch.device:
    """Return the default device of the program."""
    return _LEFT.device or torch.get_default_device()


def as_the_program() -> AbstractContextManager[Any]:
    """Return a context for code of the user, such as a network: its default device is that of the program."""
    return nullcontext() if _LEFT.device is None else _LEFT.device


def outside_program() -> AbstractContextManager[Any]:
    """Return a context in which results are the same whatever the program has set for its own computations.

    That is autocast, inference mode, under which tensors cannot be differentiated later, and a default device, on which
    numbers would lie that belong beside others.
    """
    lower, inference = _C._is_any_autocast_enabled(), torch.is_inference_mode_enabled()
    # A default device is a mode of functions, and to look for it takes ten times as long as to see that there is none.
    elsewhere = _C._len_torch_function_stack() > 0 and torch.get_default_device().type != "cpu"
    if not lower and not inference and not elsewhere:
        return nullcontext()
    stack = ExitStack()
    if lower:
        stack.enter_context(outside_autocast())
    if inference:
        stack.enter_context(outside_inference())
    if elsewhere:
        stack.enter_context(_on_processor(torch.get_default_device()))
    return stack


def undisturbed(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return a function that runs `outside_program`; no frame of another package comes between it and its caller."""

    @wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        # Nearly always nothing is set, and a context that does nothing would take three calls.
        if _C._is_any_autocast_enabled() or torch.is_inference_mode_enabled() or _C._len_torch_function_stack():
            with outside_program():
                return function(*args, **kwargs)
        return function(*args, **kwargs)

    return run


def undisturbed_methods(kind: _Kind) -> _Kind:
    """Let what a class defines for its users, constructor, methods, properties and calls, be `undisturbed`."""
    for name, value in [*vars(kind).items()]:
        if name.startswith("_") and name not in {"__init__", "__call__"}:
            continue
        if isinstance(value, FunctionType):
            setattr(kind, name, undisturbed(value))
        elif isinstance(value, classmethod):
            setattr(kind, name, classmethod(undisturbed(value.__func__)))
        elif isinstance(value, property):
            setattr(kind, name, property(undisturbed(value.fget), doc=value.__doc__))  # type: ignore[type-var]
        elif isinstance(value, cached_property):
            value.func = undisturbed(value.func)
    return kind


def usable(tensor: Tensor) -> Tensor:
    """Return a tensor, copied if it was made under `torch.inference_mode`."""
    if not tensor.is_inference():
        return tensor
    with outside_inference():
        return tensor.clone()


@contextmanager
def differentiable() -> Iterator[None]:
    """Record gradients inside the `with`, under `torch.no_grad` and `torch.inference_mode` as well."""
    with outside_inference(), torch.enable_grad():
        yield
