"""What the command line says: progress, tables, errors in one line, how to go on after Ctrl-C."""

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
    """Say how to go on when Ctrl-C is pressed inside, or the process is asked to end, as torchrun does.

    Args:
        command: the words of what continues the work.

    Yields:
        Nothing.

    Raises:
        Interrupted: on Ctrl-C or SIGTERM.
    """
    own = threading.current_thread() is threading.main_thread()  # others may not set handlers
    before = signal.signal(signal.SIGTERM, signal.default_int_handler) if own else None
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"Continue with: {shlex.join(command)}") from None
    finally:
        if own:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Say warnings of this library as one line, without the place in its code that gives them.

    Yields:
        Nothing.
    """
    usual = warnings.formatwarning

    def said(message: Any, category: type[Warning], *where: Any) -> str:
        if category.__module__.startswith("torchbayes."):
            return f"torchbayes: warning: {one_line(message)}\n"
        return usual(message, category, *where)

    warnings.formatwarning = said
    try:
        yield
    finally:
        warnings.formatwarning = usual


def say(text: str) -> None:
    """Write a line of progress to standard error at once.

    Args:
        text: the line.
    """
    print(text, file=sys.stderr, flush=True)


def say_notes(data: Data) -> None:
    """Say what was made of data of the user, one sentence a line.

    Args:
        data: the data set.
    """
    for note in data.notes:
        say(f"  {note}")


def track(items: list[Any], what: str) -> Iterable[Any]:
    """Pass items through under a progress bar, or after one plain line where there is no terminal.

    Args:
        items: what is worked through.
        what: what they are.

    Returns:
        The items.
    """
    from rich.console import Console
    from rich.progress import track as bar

    console = Console(stderr=True)
    if not console.is_terminal:
        say(f"evaluating: {what}")
    return bar(items, f"evaluating: {what}", console=console, disable=not console.is_terminal, transient=True)


def print_table(table: Table, *, narrow: Sequence[Table] = ()) -> None:
    """Print a table to standard output, as wide as it needs to be where that is not a terminal.

    Args:
        table: what to print.
        narrow: its parts, printed instead on a terminal that is too narrow for it.
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
    """Print names with one line each.

    Args:
        lines: name -> line.
    """
    width = max((len(name) for name in lines), default=0)
    for name, line in lines.items():
        print(f"  {name:<{width}}  {line}")
