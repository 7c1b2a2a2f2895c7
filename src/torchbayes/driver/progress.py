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
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from torchbayes.checks import given
from torchbayes.methods.protocol import Method

FIRST, GROWTH, LONGEST = 5.0, 2.0, 600.0  # first wait in seconds, growth factor of waits, longest wait in seconds
PARTS = 10  # of a run; a line follows each, unless the last line is younger than the first wait


@dataclass(frozen=True)
class Event:
    """What a callback receives at the end of every epoch.

    Attributes:
        epoch: epochs done.
        epochs: epochs of the run.
        step: steps done.
        state: the method's state; its tensors are reused by the next step, so copy what must be kept.
        info: the report of the last step.
        record: the line of the log: means over the epoch of the numbers that steps reported, such as loss and
            negative log likelihood of each member, and seconds.
    """

    epoch: int
    epochs: int
    step: int
    state: Any
    info: Any
    record: dict[str, Any]

    def numbers(self) -> dict[str, float]:
        """Return the numbers of the record by name, texts left out.

        A number of several members is `nll/0`, `nll/1` … of each of them, and `nll/mean`.
        """
        numbers: dict[str, float] = {}
        for name, entry in self.record.items():
            if isinstance(entry, list) and len(entry) > 1:
                numbers |= {f"{name}/{m}": value for m, value in enumerate(entry)}
                numbers[f"{name}/mean"] = sum(entry) / len(entry)
            elif isinstance(entry, list) and entry:
                numbers[name] = entry[0]
            elif isinstance(entry, int | float):
                numbers[name] = entry
        return numbers


class Progress:
    """In a list of callbacks, the progress bar that `callbacks=None` shows: `callbacks=[tb.Progress(), tracker]`."""

    def __call__(self, event: Event) -> None:
        """Do nothing: `fit` and `sample` put their bar in its place."""


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
    """Progress without a terminal: a line after each tenth of a run, and after ever longer waits in between.

    No line follows another within 5 s, so a short run has few or none.
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
        """Start the clock; `write` takes a line, and `unit` is what is counted, in the plural.

        `waits` are the shortest and the longest seconds between lines; `FIRST` and `LONGEST` if None.
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
    """Show the progress of a method on standard error while the `with` lasts, and yield the callback that moves it.

    It is a bar on a terminal, elsewhere a few lines. `unit` is what is counted, in the plural; `doing` says what is
    done to the method if it is not fitted.
    """
    title = f"{type(method).__name__} × {method.members}" if method.members > 1 else type(method).__name__
    title += f", {doing}" if doing else ""
    with _shown(title, done, epochs, unit=unit) as tell:
        yield tell


@contextmanager
def counted(title: str, total: int, *, unit: str, shown: bool = True) -> Iterator[Callable[[int], object]]:
    """Show the progress of `total` parts of some work on standard error, and yield a function of the number done.

    `unit` is what is counted, in the plural. If `shown` is False, nothing is shown.
    """
    if not shown:
        yield lambda _: None
        return
    with _shown(title, 0, total, unit=unit) as tell:
        yield lambda done: tell(Event(done, total, 0, None, None, {}))


_BAR = threading.RLock()  # held by the thread whose bar is on the terminal, because two bars would overwrite each other


@contextmanager
def _line_in_cell() -> Iterator[Callable[[str], object]]:
    """Show one line below a notebook's cell until the `with` ends, and yield a function that changes it."""
    from IPython.display import display  # every notebook has it

    handle: Any = display({"text/plain": ""}, raw=True, display_id=True)
    try:
        yield lambda line: handle.update({"text/plain": line}, raw=True)
    finally:
        handle.update({"text/plain": ""}, raw=True)


@contextmanager
def _shown(title: str, done: int, total: int, *, unit: str) -> Iterator[Callback]:
    """Show a bar on a terminal, a changing line in a notebook, elsewhere an occasional line; yield its callback."""
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
        progress = stack.enter_context(Bar(*columns, console=console))
        task = progress.add_task(title, total=total, completed=done, numbers="")

        def move(event: Event) -> None:
            progress.update(task, completed=event.epoch, total=event.epochs, numbers=summary(event))

        yield move


@contextmanager
def listeners(
    callbacks: Sequence[Callback] | None, method: Method, epochs: tuple[int, int], *, unit: str | None = None
) -> Iterator[Sequence[Callback]]:
    """Yield the callbacks of a run; by default a progress bar, which also takes the place of `Progress`.

    `epochs` are those done and those of the run. `unit` is what is counted, in the plural; None for epochs, or
    iterations where each step takes all rows.
    """
    if callbacks is not None and not _has_bar(callbacks):
        yield callbacks
        return
    unit = unit or ("epochs" if method.needs.batch_size else "iterations")
    with progress_bar(method, *epochs, unit=unit) as bar:
        yield [bar if isinstance(each, Progress) else each for each in callbacks or (Progress(),)]


def _has_bar(callbacks: Sequence[Callback]) -> bool:
    return any(isinstance(callback, Progress) for callback in callbacks)


@contextmanager
def search_bar(
    callbacks: Sequence[Callback] | None, method: Method
) -> Iterator[Callable[[int, int, float | None], object]]:
    """Show the progress of first runs, in which held-out rows choose settings; callbacks without bar show nothing.

    Yields a function of the epochs or trial runs done, those of the longest search, and the negative log likelihood
    of the held-out rows, where it is known.
    """
    if callbacks is not None and not _has_bar(callbacks):
        yield lambda *_: None
        return
    with progress_bar(method, 0, 0, unit="at most", doing="choosing settings by held-out rows") as bar:
        yield lambda epoch, most, nll: bar(Event(epoch, most, 0, None, None, given(held_out=nll)))
