"""What users bring along: objects by import path, `my_module:build`, and by the entry points of installed packages.

An import path is `MODULE:ATTRIBUTE`, both with dots where needed. An installed package registers names of its own with
entry points, one group for each kind of thing: `torchbayes.methods`, `torchbayes.data`, `torchbayes.networks`,
`torchbayes.likelihoods`, `torchbayes.priors`.
"""

from __future__ import annotations

import importlib
import sysconfig
import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from torch import nn

from torchbayes.checks import seen


def is_path(name: str) -> bool:
    """Return whether a name is an import path, and not one of the catalogue."""
    return isinstance(name, str) and ":" in name


def load_path(path: str) -> Any:
    """Return the object that an import path names.

    Args:
        path: `MODULE:ATTRIBUTE`.

    Returns:
        The object.

    Raises:
        ValueError: if the path is malformed, there is no such module or attribute, or the module fails when imported.
    """
    module, _, attribute = path.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")]):
        raise ValueError(f"an import path is MODULE:ATTRIBUTE, such as my_module:build; got {seen(path)}.")
    found: Any = _module(module, path)
    for name in attribute.split("."):
        if not hasattr(found, name):
            owner = getattr(found, "__name__", module)
            public = [known for known in dir(found) if not known.startswith("_")]
            raise ValueError(f"{owner} has no {name!r}, which {path} names. {suggested(name, public)}")
        found = getattr(found, name)
    return found


def _module(name: str, path: str) -> Any:
    """Return a module.

    Raises:
        ValueError: if there is none of that name, or it fails when it is imported.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ValueError(
                f"{name}, which {path} names, imports {error.name}, which is not installed. Install it."
            ) from error
        raise ValueError(
            f"there is no module {error.name}, which {path} names. Run the command in the folder that holds "
            f"{error.name.partition('.')[0]}.py, or add that folder to PYTHONPATH."
        ) from error
    except (Exception, SystemExit) as error:  # whatever the code of the module does
        raise ValueError(f"importing {name} fails: {what_failed(error)} Correct the module.") from error


def what_failed(error: BaseException) -> str:
    """Return an exception of a user's own code in one sentence: its type, its words, and the line that raised it."""
    # of a call that does not fit, the last line is the one below that calls
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    # what fails in a library is called by the user's own code, where there is some
    frames = [frame for frame in frames if not _in_library(frame.filename)] or frames
    place = f", at line {frames[-1].lineno} of {frames[-1].filename}" if frames else ""
    said = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}{f', {said}' if said else ''}{place}."


def _in_library(file: str) -> bool:
    """Return whether a file belongs to this package, to another that is installed, or to Python."""
    rooms = (Path(__file__).parents[1], *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")))
    return file.startswith("<") or any(Path(file).is_relative_to(room) for room in rooms)


def call(made: Any, path: str, /, *arguments: Any, **settings: Any) -> Any:
    """Call what an import path names.

    Args:
        made: the object there.
        path: for messages.
        *arguments: what the library gives.
        **settings: what the user says.

    Returns:
        What it returns.

    Raises:
        TypeError: if it cannot be called.
        ValueError: if the call fails.
    """
    if not callable(made) or isinstance(made, nn.Module):
        raise TypeError(f"{path} must be a function or a class; got {seen(made)}.")
    try:
        return made(*arguments, **settings)
    except (Exception, SystemExit) as error:  # whatever the user's code does
        given = ", ".join([*map(seen, arguments), *(f"{name}={seen(value)}" for name, value in settings.items())])
        raise ValueError(f"{path}, called with ({given}), fails: {what_failed(error)} Correct it.") from error


@cache
def registered(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name.

    Args:
        group: such as `torchbayes.methods`.

    Returns:
        name -> entry point.
    """
    return {point.name: point for point in entry_points(group=group)}


def path_of(name: str, group: str) -> str | None:
    """Return the import path that a name stands for: itself, or that of an entry point; None if it is neither."""
    if is_path(name):
        return name
    point = registered(group).get(name)
    return None if point is None else f"{point.module}:{point.attr}"


def suggested(name: str, known: Iterable[str]) -> str:
    """Return one sentence with the known names that are close to a wrong one, or all, or the advice to look it up."""
    names = list(known)
    close = get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return f"Did you mean {' or '.join(close)}?"
    return f"It has: {', '.join(names)}." if 0 < len(names) <= 12 else "Check the name."
