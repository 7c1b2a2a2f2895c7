"""Random numbers that no other thread can disturb, for code that has no argument for a generator.

Initialisers, dropout, Distributions and the constructors of users draw from PyTorch's default generator, which all
threads of a process share. Inside a block, a mode of PyTorch, which belongs to one thread, passes the block's own
generator to each operation that would draw from the default one. The default generator is neither read nor moved, so
blocks in several threads, and what users draw or seed meanwhile, do not interfere.

`torch.manual_seed`, `torch.get_rng_state` and `torch.random.fork_rng` act on the block's generator inside a block: a
constructor that seeds its own features gets these. `torch.random` finds the default generator by a name of its own;
an object that knows the thread takes its place there.

Kernels of a GPU that draw by themselves take no generator. For them the default one of the device is seeded and
restored, under a lock that lets one block on a GPU run at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, lru_cache
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

_TAKEN = "generator"
_COMPOSITE, _ALONE = "CompositeImplicitAutograd", "alone"  # made of other operations; draws without a generator
# Functions of torch.nn.functional, written in Python, that draw nothing and that networks call often.
_PLAIN: set[Any] = {
    getattr(F, name)
    for name in (
        *("relu", "leaky_relu", "elu", "selu", "silu", "softmax", "log_softmax", "softmin", "tanh", "sigmoid", "mish"),
        *("layer_norm", "batch_norm", "group_norm", "instance_norm", "normalize", "embedding", "interpolate"),
        *("max_pool1d", "max_pool2d", "max_pool3d", "adaptive_avg_pool2d", "cross_entropy", "unfold", "fold"),
    )
}


class _Own(threading.local):
    """The mode of the innermost block of a thread."""

    drawn: Drawn | None = None  # None outside of all blocks


class DispatchMode(TorchDispatchMode):
    """A mode that sees every operation, and leaves PyTorch's compiler alone.

    PyTorch excludes the methods of other modes from compilation. To do so it imports its compiler at their first
    operation, which takes 2 s and 70 MiB in a process that never compiles.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class Drawn(DispatchMode):
    """While active, operations on the CPU that would draw from the default generator draw from `source` instead.

    `used` says whether anything was drawn, `foreign` whether anything was drawn from a generator that code has passed.
    """

    def __init__(self, source: torch.Generator, device: torch.device) -> None:
        super().__init__()
        self.source, self.device, self.used, self.foreign = source, device, False, False
        self.filtered = False  # whether it is active for some functions alone

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, way = kwargs or {}, _way(func)
        if way is None or (way != _COMPOSITE and not draws(func, args, kwargs)):
            return func(*args, **kwargs)
        if way == _COMPOSITE:  # whole under inference_mode; not `decompose`, whose RNNs have no dropout
            with self:
                return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
        self.used, device = True, _device(args, kwargs)
        if other := _other_generator(way, args, kwargs):
            self.foreign = True
        if device not in {"cpu", "meta"} or other:
            return func(*args, **kwargs)
        if way == _ALONE or device == "meta":  # meta has no generator of its own
            with _in_place_of_default(self.source):
                return func(*args, **kwargs)
        if not isinstance(way, int):
            return way(*args, **{**kwargs, _TAKEN: self.source})
        if way < len(args):
            return func(*args[:way], self.source, *args[way + 1 :], **kwargs)
        return func(*args, **{**kwargs, _TAKEN: self.source})


