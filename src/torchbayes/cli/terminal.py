"""Output of the command line: progress, tables, errors in one line, and how to go on after Ctrl-C."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torchbayes.cli.errors import one_line

if TYPE_CHECKING:
    from torchbayes.data import Data
    from torchbayes.report import Table


class Interrupted(Exception):
    """Ctrl-C or SIGTERM in a command that can be continued; the message says how."""


@contextmanager
def resumable(command: Sequence[str]) -> Iterator[None]:
    """Turn Ctrl-C or SIGTERM (as torchrun sends it) into `Interrupted`, with the command that continues the work."""
    in_main_thread = threading.current_thread() is threading.main_thread()  # other threads may not set handlers
    before = signal.signal(signal.SIGTERM, signal.default_int_handler) if in_main_thread else None
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"Continue with: {shlex.join(command)}") from None
    finally:
        if in_main_thread:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print warnings of this library as one line, without the place in its code."""
    default_format = warnings.formatwarning

    def said(message: Any, category: type[Warning], *where: Any) -> str:
        if category.__module__.startswith("torchbayes."):
            return f"torchbayes: warning: {one_line(message)}\n"
        return default_format(message, category, *where)

    warnings.formatwarning = said
    try:
        yield
    finally:
        warnings.formatwarning = default_format


def say(text: str) -> None:
    """Write a line of progress to standard error at once."""
    print(text, file=sys.stderr, flush=True)


def say_notes(data: Data) -> None:
    """Print the notes of a user's data, one sentence a line."""
    for note in data.notes:
        say(f"  {note}")


def track(items: list[Any], what: str) -> Iterable[Any]:
    """Pass items through under a progress bar, or after one plain line if there is no terminal."""
    from rich.console import Console
    from rich.progress import track as bar

    console = Console(stderr=True)
    if not console.is_terminal:
        say(f"evaluating: {what}")
    return bar(items, f"evaluating: {what}", console=console, disable=not console.is_terminal, transient=True)


def print_table(table: Table, *, narrow: Sequence[Table] = ()) -> None:
    """Print a table to standard output, as wide as it needs to be if that is not a terminal.

    `narrow` holds its parts, printed instead on a terminal that is too narrow for it.
    """
    from rich.console import Console

    console = Console()
    parts = [table]
    if not console.is_terminal:
        console = Console(width=max(console.width, 160))
    elif narrow and Console(width=1000).measure(table.rich()).maximum > console.width:
        parts = narrow
    for part in parts:
        console.print(part.rich())


def print_names(lines: Mapping[str, str]) -> None:
    """Print names with one line each."""
    width = max((len(name) for name in lines), default=0)
    for name, line in lines.items():
        print(f"  {name:<{width}}  {line}")
