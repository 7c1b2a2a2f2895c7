"""A module that holds other tensors instead of its own during a call, and the tensors that it writes to."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack  # no public function says whether a transform is active
from torch.func import functional_call
from torch.nn.modules.dropout import _DropoutNd  # no public base class covers every dropout

from torchbayes.checks import SettingError
from torchbayes.model.batches.batch import arguments, copied, tensors_of
from torchbayes.model.borrowed import ReadOnly, apart
from torchbayes.model.initialisation import copied as module_copy
from torchbayes.model.wrappers import differentiated, unwrapped
from torchbayes.native.process import outside_inference, trim
from torchbayes.native.recomputation import Again, Calling
from torchbayes.native.sharding import gathered_again, sharded
from torchbayes.randomness.seeds import Purpose, seeded

Places = dict[str, list[tuple[dict[str, Any], str]]]
_PATIENCE = 60.0  # seconds for which a thread of the backward pass waits for another


class Seen(NamedTuple):
    """The effects of a module's call, found out once in each mode."""

    inputs: bool  # whether it changes its inputs in place
    written: frozenset[str]  # names of the buffers and borrowed tensors that it changes
    draws: bool  # whether it draws random numbers, or has dropout
    own_generator: bool  # whether it draws from a generator of its own


class _Shell(threading.local):
    """A copy of a module without tensors of its own, one in each thread, made when it is first asked for.

    `places` says where its tensors are held; `live` are the parts that follow training mode.
    """

    def __init__(self, template: nn.Module, tensors: Mapping[str, Tensor], live: Collection[str]) -> None:
        self.module = module_copy(template, {id(tensor): tensor for tensor in tensors.values()})
        self.places = _places(self.module, tensors)
        self.live = tuple(m for n, m in self.module.named_modules() if n in live)
        self.lock = threading.RLock()  # threads of PyTorch's backward pass may hold tensors in it too


