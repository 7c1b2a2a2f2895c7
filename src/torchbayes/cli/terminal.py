"""What the command line says: progress, tables, errors in one line, how to go on after Ctrl-C."""

from __future__ import annotations

import difflib
import re
import signal
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchbayes.inference.progress import Callback, Event
    from torchbayes.report import Table


class Interrupted(Exception):
    """Ctrl-C or SIGTERM in a command that can be continued; the message says how."""


@contextmanager
def resumable(command: str) -> Iterator[None]:
    """Say how to go on when Ctrl-C is pressed inside, or the process is asked to end, as torchrun does.

    Args:
        command: what continues the work.

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
        raise Interrupted(f"Continue with: {command}") from None
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


def callbacks() -> tuple[Callback, ...] | None:
    """Return None for the progress bar on a terminal, else a callback that prints plain lines, ten per fit.

    Returns:
        The `callbacks` of a fit.
    """
    return None if sys.stderr.isatty() else (_line,)


def _line(event: Event) -> None:
    if event.epoch * 10 // event.epochs > (event.epoch - 1) * 10 // event.epochs:
        from torchbayes.inference.progress import summary

        say(f"  epoch {event.epoch} of {event.epochs}: {summary(event)}")


def say(text: str) -> None:
    """Write a line of progress to standard error at once.

    Args:
        text: the line.
    """
    print(text, file=sys.stderr, flush=True)


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


def suggest(name: str, known: Iterable[str]) -> str:
    """Return the known names that are close to a wrong one, or all.

    Args:
        name: the wrong one.
        known: the right ones.

    Returns:
        One sentence.
    """
    names = {right.lower(): right for right in known}
    close = [names[right] for right in difflib.get_close_matches(name.lower(), list(names), n=3, cutoff=0.5)]
    return f"Did you mean {' or '.join(close)}?" if close else f"Choose from: {', '.join(names.values())}."


def one_line(error: BaseException, options: Iterable[str] = ()) -> str:
    """Return an error as one readable line.

    Args:
        error: of this library, or of jsonargparse, whose messages about a choice of classes run over many lines.
        options: the options there are, for those that are not.

    Returns:
        The line.
    """
    text = " ".join(" ".join([str(error), *getattr(error, "__notes__", ())]).split())
    if unknown := re.search(r"unrecognized arguments: (--[\w.-]+)", text):
        close = difflib.get_close_matches(unknown[1], list(options), n=3, cutoff=0.5)
        advice = f"Did you mean {' or '.join(close)}?" if close else "See --help."
        return f"there is no option {unknown[1]}. {advice}"
    if missing := re.search(r"arguments are required: (.*)", text):
        return f"`--{missing[1].replace(', ', '` and `--')}` must be given."
    # jsonargparse lists what every class of a union said; the sentence of ours among them is what is wrong
    if own := re.search(r"- (`\w+` must [^;]*; got [^-]*?\.)(?: -| Given)", text):
        return own[1]
    key = re.search(r'Parser key "([^"]+)": (.*)', text)
    if key is None:
        return text
    name, rest = key.groups()
    if option := re.search(r"'([\w.]+)': Option '(\w+)' is not accepted", rest):
        return f"`--{name}` is {option[1].rpartition('.')[2]}, which has no setting {option[2]!r}."
    given = re.search(r"Given value: (.*)$", rest)
    if nested := given and re.search(r"NestedArg\(key='([\w.]+)', val='([^']*)'\)", given[1]):
        return f"`--{name}.{nested[1]}` cannot be {nested[2]!r}."
    if "Union subtypes" in rest and given:
        choices = [path.rpartition(".")[2] for path in re.findall(r"<class '([\w.]+)'>", rest.partition("Errors")[0])]
        return f"`--{name}` cannot be {given[1]!r}. {suggest(given[1], choices)}"
    if wrong := re.match(r"Expected a <class '(\w+)'>\. Got value: (.*)", rest):
        return f"`--{name}` must be of type {wrong[1]}; got {wrong[2]!r}."
    return f"`--{name}`: {rest}"
