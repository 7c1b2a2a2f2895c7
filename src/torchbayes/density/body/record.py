"""The body of a network: the calls of modules that its random weights do not reach, recorded on some rows.

With `random="head.*"`, or adapters in the last layers, most of a pass is the same for all random weights. One pass is
watched (`watch.py`), with the outputs of the largest modules that do not depend on random weights kept; in later passes
over the same rows they take the place of these modules' forward. The watched pass has weights of its own, at which no
factor is 0 as that of a fresh adapter is. A second one, with what was recorded, must give the same outputs there. If
anything stands in the way, the network is run as it is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from torchbayes.density.body.watch import Forward, Leaf, Other, Watch, forwards, watching
from torchbayes.model.batches.batch import batch_size, rows_of, tensors_of
from torchbayes.model.initialisation import random_ids
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers, Network
from torchbayes.model.probes.gradients import changed

BUDGET = 2**30  # bytes of recorded outputs, of all the data in a fit and of a chunk of rows in a prediction
_MANY = 100  # passes over the same rows in a fit; a sampler makes more
_POSITIONS = 256  # positions up to which a pass is bound by reading the constants, and draws are cheaper together
_ROUNDINGS = 100  # roundings by which outputs may differ
_RUN: Any = object()  # in the place of outputs: the module is run
_REACHES: WeakKeyDictionary[Network, dict[frozenset[str], Reach]] = WeakKeyDictionary()


class Reach(NamedTuple):
    """How far the random weights of a network reach."""

    body: float = 0.0  # the share of a pass that they do not reach, from 0 to 1
    nbytes: float = 0.0  # of its recorded outputs, for each row
    positions: float = math.inf  # of a row that go through a constant, on average

    def pays(self, passes: int, rows: int = 1) -> bool:
        """Return whether recording the body pays for some passes over the same rows, and fits in the budget.

        To record it takes one pass, and one without it.
        """
        return self.body * (passes + 1) > 2 and self.nbytes * rows <= BUDGET

    def together(self, rows: int) -> bool:
        """Return whether draws go through the network together, as the constants are read once for all of them."""
        return self.positions * rows <= _POSITIONS


class Missing:
    """In the place of an object in recorded outputs that is no tensor: whoever uses it gets an error."""

    def __getattr__(self, name: str) -> Any:
        raise LookupError(f"`{name}` of an object that was not recorded.")


class Pass(NamedTuple):
    """A pass of a model's network."""

    model: Model
    views: Mapping[str, Tensor]  # of the network's random weights
    inputs: Any
    buffers: Buffers | None = None
    differing: frozenset[str] = frozenset()  # names of the buffers that other passes over these rows have others of

    def run(self) -> Tensor:
        """Return the outputs (B, ..., K)."""
        return self.model.network(self.views, self.inputs, self.buffers)

    def elsewhere(self) -> Pass:
        """Return the pass at weights near these, none of which is 0."""
        return self._replace(views=changed({name: view.detach().nan_to_num() for name, view in self.views.items()}, 0))


class Body(NamedTuple):
    """What was recorded in a pass."""

    outputs: dict[str, list[Any]]  # those of each call of a module in turn, by its name
    nbytes: int
    share: float  # of the pass, from 0 to 1
    positions: float  # that go through a constant, on average

    def instead(self, network: Network) -> AbstractContextManager[None]:
        """Return a context in which this thread's passes over the same rows do not run the body."""
        parts = {name: network.module.get_submodule(name) for name in self.outputs}
        return forwards(parts, {name: partial(_replaying, outputs) for name, outputs in self.outputs.items()})


def _replaying(outputs: list[Any], forward: Forward) -> Forward:
    turns = itertools.cycle(outputs)

    def run(*args: Any, **kwargs: Any) -> Any:
        recorded = next(turns)
        if recorded is _RUN:
            return forward(*args, **kwargs)
        # views, because whoever is given a tensor may set what belongs to it, such as `requires_grad`
        return pytree.tree_map_only(Tensor, Tensor.detach, recorded)

    return run


def reach_of(at: Pass) -> Reach:
    """Return how far the random weights of a network reach, found out once, on one row."""
    network, known = at.model.network, _REACHES.setdefault(at.model.network, {})
    if not network.constants or network.module.training or torch.compiler.is_compiling():
        return Reach()
    if at.differing not in known:
        at = at if at.model.coupled else at._replace(inputs=rows_of(at.inputs, slice(0, 1)))
        try:
            body, rows = _recorded(at, most=math.inf), batch_size(at.inputs)
        except Exception:  # the network as it is raises it again, if this is not due to the other weights
            return Reach()
        known[at.differing] = Reach(body.share, body.nbytes / rows, body.positions / rows) if body else Reach()
    return known[at.differing]


def record(at: Pass, *, most: float = BUDGET) -> Body | None:
    """Return the body of a pass; None where it cannot be recorded, or has more than `most` bytes."""
    try:
        return _recorded(at, most=most)
    except Exception:  # likewise
        return None