class _Pass:
    """A call of a module with the tensors of `state`, to which functions that it checkpoints are bound."""

    def __init__(self, held: Held, state: Mapping[str, Tensor]) -> None:
        self._held, self._state = held, state
        self._modes: list[tuple[nn.Module, bool]] | None = None

    def note(self) -> None:
        if self._modes is None:  # not before, because most networks checkpoint nothing
            shell, self._thread = self._held._shell, threading.get_ident()
            self._module, self._places, self._lock = shell.module, shell.places, shell.lock
            self._modes = [(inner, inner.training) for inner in self._module.modules()]
        self._held._recomputing.add(self._module.training)

    def repeatable(self) -> bool:
        effects = self._held._seen.get(self._module.training)
        return effects is None or not effects.own_generator

    def draws(self) -> bool:
        return self._held.draws(training=self._module.training)

    def again(self) -> Again:
        """Return what gives contexts in which the module holds the tensors that it holds now, and is in its mode.

        Buffers have the values that they have now, however often: what a second run writes to them is dropped.
        """
        modes = self._modes or []
        changing = self._changing(any(training for _, training in modes))
        # all of them, because a network may itself give others to its parts, by torch.func.functional_call
        places = [(table, key) for name in self._places.keys() - changing for table, key in self._places[name]]
        kept = [(table, key, table[key]) for table, key in places]
        buffers = [(self._places[name], _value(self._places[name]).clone()) for name in changing]

        @contextmanager
        def holding() -> Iterator[None]:
            copies = [(table, key, copy) for at, b in buffers for copy in [b.clone()] for table, key in at]
            with self._alone(), _in_modes(modes), _swapped([*kept, *copies]), Calling(self, again=True):
                yield

        return holding

    def _changing(self, training: bool) -> set[str]:
        """Return the names of buffers that the module may change; version counters do not show all that norms do."""
        effects = self._held._seen.get(self._module.training)
        buffers = {name: tensor for name, tensor in self._held._buffers().items() if name in self._state}
        if effects is None:
            return {*buffers}
        return {*effects.written, *(n for n, tensor in buffers.items() if training and tensor.is_floating_point())}

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other threads out of the module; RuntimeError in a thread that may meet it in use."""
        thread = threading.current_thread()
        mine = thread.ident == self._thread or isinstance(thread, threading._DummyThread)  # or PyTorch's own
        if not mine or not self._lock.acquire(timeout=_PATIENCE):
            raise RuntimeError(
                "the network recomputes activations (torch.utils.checkpoint) in another thread than it was called in. "
                "Run the backward pass in the thread of the forward pass."
            )
        try:
            yield
        finally:
            self._lock.release()


class Held:
    """A module whose parameters and buffers are swapped for a call: `functional_call` without its checks.

    Names are checked once, in the layout; this saves a tenth of a millisecond per call in a network of 65 tensors.
    Tensors are swapped, and modes and settings of layers changed, in a copy without tensors that each thread has of the
    module, so that calls in several threads do not interfere.
    """

    def __init__(
        self,
        module: nn.Module,
        random: Collection[str],
        live: Collection[str] = (),
        *,
        shared: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Note where the tensors of `module`, which is never run itself, are held.

        No call may change the parameters named in `random`; the parts named in `live` follow training mode. A call that
        would change its tensors in `shared`, whose memory is another module's, is given copies.
        """
        self._template, self._random, self._live, self._shared = module, random, live, dict(shared or {})
        self._own: dict[str, Tensor] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        self._seen: dict[bool, Seen] = {}  # by whether it is in training mode
        self._recomputing = set[bool]()  # the modes in which it checkpoints functions
        # the context of a call
        self._gathered: Callable[[], AbstractContextManager[Any]] = nullcontext
        if sharded(self._own.items()):
            self._gathered = partial(_gathered, threading.get_ident())
        self._shell = _Shell(module, self._own, live)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling and copying, without the copies of threads."""
        return {name: value for name, value in self.__dict__.items() if name != "_shell"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._shell = _Shell(self._template, self._own, self._live)

    @property
    def module(self) -> nn.Module:
        """The module of this thread."""
        return self._shell.module

    def draws(self, *, training: bool) -> bool:
        """Return whether the module draws random numbers in a mode; True where that is not known yet."""
        return training not in self._seen or self._seen[training].draws

    def recomputes(self, *, training: bool) -> bool:
        """Return whether the module recomputes activations in a mode, as far as it has been called in it."""
        return training in self._recomputing

    @contextmanager
    def training(self) -> Iterator[None]:
        """Run the live parts of this thread's module in training mode inside the `with`."""
        parts = self._shell.live
        try:
            _set_training(parts, True)
            yield
        finally:
            _set_training(parts, False)

    @contextmanager
    def _holding(self, state: Mapping[str, Tensor]) -> Iterator[None]:
        """Let the module hold the tensors of `state` inside the `with`."""
        places = self._shell.places
        try:
            for name, tensor in state.items():
                for table, key in places[name]:
                    table[key] = tensor
            yield
        finally:
            for name in state:
                for table, key in places[name]:
                    table[key] = self._own[name]

    def run(self, state: Mapping[str, Tensor], inputs: Any) -> Any:
        """Return the module's outputs while it holds the tensors of `state`.

        The inputs belong to the user, and the next call must see the same values. So the module gets copies if it
        changes its inputs in place, as a first `nn.ReLU(inplace=True)` does, or if that is not known. The same holds
        for buffers and borrowed tensors that it changes and that are not in `state`.
        """
        shell = self._shell
        module = shell.module
        effects = self._seen.get(module.training)
        args, kwargs = arguments(copied(inputs) if effects is None or effects.inputs else inputs)
        if torch.compiler.is_compiling():
            return functional_call(module, dict(state), args, kwargs)
        if effects is not None and effects.written:
            state = {**{name: self._own[name].clone() for name in effects.written}, **state}
        with shell.lock, self._holding(state), Calling(_Pass(self, state)), self._gathered():
            return module(*args, **kwargs)

    def ask(self, state: Mapping[str, Tensor], inputs: Any, *, device: torch.device) -> Seen | None:
        """Find out the effects of a call: once in each mode, and on copies.

        The result is None under a transform, which hides writes, where they are not known yet. A module that writes to
        random weights raises SettingError.
        """
        module = self._shell.module
        training = module.training
        if training in self._seen or torch.compiler.is_compiling() or peek_interpreter_stack():
            return self._seen.get(training)
        # tensors created in inference mode have no version counter
        with outside_inference():
            asked, written = {**self._buffers(), **state}, frozenset[str]()
            while (seen := self._tried(asked, inputs, device=device)).written - asked.keys():
                written |= seen.written & self._shared.keys()
                asked.update({name: self._shared[name] for name in written})
            self._seen[training] = seen._replace(written=seen.written | written)
        trim()  # returns the memory of copies, and of earlier copies of the network, to the system
        return self._seen[training]

    def _tried(self, state: Mapping[str, Tensor], inputs: Any, *, device: torch.device) -> Seen:
        """Return the effects of a call with copies of the tensors of `state`, in the mode that the module is in.

        What it would write to shared tensors that are not among them is left out.
        """
        module = self._shell.module
        copies, copied_inputs = {n: t.detach().clone() for n, t in state.items()}, copied(inputs)
        tensors, before = tensors_of(copied_inputs), _versions(copies)
        counts, (args, kwargs) = _counts(tensors), arguments(copied_inputs)
        others = {name: apart(tensor) for name, tensor in self._shared.items() if name not in copies}
        held = {**others, **copies}
        with (
            seeded(Purpose.WRITING, device=device) as drawn,
            ReadOnly(others) as kept,
            self._holding(held),
            Calling(_Pass(self, held)),
            self._gathered(),
        ):
            try:
                module(*args, **kwargs)
            except Exception:
                if not kept.written:  # else it is called again, with copies of these tensors
                    raise
        written = [name for name, version in _versions(copies).items() if version != before[name]]
        if weights := [name for name in written if name in self._random]:
            raise SettingError(
                f"the network changes its weights `{weights[0]}` in place whenever it is called, as "
                f"nn.Embedding(max_norm=...) does, so that no density belongs to them. Let it use a changed copy "
                f"instead."
            )
        draws = drawn.used or any(drops(inner) for inner in module.modules() if inner.training)
        changed = frozenset(written) & (self._buffers().keys() | self._shared.keys()) | kept.written
        return Seen(counts != _counts(tensors), changed, draws, drawn.foreign)

    def _buffers(self) -> dict[str, Tensor]:
        """Return the buffers that the module alone holds, without sparse ones and those without values."""
        named = ((n, t) for n, t in self._own.items() if not isinstance(t, nn.Parameter) and n not in self._shared)
        return {n: t for n, t in named if t.layout == torch.strided and not t.is_meta}


