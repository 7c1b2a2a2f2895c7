"""The one loop: a method names the rows it visits, takes a step, and gives its draws, until its run is over.

Here is where the members of a run begin, how rows are read, what is averaged over an epoch, and the run from its
beginning or checkpoint to the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.density.plans import Plan
from torchbayes.driver.checkpoint import all_finite, released
from torchbayes.driver.progress import Callback, Event, Lines, listeners
from torchbayes.driver.run import DiskShelf, MemoryShelf, Run, Shard, Shelf
from torchbayes.methods.optimise.learned import at_least
from torchbayes.methods.protocol import DivergedError, Info, Method, Spreading, Visit
from torchbayes.model.batches.batch import Batch
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers
from torchbayes.model.sources.sources import Source
from torchbayes.randomness.seeds import member_seeds


@dataclass(frozen=True)
class Begin:
    """Weights, buffers and seeds of members before the first step."""

    weights_MD: Tensor  # of each member, or of all networks at which a member begins, one after the other
    buffers: Buffers  # of the network at these weights, (M, ...)
    seeds: Sequence[int]  # one per member
    scale_MD: Tensor | None = None  # standard deviations to begin with; None for the method's own

    def some(self, members: slice, modes: int = 1) -> Begin:
        """Return some of the members, each of which begins at `modes` networks."""
        first, end, _ = members.indices(len(self.seeds))
        rows = slice(modes * first, modes * end)
        return replace(
            self,
            weights_MD=self.weights_MD[rows],
            buffers={name: buffer[rows] for name, buffer in self.buffers.items()},
            seeds=self.seeds[members],
            scale_MD=None if self.scale_MD is None else self.scale_MD.expand(len(self.seeds), -1)[rows],
        )

    def with_learned(self, least: Sequence[float] | None) -> Begin:
        """Return a copy whose learned parameters of the likelihood are at least these, where any are given."""
        return replace(self, weights_MD=at_least(self.weights_MD, least))

    def state(self, method: Method, density: Any, steps_per_epoch: int) -> Any:
        """Return the state of a method before its first step."""
        state = method.init(density, self.weights_MD, self.buffers, seeds=self.seeds, steps_per_epoch=steps_per_epoch)
        if self.scale_MD is None:
            return state
        return cast(Spreading, method).spread(density, state, self.scale_MD)


class Reader:
    """Reads minibatches of a shuffled stream, whose order is a function of (seed, member, epoch) alone, and sites.

    Consecutive minibatches are read one after the other, others by skipping to their place in the epoch. The rows
    depend only on the visit.
    """

    def __init__(self, source: Source, seeds: Sequence[int]) -> None:
        """Read from a source, for members with these seeds."""
        self._source, self._seeds = source, seeds
        self._batches: Iterator[Batch] = iter(())
        self._next = -1

    def read(self, visit: Visit) -> Batch | None:
        """Return the rows, every tensor (M, B, ...); None where the density holds them, or the visit has none.

        Raises a ValueError if the source does for a bad batch, or an epoch has fewer batches than the first one.
        """
        if visit.kind == "all":
            return None
        if visit.kind == "site":
            return self._source.site(visit.number, len(self._seeds))
        epoch, position = divmod(visit.number, self._source.steps_per_epoch)
        if visit.number != self._next or not position:
            self._batches = self._source.epoch(self._seeds, epoch, position)
        self._next = visit.number + 1
        batch = next(self._batches, None)
        if batch is None:
            raise ValueError(
                f"the data gave fewer batches than the {self._source.steps_per_epoch} they gave at first: {position} "
                f"in epoch {epoch + 1}. Give data that are the same at every pass."
            )
        if position == self._source.steps_per_epoch - 1:
            next(self._batches, None)  # lets the source finish its epoch, such as the workers of a loader
        return batch


def steps(
    method: Method[Any], density: Any, state: Any, *, reader: Reader | None = None, donate: bool = False
) -> Iterator[tuple[Any, Any]]:
    """Yield the state after each step of a run, and the step's report.

    `reader` gives the rows of the visits; it is None where the density holds them, or there are none. With `donate`,
    a step may overwrite the state before it.
    """
    while (visit := method.visit(state)) is not None:
        batch = None if reader is None else reader.read(visit)
        state, info = method.step(density, state, batch, donate=donate)
        yield state, info


def iterate(method: Method, density: LogDensity, state: Any, *, reader: Reader, run: Run, epochs: Epochs) -> Any:
    """Return the state at the end of the run, or when a callback stops it; the tensors of `state` are donated.

    A DivergedError of the method, a ValueError of the source for a bad batch and an OSError of the disk for a draw
    are raised again after the last finite state is written.
    """
    info, run_of_steps = None, steps(method, density, state, reader=reader, donate=True)
    while True:
        try:
            if (result := next(run_of_steps, None)) is None:
                break
            state, info = result
            run.shelf.add(method.draw(state))
            epochs.means.add(info)
            if state.step % epochs.steps:  # the end of an epoch is saved below, after it is logged
                # The first step is saved at once, so that no kill loses the plan.
                run.checkpoint(state, density, epochs.means.sums, force=state.step == 1)
        except (DivergedError, ValueError, OSError) as error:  # on a CPU these are raised before anything is updated
            run.rescue(error, state, density, sums=epochs.means.sums)
            raise
        if state.step % epochs.steps:
            epochs.poll()
            continue
        if epochs.over(run, state, info):
            break
        run.checkpoint(state, density, epochs.means.sums, force=state.step == 1)
    if info is not None and state.step % epochs.steps:
        epochs.over(run, state, info)
    run.checkpoint(state, density, epochs.means.sums, force=True)
    return state


def run_to_end(
    density: LogDensity,
    source: Source,
    method: Method,
    *,
    run: Run,
    fresh: list[Any],
    callbacks: Sequence[Callback] | None,
) -> Any:
    """Return the last state of a run, which begins at a fresh state or is resumed; the run's shelf holds the draws.

    `fresh` is a list from which the state is taken, so that nothing else holds a large network while it trains.
    """
    shard, per_epoch = run.shard, run.description["steps_per_epoch"]
    seeds = member_seeds(run.description["seed"], method.members)[shard.local]
    state, description = run.restore(fresh.pop())
    if description.get("plan"):
        # Another plan rounds differently, so a resumed run keeps the one it began with.
        density.plan = Plan(description["plan"], "taken over from the checkpoint")
    # An epoch in which the run stopped is logged anew, as a whole.
    within = state.step % per_epoch if method.visit(state) is not None else 0
    run.resume_log(state.step - within, epochs=description.get("epochs", 0))
    run.shelf = _shelf(density.model, method, run=run, count=description.get("draws", 0))
    total = -(-method.length(per_epoch) // per_epoch)
    callbacks = callbacks if shard.ranks.first else ()  # the first rank alone reports
    with listeners(callbacks, method, (state.step // per_epoch, total)) as notified:
        watched = shard.ranks.agree(bool(notified))
        epochs = Epochs(per_epoch, total, Means(shard, description.get("sums")), notified, watched)
        state = released(iterate(method, density, state, reader=Reader(source, seeds), run=run, epochs=epochs))
    if shard.ranks.chains > 1 and not epochs.read_by(run):
        run.history = run.history.of_all(shard.gather)
    return state


def _shelf(model: Model, method: Method, *, run: Run, count: int) -> Shelf:
    """Return the shelf for the draws of a run: on disk if it has a directory."""
    if run.directory is None or not method.needs.draws:
        return MemoryShelf(run.shard)
    return DiskShelf(model, run.shard, directory=run.directory, run=run.name, count=count)


class Means:
    """Sums over the steps of an epoch of the numbers that a method's `Info` names; `count` is the number of steps."""

    def __init__(self, shard: Shard, restored: Mapping[str, Any] | None = None) -> None:
        """Start at zero, or from the sums in a checkpoint, as `sums` returned them."""
        self._shard = shard
        totals = restored["totals"] if restored else {}
        self.count: int = restored["count"] if restored else 0
        self._totals = {n: torch.tensor(t[shard.local], dtype=torch.float64) for n, t in totals.items()}

    def sums(self) -> dict[str, Any]:
        """Return the sums as JSON-serialisable lists, one number per member of the fit."""
        return {"count": self.count, "totals": self._listed(whole=True)}

    def add(self, info: Any) -> None:
        """Add the report of a step: the tensors (M,) of `info.means()`."""
        for name, number_M in info.means().items():
            value_M = number_M.detach().double()  # stays on its device, because reading it would wait for a GPU
            total_M = self._totals.get(name)
            self._totals[name] = value_M if total_M is None else total_M.to(value_M.device) + value_M
        self.count += 1

    def values(self, *, whole: bool) -> dict[str, list[float]]:
        """Return the means by name, one number per member of the fit, or of this process unless `whole`."""
        totals = self._listed(whole=whole).items()
        return {name: [number / self.count for number in numbers] for name, numbers in totals}

    def _listed(self, *, whole: bool) -> dict[str, list[float]]:
        if not self._totals:
            return {}
        totals = torch.stack([total_M.cpu() for total_M in self._totals.values()], dim=1)
        totals_NM = (self._shard.gather(totals) if whole else totals).mT
        return dict(zip(self._totals, totals_NM.tolist(), strict=True))


