"""Activations that a network computes again in the backward pass, as `torch.utils.checkpoint` does, to save memory.

A network holds the weights that are asked about only while it is called. PyTorch would compute activations again with
whatever the network holds when the backward pass comes, and would not notice. So each function that is checkpointed
inside a call is bound to that call: when it runs again, the network holds the tensors of the call, is in its mode, and
draws its random numbers. This is exact for as long as the graph lives, in whichever thread, and however many calls
share a graph.

Reentrant checkpoints give no gradient in weights, only in their inputs; inside a call they are run as the others are.
Where a function cannot be run again exactly, it is run once and its activations are kept: inside a transform of
`torch.func`, under a mode of this library that changes what layers do, and where a network draws from a generator of
its own. Values and gradients are the same, and memory is not saved.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch._C._functorch import peek_interpreter_stack  # no public function says whether a transform is active
from torch.overrides import _get_current_function_mode_stack
from torch.utils import checkpoint
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from torchbayes.randomness.generators import draws_alike, is_block

Again = Callable[[], AbstractContextManager[Any]]


class Call(Protocol):
    """A call of a network, to which checkpoints inside it are bound."""

    def note(self) -> None:
        """Note that a function was checkpointed in this call."""
        ...

    def repeatable(self) -> bool:
        """Return whether functions can run again with the same random numbers."""
        ...

    def draws(self) -> bool:
        """Return whether functions may draw random numbers."""
        ...

    def again(self) -> Again:
        """Return what gives contexts in which the network is as it is now."""
        ...


class _Now(threading.local):
    """What a thread is doing."""

    call: Call | None = None  # the innermost call of a network
    again: bool = False  # whether it runs a function again
    kept: int = 0  # blocks that keep activations


_NOW = _Now()
# From PyTorch 2.15 on, checkpoints go through another function, which takes their arguments as a tuple and a dict.
_BY_NAME = hasattr(checkpoint, "_checkpoint_without_reentrant_generator_impl")
_GENERATOR = f"_checkpoint_without_reentrant_generator{'_impl' if _BY_NAME else ''}"
_plain_generator: Any = getattr(checkpoint, _GENERATOR)
_plain_apply: Any = checkpoint.CheckpointFunction.apply


class Calling:
    """A context in which functions that are checkpointed are bound to a call; `again` if it is one that reruns them.

    Every pass of every network enters one, so it is no generator.
    """

    __slots__ = ("_again", "_before", "_call")

    def __init__(self, call: Call, *, again: bool = False) -> None:
        self._call, self._again = call, again

    def __enter__(self) -> None:
        self._before = _NOW.call, _NOW.again
        _NOW.call, _NOW.again = self._call, self._again

    def __exit__(self, *_: object) -> None:
        _NOW.call, _NOW.again = self._before


@contextmanager
def activations_kept() -> Iterator[None]:
    """Run functions that are checkpointed inside the `with` once, and keep their activations.

    It is for code that watches or changes layers by hooks, which a second run would not find or would meet twice.
    """
    _NOW.kept += 1
    try:
        yield
    finally:
        _NOW.kept -= 1


def _keeps(call: Call) -> bool:
    """Return whether a function that is checkpointed now cannot be run again exactly."""
    if _NOW.again:  # as the first run has decided
        return False
    modes = (*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack())
    changed = any(type(mode).__module__.startswith("torchbayes.") and not is_block(mode) for mode in modes)
    return changed or peek_interpreter_stack() is not None or not call.repeatable()


def _bound(fn: Any, preserve_rng_state: bool) -> tuple[Any, bool] | None:
    """Return a function bound to the call of a network, and whether PyTorch restores its random state around it.

    None if it is run once and its activations are kept.
    """
    call = _NOW.call
    if call is not None:
        call.note()
    if _NOW.kept or (call is not None and torch.is_grad_enabled() and _keeps(call)):
        return None
    if call is None or not torch.is_grad_enabled():
        return fn, preserve_rng_state
    holding, drawing = call.again(), draws_alike()

    def again(*args: Any, **named: Any) -> Any:
        with holding(), drawing() if drawing else nullcontext():
            return fn(*args, **named)

    # Outside of a block, PyTorch restores the state of its own generators, which all threads share.
    return again, preserve_rng_state and drawing is None and call.draws()


def _generator(fn: Any, preserve_rng_state: bool = True, *rest: Any, **kwargs: Any) -> Any:
    """Return the generator of PyTorch around a checkpoint."""
    bound = _bound(fn, preserve_rng_state)
    return _kept() if bound is None else _plain_generator(*bound, *rest, **kwargs)


def _generator_by_name(fn: Any, *arguments: Any, preserve_rng_state: bool = True, **named: Any) -> Any:
    """Return that of PyTorch from 2.15 on."""
    bound = _bound(fn, preserve_rng_state)
    return _kept() if bound is None else _plain_generator(bound[0], *arguments, preserve_rng_state=bound[1], **named)


def _kept() -> Iterator[None]:
    """Yield before a function runs, and do no more."""
    yield


def _bound_apply(_: Any, run_function: Any, preserve: bool, *args: Any) -> Any:
    """Return the outputs of a reentrant checkpoint; inside the call of a network, those of one that is not."""
    if _NOW.call is None and not _NOW.kept:
        return _plain_apply(run_function, preserve, *args)
    return checkpoint.checkpoint(run_function, *args, use_reentrant=False, preserve_rng_state=preserve)


# `checkpoint` is imported by name everywhere, so only what it looks up itself can be replaced. Outside of the calls of
# a network both do what they did.
setattr(checkpoint, _GENERATOR, _generator_by_name if _BY_NAME else _generator)
checkpoint.CheckpointFunction.apply = classmethod(_bound_apply)  # type: ignore[assignment]