def _gathered(thread: int) -> AbstractContextManager[Any]:
    """Return a context for a call of a module that is split over processes, which only this thread may call."""
    if thread != threading.get_ident():
        raise SettingError(
            "the network is split over processes, which must call it in the same order, and threads have none. Use it "
            "in the thread that made the Model."
        )
    return gathered_again()


def drops(inner: nn.Module) -> bool:
    """Return whether a part is a dropout layer that drops anything, or has such a setting, as attention has."""
    if isinstance(inner, _DropoutNd):
        return inner.p > 0
    return any(isinstance(value, float) and value > 0 and "drop" in name for name, value in vars(inner).items())


def functional_copy(module: nn.Module, instead: Mapping[int, Tensor]) -> nn.Module:
    """Return a copy of a module without wrappers that can be run with other weights; TypeError if there is none.

    It holds `instead[id(p)]` in the place of a parameter p. Its gradients are those of its outputs, and dense, because
    all go into one vector, which cannot hold sparse ones.
    """
    if isinstance(module, torch.jit.ScriptModule):
        raise TypeError("a compiled `network` of torch.jit keeps its own weights. Pass the module that it was made of.")
    try:
        clone = differentiated(unwrapped(module_copy(module, instead)))
    except Exception as error:  # a __deepcopy__ may raise anything
        raise TypeError(
            f"the `network` cannot be copied: {str(error).rstrip('.') or type(error).__name__}{_culprit(module)}. A "
            f"copy is run, as the given one is never written to. Make a tensor that depends on parameters in "
            f"`forward`, or by torch.nn.utils.parametrizations in the place of the old weight_norm; freeze layers "
            f"(`requires_grad_(False)`) before their weights are packed, as HQQ does; give another kind "
            f"of object a `__deepcopy__`, or keep it outside of the module."
        ) from error
    for inner in clone.modules():
        if isinstance(inner, nn.Embedding | nn.EmbeddingBag):
            inner.sparse = False
    return clone


