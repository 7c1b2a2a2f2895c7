"""Progress: a bar on a terminal, elsewhere an occasional line, with the numbers that matter."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from torchbayes.checks import given
from torchbayes.methods.protocol import Method

FIRST, GROWTH, LONGEST = 5.0, 2.0, 600.0  # seconds: the first wait, growth factor of waits, the longest one
PARTS = 10  # of a run, after each of which there is a line, unless the last one is that young


@dataclass(frozen=True)
class Event:
    """What a callback receives at the end of every epoch.

    Attributes:
        epoch: epochs done.
        epochs: epochs of the run.
        step: steps done.
        state: the method's state; its tensors are reused by the next step, so copy what must be kept.
        info: what the last step reported.
        record: the line of the log: means over the epoch of what the method's steps reported, such as loss and negative
            log likelihood of each member, and seconds.
    """

    epoch: int
    epochs: int
    step: int
    state: Any
    info: Any
    record: dict[str, Any]


Callback = Callable[[Event], object]


def summary(event: Event) -> str:
    """Return the main numbers of an epoch: NLL and, for a descent, the learning rate; or those of a sampler."""
    record = event.record
    if "held_out" in record:
        return f"NLL of held-out rows {record['held_out']:.4g}"
    if "nll" in record:
        nlls = record["nll"]
        spread = f" ({min(nlls):.4g} to {max(nlls):.4g})" if len(nlls) > 1 else ""
        rate = f"  lr {record['lr']:.2g}" if "lr" in record else ""
        return f"train NLL {sum(nlls) / len(nlls):.4g}{spread}{rate}"
    named = {"acceptance": "acceptance", "step size": "step_size", "log density": "log_density"}
    means = {word: sum(record[key]) / len(record[key]) for word, key in named.items() if key in record}
    return "  ".join(f"{word} {mean:.4g}" for word, mean in means.items())


class Lines:
    """Progress where there is no terminal: a line after each tenth of a run, and after ever longer waits in between.

    No line follows another within 5 s, so that a short run has few or none.
    """

    def __init__(
        self,
        title: str,
        done: int,
        epochs: int,
        *,
        write: Callable[[str], object],
        unit: str = "epochs",
        waits: tuple[float, float] | None = None,
    ) -> None:
        """Start the clock.

        Args:
            title: name of what is fitted.
            done: epochs already done.
            epochs: epochs of the run.
            write: takes a line.
            unit: what is counted, in the plural.
            waits: seconds between lines, the shortest and the longest; `FIRST` and `LONGEST` if None.
        """
        self._first, self._longest = waits or (FIRST, LONGEST)
        self._title, self._done, self._epochs, self._write, self._unit = title, done, epochs, write, unit
        self._numbers, self._wait, self._said = "", self._first, done
        self._began = self._last = time.monotonic()

    def __call__(self, event: Event) -> None:
        """Take the numbers of a finished epoch."""
        self._done, self._epochs, self._numbers = event.epoch, event.epochs, summary(event)
        self.poll()

    def poll(self) -> None:
        """Write a line if one is due."""
        now = time.monotonic()
        waited = now - self._last
        parts = (PARTS * self._done // max(self._epochs, 1)) - (PARTS * self._said // max(self._epochs, 1))
        if waited < self._first or (waited < self._wait and not (parts and self._last > self._began)):
            return
        passed = timedelta(seconds=round(now - self._began))
        numbers = f": {self._numbers}" if self._numbers else ""
        self._write(f"  {self._title}, {passed}: {self._done} of {self._epochs} {self._unit}{numbers}")
        self._last, self._said, self._wait = now, self._done, min(self._wait * GROWTH, self._longest)


@contextmanager
def progress_bar(
    method: Method, done: int, epochs: int, *, unit: str = "epochs", doing: str = ""
) -> Iterator[Callback]:
    """Show progress on standard error while the `with` lasts: a bar on a terminal, else a few lines.

    Args:
        method: what is fitted; it names the bar.
        done: epochs already done.
        epochs: epochs of the run.
        unit: what is counted, in the plural.
        doing: what is done to it, where it is not fitted.

    Yields:
        A callback that moves the bar.
    """
    title = f"{type(method).__name__} × {method.members}" if method.members > 1 else type(method).__name__
    title += f", {doing}" if doing else ""
    with _shown(title, done, epochs, unit=unit) as tell:
        yield tell


@contextmanager
def counted(title: str, total: int, *, unit: str, shown: bool = True) -> Iterator[Callable[[int], object]]:
    """Show how much of some work is done on standard error while the `with` lasts, as that of a fit is shown.

    Args:
        title: name of the work.
        total: parts of it.
        unit: what is counted, in the plural.
        shown: False shows nothing.

    Yields:
        A function of the number of parts done.
    """
    if not shown:
        yield lambda _: None
        return
    with _shown(title, 0, total, unit=unit) as tell:
        yield lambda done: tell(Event(done, total, 0, None, None, {}))


_BAR = threading.RLock()  # held by the thread whose bar is on the terminal: two would write over each other


@contextmanager
def _line_in_cell() -> Iterator[Callable[[str], object]]:
    """Show one line below a notebook's cell, which is gone when the `with` ends.

    Yields:
        A function that changes the line.
    """
    from IPython.display import display  # there is no notebook without it

    handle: Any = display({"text/plain": ""}, raw=True, display_id=True)
    try:
        yield lambda line: handle.update({"text/plain": line}, raw=True)
    finally:
        handle.update({"text/plain": ""}, raw=True)


@contextmanager
def _shown(title: str, done: int, total: int, *, unit: str) -> Iterator[Callback]:
    """Show a bar on a terminal, a line that changes in a notebook, else an occasional line.

    Yields:
        A callback that moves it.
    """
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with ExitStack() as stack:
        if console.is_jupyter:
            write = stack.enter_context(_line_in_cell())
            yield Lines(title, done, total, write=write, unit=unit, waits=(0.5, 0.5))
            return
        if not console.is_terminal or not _BAR.acquire(blocking=False):
            yield Lines(title, done, total, write=lambda line: print(line, file=sys.stderr, flush=True), unit=unit)
            return
        stack.callback(_BAR.release)
        progress = stack.enter_context(Progress(*columns, console=console))
        task = progress.add_task(title, total=total, completed=done, numbers="")

        def move(event: Event) -> None:
            progress.update(task, completed=event.epoch, total=event.epochs, numbers=summary(event))

        yield move


@contextmanager
def listeners(
    callbacks: Sequence[Callback] | None, method: Method, epochs: tuple[int, int], *, unit: str | None = None
) -> Iterator[Sequence[Callback]]:
    """Yield the callbacks of a run; by default a progress bar.

    Args:
        callbacks: as of `fit`.
        method: what is run.
        epochs: epochs done, and epochs of the run.
        unit: what is counted, in the plural; None for epochs, or iterations where each step takes all rows.
    """
    if callbacks is not None:
        yield callbacks
        return
    unit = unit or ("epochs" if method.needs.batch_size else "iterations")
    with progress_bar(method, *epochs, unit=unit) as bar:
        yield (bar,)


@contextmanager
def search_bar(
    callbacks: Sequence[Callback] | None, method: Method
) -> Iterator[Callable[[int, int, float | None], object]]:
    """Show the progress of first runs, in which held-out rows choose settings, as that of a run is shown by default.

    Args:
        callbacks: as of `fit`; those that are given hear of the run alone.
        method: what is fitted.

    Yields:
        A function of the epochs or trial runs done, those of the longest search, and the held-out rows' negative log
        likelihood, where it is known.
    """
    if callbacks is not None:
        yield lambda *_: None
        return
    with progress_bar(method, 0, 0, unit="at most", doing="choosing settings by held-out rows") as bar:
        yield lambda epoch, most, nll: bar(Event(epoch, most, 0, None, None, given(held_out=nll)))
