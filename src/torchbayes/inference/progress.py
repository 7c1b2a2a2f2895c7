"""The progress bar: one line with the numbers that matter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from torchbayes.inference.method import Method
from torchbayes.inference.sampler import Sampler


@dataclass(frozen=True)
class Event:
    """What a callback is told at the end of every epoch.

    Attributes:
        epoch: epochs done.
        epochs: epochs of the run.
        step: steps done.
        state: the method's state; its tensors are reused by the next step, so copy what must be kept.
        info: what the last step saw.
        record: the line of the log: means over the epoch of what the method's steps saw, such as loss and negative log
            likelihood of each member, and seconds.
    """

    epoch: int
    epochs: int
    step: int
    state: Any
    info: Any
    record: dict[str, Any]


Callback = Callable[[Event], object]


def summary(event: Event) -> str:
    """Return the numbers that matter of an epoch: NLL and, of a descent, learning rate; or those of a sampler."""
    record = event.record
    if "nll" in record:
        nlls = record["nll"]
        spread = f" ({min(nlls):.4g} to {max(nlls):.4g})" if len(nlls) > 1 else ""
        rate = f"  lr {record['lr']:.2g}" if "lr" in record else ""
        return f"train NLL {sum(nlls) / len(nlls):.4g}{spread}{rate}"
    named = {"acceptance": "acceptance", "step size": "step_size", "log density": "log_density"}
    means = {word: sum(record[key]) / len(record[key]) for word, key in named.items() if key in record}
    return "  ".join(f"{word} {mean:.4g}" for word, mean in means.items())


@contextmanager
def progress_bar(method: Method | Sampler, done: int, epochs: int) -> Iterator[Callback]:
    """Show a bar on standard error while the `with` lasts, if it is a terminal.

    Args:
        method: what is fitted; it names the bar.
        done: epochs already done.
        epochs: epochs of the run.

    Yields:
        A callback that moves the bar.
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
    title = f"{type(method).__name__} × {method.members}" if method.members > 1 else type(method).__name__
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=epochs, completed=done, numbers="")

        def move(event: Event) -> None:
            progress.update(task, completed=event.epoch, numbers=summary(event))

        yield move
