"""The terminal: progress, tables, errors in one line, their reports, and how to go on after Ctrl-C."""

from __future__ import annotations

import argparse
import dis
import errno
import os
import re
import shlex
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

import torchbayes
from torchbayes.checks import nearest, seen
from torchbayes.native.process import short_path

if TYPE_CHECKING:
    from torchbayes.data import Data
    from torchbayes.report import Table

DEBUG = "TORCHBAYES_DEBUG"
LONGEST = 500  # letters of a line
_KINDS = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false", "dict": "a mapping"}
_KINDS |= {"tuple": "a list of numbers", "list": "a list", "NoneType": "null"}
# patterns of jsonargparse's messages, which have their own lines
_KEY = re.compile(r'^( *)(?:- )?Parser key "([^"]+)":', re.MULTILINE)
_OWN = re.compile(r"^ *(?:- )?(`[\w.]+` must .*; got .*\.)$", re.MULTILINE)
_EXPECTED = re.compile(r"Expected an? (<class '[\w.]+'>|typing\.Literal\[[^\]]*\])\. Got value: ?(.*)")
_OTHER = re.compile(r"Expected (an? [^.\n]*)\. Got value: ?(.*)")
_GIVEN = re.compile(r"Given value: ?(.*)")
_NO_MEMORY = re.compile("can't allocate memory|not enough memory|bad allocation|bad_alloc")
_NESTED = re.compile(r"NestedArg\(key='([\w.]+)', val=(.*)\)$")


def point_to(page: Path, *, opened: bool, name: str | None = "Report") -> None:
    """Say where a page is, under its `name` if it has one, and open it in the browser if that is asked for.

    Without a display `webbrowser` would take one that runs in the terminal, so then nothing is opened.
    """
    if name is not None:
        print(f"{name}: {short_path(page)}", flush=True)
    if not opened:
        return
    import webbrowser

    shown = sys.platform in {"darwin", "win32"} or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")))
    try:
        done = shown and webbrowser.open(page.absolute().as_uri())
    except (webbrowser.Error, OSError):
        done = False
    if not done:
        say(f"No browser could be started here. Open {page.absolute()} where there is one.")