def _other_generator(way: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a generator that is not the default one was passed, in the place `way` or by its name."""
    if not isinstance(way, int):
        return False
    passed = args[way] if way < len(args) else kwargs.get(_TAKEN)
    return passed is not None and passed is not torch.default_generator


class _Filter(TorchFunctionMode):
    """While active, functions run as usual if they draw nothing, else under the generator of the block.

    It is several times cheaper than a mode that sees every operation.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, drawn = kwargs or {}, _OWN.drawn
        if drawn is None or _draws_nothing(func):
            return func(*args, **kwargs)
        if func is F.dropout:
            return _dropout(drawn, *args, **kwargs)
        with drawn:
            return func(*args, **kwargs)


class _OfThread:
    """Replaces the default generator of the CPU in `torch.random`: inside a block it is the block's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.default_generator if _OWN.drawn is None else _OWN.drawn.source, name)


_OWN, _STAND_IN = _Own(), _OfThread()
_DEFAULT = threading.RLock()  # held while a default generator has another state than its users left


@contextmanager
def drawing_under(seed: int, device: torch.device | str = "cpu") -> Iterator[Drawn]:
    """Run code that draws from default generators, of the CPU and `device`, under a seed; yield the mode."""
    with _begun(seed, device) as drawn, drawn:
        yield drawn


@contextmanager
def network_under(seed: int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Run a network, most of whose functions draw nothing, under a seed, at a fraction of the cost of `drawing_under`.

    Numbers that are drawn outside Python, as in a ScriptModule, have no seed.
    """
    with _begun(seed, device) as drawn, _Filter():
        drawn.filtered = True
        yield


def is_block(mode: object) -> bool:
    """Return whether a mode of PyTorch is that of a block, which changes nothing but random numbers."""
    return isinstance(mode, Drawn | _Filter)


def draws_alike() -> Callable[[], AbstractContextManager[None]] | None:
    """Return what gives contexts in which code draws the numbers that it would draw now; None outside of all blocks."""
    drawn = _OWN.drawn
    if drawn is None:
        return None
    state, device, filtered = drawn.source.get_state(), drawn.device, drawn.filtered
    on_gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    @contextmanager
    def again() -> Iterator[None]:
        same = Drawn(torch.Generator().set_state(state), device)
        same.filtered = filtered
        default = nullcontext() if on_gpu is None else _gpu_at(on_gpu, device)
        with default, _innermost(same), _Filter() if filtered else same:
            yield

    return again


@contextmanager
def _begun(seed: int, device: torch.device | str) -> Iterator[Drawn]:
    """Give a thread its own generator, and yield the mode, not yet active, that passes it to operations."""
    device = torch.device(device)
    torch.random.default_generator = _STAND_IN  # type: ignore[assignment]
    default = _gpu(seed, device) if device.type == "cuda" else nullcontext()
    with default, _innermost(Drawn(torch.Generator().manual_seed(seed), device)) as drawn:
        yield drawn


@contextmanager
def _innermost(drawn: Drawn) -> Iterator[Drawn]:
    """Let a mode be that of the innermost block of the thread inside the `with`."""
    before = _OWN.drawn
    _OWN.drawn = drawn
    try:
        yield drawn
    finally:
        _OWN.drawn = before


@contextmanager
def _gpu_at(state: Tensor, device: torch.device) -> Iterator[None]:
    """Give the default generator of a GPU a state, and restore it.

    There is no lock, because the thread that waits for a backward pass may have it.
    """
    before = torch.cuda.get_rng_state(device)
    try:
        torch.cuda.set_rng_state(state, device)
        yield
    finally:
        torch.cuda.set_rng_state(before, device)


@contextmanager
def _gpu(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the default generator of a GPU, for one thread at a time, and restore it."""
    with _DEFAULT:
        before = torch.cuda.get_rng_state(device)
        try:
            torch.cuda.manual_seed(seed)
            yield
        finally:
            torch.cuda.set_rng_state(before, device)


@contextmanager
def _in_place_of_default(source: torch.Generator) -> Iterator[None]:
    """Give the default generator the state of another one, which then advances by what is drawn."""
    default = torch.default_generator
    with _DEFAULT:
        before = default.get_state()
        try:
            default.set_state(source.get_state())
            yield
            source.set_state(default.get_state())
        finally:
            default.set_state(before)


@cache
def _way(func: Any) -> Any:
    """Return how an operation gets a generator.

    It is the position of the argument, the overload that has one, one of the words above, or None for an operation
    that draws nothing.
    """
    arguments = [(argument.name, str(argument.type)) for argument in func._schema.arguments]
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _COMPOSITE):
        return _COMPOSITE
    names = [name for name, _ in arguments]
    if _TAKEN in names:
        return names.index(_TAKEN)
    packet = func.overloadpacket
    for other in (getattr(packet, name) for name in packet.overloads()):
        others = [(argument.name, str(argument.type)) for argument in other._schema.arguments]
        if len(others) > len(arguments) and [each for each in others if each[0] != _TAKEN] == arguments:
            return other
    return _ALONE if torch.Tag.nondeterministic_seeded in func.tags else None


def draws(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether an operation draws random numbers; fused attention does if it has dropout."""
    if torch.Tag.nondeterministic_seeded not in func.tags and _way(func) is None:
        return False
    names = [argument.name for argument in func._schema.arguments]
    if "dropout_p" not in names:
        return True
    at = names.index("dropout_p")
    return bool(args[at] if at < len(args) else kwargs.get("dropout_p", 0.0))


@lru_cache(maxsize=4096)
def _draws_nothing(func: Any) -> bool:
    """Return whether a function surely draws nothing; compiled functions of PyTorch are known by their names."""
    name = getattr(func, "__name__", "")
    if func in _PLAIN or name == "__get__":
        return True
    packet = func
    if isinstance(func, torch._ops.OpOverload):
        return _way(func) is None
    if not isinstance(func, torch._ops.OpOverloadPacket):
        if isinstance(func, FunctionType) and not name.startswith("__"):
            return False
        names = (name.strip("_"),) if name.startswith("__") else (name, name.strip("_"))
        packet = next((getattr(torch.ops.aten, each) for each in names if hasattr(torch.ops.aten, each)), None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return True
    overloads = [getattr(packet, each) for each in packet.overloads()]
    words = [name, *(argument.name for each in overloads for argument in each._schema.arguments)]
    if any("drop" in word or word == _TAKEN for word in words):
        return False
    return all(torch.Tag.nondeterministic_seeded not in each.tags for each in overloads)


def _device(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the kind of device on which an operation runs."""
    if kwargs.get("device") is not None:
        return torch.device(kwargs["device"]).type
    tensors = (leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, Tensor))
    return next((tensor.device.type for tensor in tensors), "cpu")


def _dropout(drawn: Drawn, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Return the result of `F.dropout` with the numbers of the block."""
    if not training or inplace or not 0 < p < 1 or input.device.type != "cpu":
        with drawn:
            return F.dropout(input, p, training, inplace)
    return input * torch.empty_like(input).bernoulli_(1 - p, generator=drawn.source).div_(1 - p)
