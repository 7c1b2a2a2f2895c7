"""The one loop: a method names the rows it visits, takes a step, and gives its draws, until its run is over."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchbayes.density.density import LogDensity
from torchbayes.driver.checkpoint import all_finite
from torchbayes.driver.means import Means
from torchbayes.driver.progress import Callback, Event, Lines
from torchbayes.driver.reader import Reader
from torchbayes.driver.run import Run
from torchbayes.methods.protocol import DivergedError, Info, Method


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
                run.checkpoint(state, density, epochs.means, force=state.step == 1)
        except (DivergedError, ValueError, OSError) as error:  # on a CPU these are raised before anything is updated
            run.rescue(error, state, density, means=epochs.means)
            raise
        if state.step % epochs.steps:
            epochs.poll()
            continue
        if epochs.over(run, state, info):
            break
        run.checkpoint(state, density, epochs.means, force=state.step == 1)
    if info is not None and state.step % epochs.steps:
        epochs.over(run, state, info)
    run.checkpoint(state, density, epochs.means, force=True)
    return state


@dataclass
class Epochs:
    """The reports of every epoch: a line of the log, and an event for each listener."""

    steps: int  # of an epoch
    total: int  # epochs of the run
    means: Means  # averages over the present epoch
    listeners: Sequence[Callback] = ()
    began: float = field(default_factory=time.monotonic)  # when the epoch began

    def poll(self) -> None:
        """Let lines of progress be written between steps, because an epoch may take hours."""
        for listener in self.listeners:
            if isinstance(listener, Lines):
                listener.poll()

    def over(self, run: Run, state: Any, info: Info) -> bool:
        """Log a finished epoch, or the part of it that the run covers, and return whether a callback asks to stop.

        Raises a DivergedError if the weights are not finite.
        """
        if not all_finite(state):
            raise DivergedError(f"the weights are not finite after step {state.step}. Lower the learning rate.")
        run.shard.check_equal(state)
        numbers: Mapping[str, Any] = {**self.means.values(), **info.now()}
        number = -(-state.step // self.steps)
        seconds = round(time.monotonic() - self.began, 3)
        record = {"epoch": number, "step": state.step, **numbers, "seconds": seconds}
        run.log(record)
        if state.step % self.steps == 0:  # otherwise the epoch may be continued
            self.means = Means(run.shard)
        self.began = time.monotonic()
        event = Event(number, self.total, state.step, state, info, record)
        stop = any([callback(event) is True for callback in self.listeners])  # a list, so that every callback is called
        return run.shard.ranks.agree(stop)