def one_line(error: BaseException, options: Iterable[str] = ()) -> str:
    """Return an error, of this library or of jsonargparse, as one readable line.

    jsonargparse's messages about a choice of classes run over many lines. `options` are the existing ones, for advice.
    """
    if _is_memory(error):
        return "there is not enough memory. Use fewer members or draws, or a smaller network, batch or chunk size."
    if _is_zero_byte(error):
        return "the name of a file or folder holds a zero byte, which no name can. Correct it."
    text = str(error)
    if isinstance(error, OSError) and error.strerror:  # without the error number, which is for programs
        text = f"{error.filename}: {error.strerror}." if error.filename else error.strerror
    message = "\n".join([text, *getattr(error, "__notes__", ())])
    if unknown := re.search(r"unrecognized arguments: (--[\w.-]+)", message):
        options = list(options)
        name = unknown[1].removeprefix("--")
        inner = [option for option in options if option.partition(".")[2].startswith(name)]
        inner = [option for option in inner if option.endswith(f".{name}")] or inner
        advice = f"Did you mean {' or '.join(inner[:3])}?" if inner else nearest(unknown[1], options, "See --help.")
        return f"there is no option {unknown[1]}. {advice}"
    if unknown := re.match(r"Option '([\w.-]+)' is not accepted", message):
        advice = nearest(unknown[1], [option.removeprefix("--") for option in options], "See --help.")
        return f"there is no option {unknown[1]!r}, which the configuration sets. {advice}"
    if unknown := re.match(r"Group '([\w.-]+)' does not accept option '([\w.-]+)'", message):
        settings = [o.removeprefix(f"--{unknown[1]}.") for o in options if o.startswith(f"--{unknown[1]}.")]
        return f"`--{unknown[1]}` has no setting {unknown[2]!r}. {nearest(unknown[2], settings)}"
    if denied := re.search(r"Importing '([\w.]+)' is not allowed", message):
        return f"{denied[1]} is code that nobody has allowed to run. Name it on the command line, or add --trust."
    if missing := re.search(r"arguments are required: (.*)", message):
        return f"`--{missing[1].replace(', ', '` and `--')}` must be given."
    if sentence := _OWN.search(message):  # a sentence of this library in the message on a union
        return sentence[1]
    keys = _path(message)
    line = _of_option(".".join(keys), message[message.index(f'"{keys[-1]}"') :]) if keys else message
    line = " ".join(line.split()) or f"{type(error).__name__} without a word."
    return line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} … {line[-LONGEST // 2 :]}"


def _path(text: str) -> list[str]:
    """Return the keys of the option that is wrong, from the outermost to the innermost."""
    keys, depth = [], -1
    for match in _KEY.finditer(text):
        if len(match[1]) <= depth:
            break
        keys, depth = [*keys, match[2]], len(match[1])
    return keys


def _of_option(name: str, text: str) -> str:
    """Return what is wrong with an option, from jsonargparse's message after its innermost key."""
    if option := re.search(r"'([\w.]+)':\s+Option '(\w+)' is not accepted", text):
        return f"`--{name}` is {option[1].rpartition('.')[2]}, which has no setting {option[2]!r}."
    if wrong := _EXPECTED.search(text):
        return f"`--{name}` must be {_meant([wrong[1]])}; got {_shown(wrong[2])}."
    if wrong := _OTHER.search(text):
        return f"`--{name}` must be {wrong[1]}; got {_shown(wrong[2])}."
    union = re.search(r"Subtypes: \[(.*)\]$", text, re.MULTILINE)
    shown_value = _GIVEN.search(text)
    if union is None or shown_value is None:
        if wrong := re.search(r"Expected a dot import path string: (.*)", text):
            return f"`--{name}` must be an import path with dots, such as package.Class; got {_shown(wrong[1])}."
        first, _, _ = text.partition(":")[2].partition("\n    - ")  # of a union, what the first class says of the value
        return f"`--{name}`: {first}"
    value = shown_value[1]
    if nested := _NESTED.search(value):
        name, value = f"{name}.{nested[1]}", nested[2].strip("'")
    types = re.findall(r"<class '[\w.]+'>|typing\.Literal\[[^\]]*\]", union[1])
    classes = [kind.rpartition(".")[2].rstrip("'>") for kind in types if "torchbayes." in kind]
    if classes:
        return f"`--{name}` cannot be {_shown(value)}. {nearest(value, classes)}"
    return f"`--{name}` must be {_meant(types)}; got {_shown(value)}."


def _meant(types: Sequence[str]) -> str:
    """Return types in words."""
    words = []
    for kind in types:
        if kind.startswith("typing.Literal"):
            words.append("one of " + ", ".join(re.findall(r"'([^']*)'", kind)))
        else:
            name = kind.rpartition("'")[0].rpartition("'")[2].rpartition(".")[2]
            words.append(_KINDS.get(name, name))
    return " or ".join(dict.fromkeys(words))


def _shown(value: str) -> str:
    return seen(value.strip())


def debugging() -> bool:
    """Return whether tracebacks are wanted on the terminal."""
    return bool(os.environ.get(DEBUG))


def is_foreseen(error: BaseException) -> bool:
    """Return whether an error comes from this library, or from the system about files or memory: a sentence is enough.

    An error of the same class from the depths of another library is one that should have been refused before.
    Operators in C, such as those of torch, leave no frame of their own. The last frame of their error is therefore the
    line of this library that used them; it differs from this library's own errors by not being a `raise`.
    """
    if isinstance(error, OSError | argparse.ArgumentError) or _is_memory(error) or _is_zero_byte(error):
        return True
    if not isinstance(error, ValueError | TypeError | RuntimeError | ImportError):
        return False
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and _is_ours(last) and _raises(last)


def _is_memory(error: BaseException) -> bool:
    """Return whether memory has run out; on a CPU torch raises a RuntimeError."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error)) is not None


def _is_zero_byte(error: BaseException) -> bool:
    return isinstance(error, ValueError) and "embedded null" in str(error)


def _is_ours(frame: TracebackType) -> bool:
    return frame.tb_frame.f_globals.get("__name__", "").partition(".")[0] in {"torchbayes", "torchbayes_experiments"}


def _raises(frame: TracebackType) -> bool:
    """Return whether a frame of a traceback was left by a `raise` statement; by its code, as sources may be missing."""
    return dis.opname[frame.tb_frame.f_code.co_code[frame.tb_lasti]] == "RAISE_VARARGS"


def reported(error: BaseException, argv: Sequence[str]) -> str:
    """Write the report of an unforeseen error; return one line that names the error and where the report is."""
    message = " ".join(str(error).split())
    line = f"an error that was not foreseen, {type(error).__name__}: {message.rstrip('.') or 'no word'}."
    text = "\n".join([
        f"torchbayes {torchbayes.__version__}, Python {sys.version.split()[0]}, {sys.platform}",
        f"arguments: {list(argv)}",
        "",
        *traceback.format_exception(error),
    ])
    path = None
    try:
        handle, name = tempfile.mkstemp(prefix="torchbayes-", suffix=".txt")
        path = Path(name)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as failed:
        if path is not None:
            path.unlink(missing_ok=True)
        reason = failed.strerror or failed
        return f"{line} No report could be written ({reason}); run it again with --debug to see the traceback."
    return f"{line} The report is {path}."


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


def track(items: list[Any], label: str) -> Iterable[Any]:
    """Pass items through under a progress bar, or after one plain line if there is no terminal."""
    from rich.console import Console
    from rich.progress import track as bar

    console = Console(stderr=True)
    if not console.is_terminal:
        say(f"evaluating: {label}")
    return bar(items, f"evaluating: {label}", console=console, disable=not console.is_terminal, transient=True)


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
    for shown_table in parts:
        console.print(shown_table.rich())


def print_names(lines: Mapping[str, str]) -> None:
    """Print names with one line each."""
    width = max((len(name) for name in lines), default=0)
    for name, line in lines.items():
        print(f"  {name:<{width}}  {line}")
