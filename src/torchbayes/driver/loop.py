"""The one loop: a method says which rows it visits, takes a step, and says what it draws, until its run is over."""

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
    """Yield the state after each step of a run, and what the step reported.

    Args:
        method: how to infer.
        density: what it moves on.
        state: where it begins or resumes.
        reader: the rows of its visits; None where the density holds them, or there are none.
        donate: let a step overwrite the state before it.
    """
    while (visit := method.visit(state)) is not None:
        batch = None if reader is None else reader.read(visit)
        state, info = method.step(density, state, batch, donate=donate)
        yield state, info


def iterate(method: Method, density: LogDensity, state: Any, *, reader: Reader, run: Run, epochs: Epochs) -> Any:
    """Return the state after the run is over or a callback says stop.

    Args:
        method: how to infer.
        density: what it moves on.
        state: where it begins or resumes; its tensors are donated.
        reader: the rows of its visits.
        run: the run directory, and the shelf for its draws.
        epochs: what is logged and reported of every epoch.

    Raises:
        DivergedError: as the method raised it, once the last finite state is written.
        ValueError: as the source raised it for a bad batch, likewise.
        OSError: as the disk raised it when a draw could not be written, likewise.
    """
    info, run_of_steps = None, steps(method, density, state, reader=reader, donate=True)
    while True:
        try:
            if (taken := next(run_of_steps, None)) is None:
                break
            state, info = taken
            run.shelf.add(method.draw(state))
            epochs.means.add(info)
            if state.step % epochs.steps:  # the end of an epoch is saved below, once it is logged
                # at once after the first step, so that no kill loses the plan
                run.checkpoint(state, density, epochs.means, force=state.step == 1)
        except (DivergedError, ValueError, OSError) as error:  # on a CPU, raised before anything is updated
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
    """What is reported of every epoch: a line of the log, and an event for each listener.

    Attributes:
        steps: steps of an epoch.
        total: epochs of the run.
        means: what is averaged over the present epoch.
        listeners: callbacks.
        began: when the epoch began.
    """

    steps: int
    total: int
    means: Means
    listeners: Sequence[Callback] = ()
    began: float = field(default_factory=time.monotonic)

    def poll(self) -> None:
        """Let lines of progress be written between steps: an epoch may take hours."""
        for listener in self.listeners:
            if isinstance(listener, Lines):
                listener.poll()

    def over(self, run: Run, state: Any, info: Info) -> bool:
        """Log a finished epoch, or as much of the last one as the run covers.

        Args:
            run: the run.
            state: the state after its last step.
            info: what that step reported.

        Returns:
            Whether a callback asks to stop.

        Raises:
            DivergedError: if the weights are not finite.
        """
        if not all_finite(state):
            raise DivergedError(f"the weights are not finite after step {state.step}. Lower the learning rate.")
        run.shard.check_equal(state)
        seen: Mapping[str, Any] = {**self.means.values(), **info.now()}
        number = -(-state.step // self.steps)
        seconds = round(time.monotonic() - self.began, 3)
        record = {"epoch": number, "step": state.step, **seen, "seconds": seconds}
        run.log(record)
        if state.step % self.steps == 0:  # else the epoch may be continued
            self.means = Means(run.shard)
        self.began = time.monotonic()
        event = Event(number, self.total, state.step, state, info, record)
        stop = any([callback(event) is True for callback in self.listeners])  # a list: every callback is called
        return run.shard.ranks.agree(stop)