@torch.no_grad()
def _recorded(at: Pass, *, most: float) -> Body | None:
    """Return the body of a pass, if passes with it give what the whole network gives."""
    at = at.elsewhere()
    for strict in (False, True):
        watch, outputs = _watched(at, most=most, strict=strict)
        if watch is None:
            return None
        body = _body(watch)
        with suppress(Exception), body.instead(at.model.network):
            if _alike(outputs, at.run()):
                return body
    return None


def _watched(at: Pass, *, most: float, strict: bool) -> tuple[Watch | None, Tensor]:
    """Return a watch over the pass, None if nothing can be recorded, and the outputs."""
    network = at.model.network
    state = network.ask(at.views, at.inputs, at.buffers)
    effects = network.held.ask(state, at.inputs, device=network.device)
    random = random_ids(network.module, network.layout)
    whole = {name: child for name, child in network.module.named_modules() if name and _is_whole(child, random)}
    sources = [*at.views.values(), *((at.buffers or {})[name] for name in at.differing)]
    mask, buffers = network.mask, [*network.module.buffers(), *network.buffers.values(), *(at.buffers or {}).values()]
    known = [*buffers, *tensors_of(at.inputs), *mask.indices.values(), *mask.tensors.values()]
    watch = Watch(sources, [*network.constants.values()], known=known, most=most, strict=strict)
    before = {name: dict(vars(child)) for name, child in whole.items()}
    with watching(watch, whole):
        outputs = at.run()
        watch.use(outputs)
    pure = effects is not None and not (effects.written or effects.draws)
    once = pure and not network.held.recomputes(training=False)
    stateless = all(_same(before[name], vars(child)) for name, child in whole.items())
    return (watch if once and stateless and watch.sound() else None), outputs


def _is_whole(child: nn.Module, random: frozenset[int]) -> bool:
    """Return whether all of a module may be recorded: it has no random weights, and can be given another forward."""
    return not isinstance(child, torch.jit.ScriptModule) and random.isdisjoint(map(id, child.parameters()))


def _same(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether a module has the attributes that it had."""
    return before.keys() == now.keys() and all(before[name] is now[name] for name in before)


def _body(watch: Watch) -> Body:
    """Return what a watch has recorded. What is not used outside of recorded calls takes no memory."""
    outputs: dict[str, list[Any]] = {}
    kept: dict[Leaf, Tensor] = {}
    for call in watch.calls:
        if call.leaves is None:
            outputs.setdefault(call.name, []).append(_RUN)
            continue
        leaves = [_value(leaf, watch, kept) for leaf in call.leaves]
        outputs.setdefault(call.name, []).append(pytree.tree_unflatten(leaves, call.tree))
    outputs = {name: each for name, each in outputs.items() if any(value is not _RUN for value in each)}
    done = sum(call.work for call in watch.calls if call.leaves is not None)
    read = sum(watch.weights.values())
    nbytes = sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept.values()}.values())
    return Body(outputs, nbytes, done / max(watch.root.work, 1.0), watch.root.work / (2 * read) if read else math.inf)


def _value(leaf: Leaf | Other, watch: Watch, kept: dict[Leaf, Tensor]) -> Any:
    """Return what a recorded leaf of outputs is replaced by; a tensor that is used is put into `kept`."""
    if isinstance(leaf, Other):
        return leaf.value if isinstance(leaf.value, int | float | str | None) else Missing()
    number, dtype, device, size, stride, offset = leaf
    if (use := watch.root.used.get(number)) is None:
        nothing = math.nan if dtype.is_floating_point or dtype.is_complex else 0
        return torch.full((), nothing, dtype=dtype, device=device).expand(size)
    if leaf not in kept:
        tensor = torch.empty(0, dtype=dtype, device=device).set_(use.storage, offset, size, stride)
        kept[leaf] = tensor if use.storage.nbytes() <= tensor.nbytes else tensor.clone()  # not a part of a large one
    return kept[leaf]


def _alike(first: Tensor, second: Tensor) -> bool:
    """Return whether outputs are equal to rounding."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    largest = float(first.nan_to_num(0.0, 0.0, 0.0).abs().max()) if first.numel() else 0.0
    atol = _ROUNDINGS * torch.finfo(first.dtype).eps * largest
    return torch.allclose(first, second, rtol=0.0, atol=atol, equal_nan=True)


class Bodies:
    """The bodies of all the data, chunk by chunk, as long as they fit in the budget."""

    def __init__(self, model: Model) -> None:
        self._model, self._versions = model, list[int]()
        self._known: dict[int, Body | None] = {}

    def instead(self, start: int, inputs: Any, weights_D: Tensor) -> AbstractContextManager[None]:
        """Return a context in which passes over a chunk do not run its body, which is recorded at the first call.

        `start` is the number of the chunk's first row.
        """
        at = Pass(self._model, self._model.split(weights_D)[0], self._model.network.arrange(inputs))
        if self._model.network.sharded or not reach_of(at).pays(_MANY):  # processes must make the same calls
            return nullcontext()
        versions = [tensor._version for tensor in tensors_of(inputs) if not tensor.is_inference()]
        if versions != self._versions:  # rows were written to
            self._known, self._versions = {}, versions
        if start not in self._known:
            left = BUDGET - sum(body.nbytes for body in self._known.values() if body)
            self._known[start] = record(at, most=left)
        body = self._known[start]
        return body.instead(self._model.network) if body else nullcontext()