@dataclass
class Epochs:
    """The reports of every epoch: a line of the log, and an event for each listener."""

    steps: int  # of an epoch
    total: int  # epochs of the run
    means: Means  # averages over the present epoch
    listeners: Sequence[Callback] = ()
    watched: bool = True  # whether the first rank has any
    began: float = field(default_factory=time.monotonic)  # when the epoch began

    def poll(self) -> None:
        """Let lines of progress be written between steps, because an epoch may take hours."""
        for listener in self.listeners:
            if isinstance(listener, Lines):
                listener.poll()

    def read_by(self, run: Run) -> bool:
        """Return whether anyone reads the numbers of an epoch before the run ends, on disk or in a callback.

        If not, ranks that share the members put theirs together once, as an epoch may be shorter than that takes.
        """
        return self.watched or run.directory is not None

    def over(self, run: Run, state: Any, info: Info) -> bool:
        """Log a finished epoch, or the part of it that the run covers, and return whether a callback asks to stop.

        Raises a DivergedError if the weights are not finite.
        """
        if not all_finite(state):
            raise DivergedError(f"the weights are not finite after step {state.step}. Lower the learning rate.")
        run.shard.check_equal(state)
        numbers: Mapping[str, Any] = {**self.means.values(whole=self.read_by(run)), **info.now()}
        number = -(-state.step // self.steps)
        seconds = round(time.monotonic() - self.began, 3)
        record = {"epoch": number, "step": state.step, **numbers, "seconds": seconds}
        run.log(record)
        if state.step % self.steps == 0:  # otherwise the epoch may be continued
            self.means = Means(run.shard)
        self.began = time.monotonic()
        event = Event(number, self.total, state.step, state, info, record)
        stop = any([callback(event) is True for callback in self.listeners])  # a list, so that every callback is called
        return self.watched and run.shard.ranks.agree(stop)
