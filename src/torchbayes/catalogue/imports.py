"""Objects that users bring along: by import path, `my_module:build`, and by entry points of installed packages.

An import path is `MODULE:ATTRIBUTE`, both with dots where needed. An installed package registers names of its own with
entry points, one group for each kind of thing: `torchbayes.methods`, `torchbayes.data`, `torchbayes.networks`,
`torchbayes.likelihoods`, `torchbayes.priors`.
"""

from __future__ import annotations

import importlib
import sysconfig
import traceback
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from torch import nn

from torchbayes.checks import nearest, seen


def is_path(name: str) -> bool:
    """Return whether a name is an import path, and not one of the catalogue."""
    return isinstance(name, str) and ":" in name


def load_path(path: str) -> Any:
    """Return the object that an import path `MODULE:ATTRIBUTE` names.

    Raises ValueError if the path is malformed, names no module or attribute, or the module fails when imported.
    """
    module, _, attribute = path.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")]):
        raise ValueError(f"an import path is MODULE:ATTRIBUTE, such as my_module:build; got {seen(path)}.")
    target: Any = _module(module, path)
    for name in attribute.split("."):
        if not hasattr(target, name):
            owner = getattr(target, "__name__", module)
            public = [known for known in dir(target) if not known.startswith("_")]
            otherwise = "" if 0 < len(public) <= 12 else "Check the name."
            raise ValueError(f"{owner} has no {name!r}, which {path} names. {nearest(name, public, otherwise)}")
        target = getattr(target, name)
    return target


def _module(name: str, path: str) -> Any:
    """Import a module."""
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
    except (Exception, SystemExit) as error:  # the code of the module may raise anything
        raise ValueError(f"importing {name} fails: {what_failed(error)} Correct the module.") from error


def what_failed(error: BaseException) -> str:
    """Return an exception of a user's own code in one sentence: its type, its message, and the line that raised it."""
    # this file's own frame is last if the arguments of a call do not fit
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    # prefer the frames of the user's own code, which calls libraries, if there are any
    frames = [frame for frame in frames if not _in_library(frame.filename)] or frames
    line = f", at line {frames[-1].lineno} of {frames[-1].filename}" if frames else ""
    message = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}{f', {message}' if message else ''}{line}."


def _in_library(file: str) -> bool:
    """Return whether a file belongs to this package, to another that is installed, or to Python."""
    folders = (Path(__file__).parents[1], *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")))
    return file.startswith("<") or any(Path(file).is_relative_to(room) for room in folders)


def call(made: Any, path: str, /, *arguments: Any, **settings: Any) -> Any:
    """Call what an import path names, with the library's arguments and the user's settings.

    Raises TypeError if it cannot be called, ValueError if the call fails; the message has the path.
    """
    if not callable(made) or isinstance(made, nn.Module):
        raise TypeError(f"{path} must be a function or a class; got {seen(made)}.")
    try:
        return made(*arguments, **settings)
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        given = ", ".join([*map(seen, arguments), *(f"{name}={seen(value)}" for name, value in settings.items())])
        raise ValueError(f"{path}, called with ({given}), fails: {what_failed(error)} Correct it.") from error


@cache
def registered(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group, such as `torchbayes.methods`, by name."""
    return {point.name: point for point in entry_points(group=group)}


def path_of(name: str, group: str) -> str | None:
    """Return the import path that a name stands for: itself, or that of an entry point; None if it is neither."""
    if is_path(name):
        return name
    point = registered(group).get(name)
    return None if point is None else f"{point.module}:{point.attr}"
