"""Which calls of a network's modules do not depend on its random weights, by watching one pass.

Every operation is seen. What it makes, or writes to, depends on the random weights if one of its arguments does.
Dependence is a property of memory, so that views and writes in place are no exception, and of whole numbers as much as
of gradients. If a number that depends on them leaves PyTorch (`.item()`, `.numpy()`, the size of `x[x > 0]`), the
network may go another way for other weights, and nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry
from torch.utils.weak import WeakIdKeyDictionary

from torchbayes.model.borrowed import written_to
from torchbayes.randomness.generators import DispatchMode

_LEAVING = {Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.data_ptr, Tensor.__dlpack__}
_INDEXING = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default, torch.ops.aten.index_put.default}
_MASKS = (torch.bool, torch.uint8)
_LITERAL = {torch.ops.aten.lift_fresh.default, torch.ops.aten.lift.default}  # of `torch.tensor(...)`
Forward = Callable[..., Any]


class Leaf(NamedTuple):
    """A tensor in the outputs of a call: its memory by number, and its place in it."""

    number: int
    dtype: torch.dtype
    device: torch.device
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class Other(NamedTuple):
    """Something else in the outputs of a call."""

    value: Any


@dataclass
class Call:
    """A call of a module without random weights; `leaves` and `tree` are its outputs, None if it has to be run."""

    name: str
    leaves: list[Leaf | Other] | None = None
    tree: Any = None
    work: float = 0.0


class Use(NamedTuple):
    """A use of recorded outputs by an operation outside of recorded calls."""

    storage: torch.UntypedStorage
    writes: set[int]  # how often that memory had been written to at each use


@dataclass
class Frame:
    """What happens in a call, and not in recorded calls inside it."""

    place: int  # of the call among all
    first: int  # number of the first memory that is made in it
    work: float = 0.0  # multiplications, and elements that are computed otherwise, recorded calls included
    used: dict[int, Use] = field(default_factory=dict)  # recorded outputs that are used, by number of memory
    written: set[int] = field(default_factory=set)  # numbers of memory
    leaked: bool = False  # whether an operation reads what a recorded call has made and does not return


class Watch(DispatchMode):
    """While active, finds out what depends on some tensors.

    Attributes:
        calls: the calls of modules in the order in which they began, without those inside recorded calls.
        root: what happened outside of recorded calls, and the work of the whole pass.
        escaped: whether a number that depends on these tensors has left PyTorch.
        weights: elements of the constants in products, by number of memory.
    """

    def __init__(
        self,
        sources: Sequence[Tensor],
        constants: Sequence[Tensor],
        *,
        known: Sequence[Tensor],
        most: float,
        strict: bool,
    ) -> None:
        """Watch what depends on `sources`; `constants` and `known` are the other tensors that there are before a pass.

        At most `most` bytes of used outputs are kept; with more, `full` is set. With `strict`, calls whose outputs hold
        other things than tensors are not recorded.
        """
        super().__init__()
        self.calls, self.escaped, self.full = list[Call](), False, False
        self.weights = dict[int, int]()
        self._numbers, self._made, self._given = WeakIdKeyDictionary(), 0, 0
        self.root = Frame(-1, 1)
        self._frames, self._recorded, self._inner, self._returned = [self.root], set[int](), set[int](), set[int]()
        self._writes, self._most, self._strict = dict[int, int](), most, strict
        self._reached = {number for tensor in sources if (number := self._number(tensor)) is not None}
        self._constants = {number for tensor in constants if (number := self._number(tensor)) is not None}
        for tensor in known:
            self._number(tensor)

    def sound(self) -> bool:
        """Return whether recorded outputs may take the place of their calls.

        They may not if they are written to after they were used, if something else is used that a recorded call has
        made, or if there are too many.
        """
        settled = all(use.writes == {self._writes.get(number, 0)} for number, use in self.root.used.items())
        return settled and not (self.escaped or self.full or self.root.leaked)

    def _number(self, tensor: Tensor, *, made: bool = False) -> int | None:
        """Return the number of a tensor's memory, above 0 if it was made in this pass; None if it has none to tell."""
        try:
            storage = tensor.untyped_storage()
        except (RuntimeError, NotImplementedError):  # sparse tensors, and classes that hold others
            return None
        if (number := self._numbers.get(storage)) is None:
            self._made, self._given = self._made + made, self._given - (not made)
            self._numbers[storage] = number = self._made if made else self._given
        return number

    def _is_new(self, tensor: Tensor) -> bool:
        """Return whether a tensor was made by no operation that was seen, as compiled functions make theirs."""
        before = self._given
        return self._number(tensor) is not None and self._given < before

    def depends(self, tensor: Tensor) -> bool:
        """Return whether a tensor depends on the sources."""
        return self._number(tensor) in self._reached

    def use(self, tensor: Tensor) -> None:
        """Note that an operation reads a tensor."""
        frame, number = self._frames[-1], self._number(tensor)
        frame.leaked |= number in self._inner
        if number not in self._recorded or self.full:
            return
        use = frame.used.setdefault(number, Use(tensor.untyped_storage(), set()))
        use.writes.add(self._writes.get(number, 0))
        if len(self._frames) == 1:
            self._check_full()

    def _check_full(self) -> None:
        if sum(use.storage.nbytes() for use in self.root.used.values()) > self._most:
            self.full = True
            self.root.used.clear()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return an operation's result, and note what it reads, writes and makes."""
        kwargs, frame = kwargs or {}, self._frames[-1]
        given = _tensors((args, kwargs))
        self.escaped |= func not in _LITERAL and any(tensor.ndim and self._is_new(tensor) for tensor in given)
        numbers = [self._number(tensor) for tensor in given]
        reached = not self._reached.isdisjoint(numbers)
        for tensor in given:
            self.use(tensor)
        if not hasattr(func, "_schema"):  # an operation of higher order
            self.escaped |= reached
            return func(*args, **kwargs)
        if func._schema.is_mutable:
            for number in map(self._number, written_to(func._schema, args, kwargs)):
                if number is not None:
                    self._writes[number] = self._writes.get(number, 0) + 1
                    frame.written.add(number)
                self._reach(number, reached)
        result = func(*args, **kwargs)
        made = _tensors(result)
        for tensor in made:
            self._reach(self._number(tensor, made=True), reached)
        work = _flops(func, args, kwargs, result=result)
        frame.work += work or sum(tensor.numel() for tensor in made)
        if work:
            given_at = zip(numbers, given, strict=True)
            self.weights.update({n: t.numel() for n, t in given_at if n is not None and n in self._constants})
        if reached:
            self.escaped |= (result is not None and not made) or _chooses_size(self, func, given)
        return result

    def _reach(self, number: int | None, reached: bool) -> None:
        if reached:
            self.escaped |= number is None
            self._reached.add(number or 0)

    def run(self, name: str, forward: Forward, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs of a module without random weights, and record them if they depend on no source."""
        frame = Frame(len(self.calls), self._made + 1)
        self.calls.append(call := Call(name))
        self._frames.append(frame)
        try:
            outputs = forward(*args, **kwargs)
        finally:
            self._frames.pop()
        self._end(frame, call, outputs)
        return outputs

    def _end(self, frame: Frame, call: Call, outputs: Any) -> None:
        """End a call: nothing of what is inside it is recorded, if it is recorded itself."""
        outer = self._frames[-1]
        outer.work += frame.work
        outside = {number for number in frame.written if number < frame.first} - self._returned
        outer.written |= frame.written
        leaves, tree = pytree.tree_flatten(outputs)
        known = [self._leaf(leaf) for leaf in leaves]
        if frame.work and not outside and None not in known:  # without work, running it costs nothing
            del self.calls[frame.place + 1 :]
            call.leaves, call.tree, call.work = [leaf for leaf in known if leaf is not None], tree, frame.work
            numbers = {leaf.number for leaf in call.leaves if isinstance(leaf, Leaf)}
            made = {*range(frame.first, self._made + 1)}
            self._recorded |= numbers
            self._returned |= numbers & made
            self._inner |= made - numbers
            return
        outer.leaked |= frame.leaked
        for number, use in frame.used.items():
            outer.used.setdefault(number, Use(use.storage, set())).writes.update(use.writes)
        if len(self._frames) == 1:
            self._check_full()

    def _leaf(self, leaf: Any) -> Leaf | Other | None:
        """Return what there is to record of a leaf of outputs; None if it depends on the sources, or cannot be told."""
        if not isinstance(leaf, Tensor):
            return None if self._strict and not isinstance(leaf, int | float | str | None) else Other(leaf)
        self.escaped |= self._is_new(leaf)
        number = self._number(leaf)
        if number is None or number in self._reached or leaf.is_conj() or leaf.is_neg():
            return None
        return Leaf(number, leaf.dtype, leaf.device, leaf.size(), leaf.stride(), int(leaf.storage_offset()))


class Leaving(TorchFunctionMode):
    """While active, tells a `Watch` of numbers that leave PyTorch where it sees no operation."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return a function's result."""
        if func in _LEAVING:
            self._watch.use(args[0])
            self._watch.escaped |= self._watch.depends(args[0])
        return func(*args, **(kwargs or {}))


@contextmanager
def forwards(parts: Mapping[str, nn.Module], instead: Mapping[str, Callable[[Forward], Forward]]) -> Iterator[None]:
    """Let modules by name run something else in the place of their forward inside the `with`."""
    before = {name: vars(parts[name]).get("forward") for name in instead}
    try:
        for name, make in instead.items():
            vars(parts[name])["forward"] = make(parts[name].forward)
        yield
    finally:
        for name, forward in before.items():
            if forward is None:
                vars(parts[name]).pop("forward", None)
            else:
                vars(parts[name])["forward"] = forward


@contextmanager
def watching(watch: Watch, parts: Mapping[str, nn.Module]) -> Iterator[None]:
    """Let a watch see every operation, and the calls of modules without random weights, inside the `with`."""
    instead = {name: lambda forward, name=name: partial(watch.run, name, forward) for name in parts}
    with forwards(parts, instead), Leaving(watch), watch:
        yield


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _chooses_size(watch: Watch, func: Any, given: Sequence[Tensor]) -> bool:
    """Return whether the size of a result depends on numbers that depend on the sources."""
    masks = [t for t in given if t.dtype in _MASKS] if func in _INDEXING else given
    dynamic = torch.Tag.dynamic_output_shape in func.tags or func in _INDEXING
    return dynamic and any(map(watch.depends, masks))


def _flops(func: Any, args: Any, kwargs: Mapping[str, Any], *, result: Any) -> float:
    """Return the number of multiplications and additions of a product; 0 for any other operation."""
    formula = flop_registry.get(getattr(func, "_overloadpacket", None))
    return float(formula(*args, **kwargs, out_val=result)) if formula else 0.0