def _culprit(module: nn.Module) -> str:
    """Return in words which attribute of a module cannot be copied; an empty string if there is none."""
    parts = {id(known): known for known in (module, *module.modules(), *module.parameters(), *module.buffers())}
    for name, inner in module.named_modules():
        for key, value in vars(inner).items():
            try:
                copy.deepcopy(value, dict(parts))
            except Exception:  # it may raise anything
                return f", which is `{f'{name}.{key}'.lstrip('.')}`"
    return ""


def without_memory(tensor: Tensor) -> Tensor:
    """Return a tensor on the meta device like another one; a parameter stays one."""
    bare = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    return nn.Parameter(bare, requires_grad=False) if isinstance(tensor, nn.Parameter) else bare


def _counts(tensors: Iterable[Tensor]) -> list[int]:
    """Return the version counter of each tensor."""
    return [tensor._version for tensor in tensors]


def _versions(named: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the version counter of each tensor by name."""
    return dict(zip(named, _counts(named.values()), strict=True))


def _set_training(parts: Iterable[nn.Module], training: bool) -> None:
    for inner in parts:
        # Module.__setattr__ looks for parameters first, which adds up over a step
        object.__setattr__(inner, "training", training)


@contextmanager
def _in_modes(modes: Iterable[tuple[nn.Module, bool]]) -> Iterator[None]:
    """Let each module be in a mode inside the `with`."""
    changed = [inner for inner, training in modes if inner.training != training]
    try:
        for inner in changed:
            object.__setattr__(inner, "training", not inner.training)
        yield
    finally:
        for inner in changed:
            object.__setattr__(inner, "training", not inner.training)


def _value(at: Sequence[tuple[dict[str, Any], str]]) -> Tensor:
    """Return the tensor in a place of a module."""
    table, key = at[0]
    return table[key]


@contextmanager
def _swapped(tensors: Sequence[tuple[dict[str, Any], str, Tensor]]) -> Iterator[None]:
    """Let a module hold tensors in its tables by key inside the `with`, and then those that it holds now."""
    before = [(table, key, table[key]) for table, key, _ in tensors]
    try:
        for table, key, tensor in tensors:
            table[key] = tensor
        yield
    finally:
        for table, key, tensor in before:
            table[key] = tensor


def _places(module: nn.Module, tensors: Mapping[str, Tensor]) -> Places:
    """Return where each parameter and buffer is held: name -> (table of a module, key); tied ones have several."""
    names = {id(tensor): name for name, tensor in tensors.items()}
    places: Places = {name: [] for name in tensors}
    for inner in module.modules():
        for table in (inner._parameters, inner._buffers):
            for key, tensor in table.items():
                if tensor is not None:
                    places[names[id(tensor)]].append((table, key))
    return places
