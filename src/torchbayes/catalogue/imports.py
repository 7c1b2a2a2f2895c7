"""Objects that users bring along: by import path, `my_module:build`, and by entry points of installed packages.

An import path is `MODULE:ATTRIBUTE`, both with dots where needed. An installed package registers names of its own with
entry points, one group for each kind of thing: `torchbayes.methods`, `torchbayes.data`, `torchbayes.networks`,
`torchbayes.likelihoods`, `torchbayes.priors`.

A configuration may come from somebody else, and an import path in it is code that is called with settings of that
file's choice. Three things allow it: the user names the path on the command line; an installed package has registered
it as an entry point; or the user trusts the file as a whole, by `--trust` or `trust=True`.
"""

from __future__ import annotations

import importlib
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping
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
    if not all(word.isidentifier() for word in [*module.split("."), *attribute.split(".")]):
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


_GROUPS = tuple(f"torchbayes.{kind}" for kind in ("methods", "data", "networks", "likelihoods", "priors"))
_WORD = r"[^\W\d]\w*"
# `my_module:build`, and the path of a class in configurations; names of files have no capital after the point
_WRITTEN = re.compile(rf"(?<![\w./\\:])(?:{_WORD}\.)*{_WORD}(?::{_WORD}(?:\.{_WORD})*|\.[A-Z]\w*)(?![\w./\\:])")
_NAMES = ("data", "network", "likelihood")
_METHODS = ("method", "methods", "starts")


def named_in(words: Iterable[str]) -> set[str]:
    """Return the import paths in the words of a command line, as `MODULE:ATTRIBUTE` or `MODULE.CLASS`."""
    return {path for word in words for path in _WRITTEN.findall(word) if not path.startswith("torchbayes.")}


def registered_paths() -> set[str]:
    """Return the dotted paths of the entry points of installed packages."""
    return {f"{point.module}.{point.attr}" for group in _GROUPS for point in registered(group).values()}


def foreign_code(config: Mapping[str, Any], named: Iterable[str] = ()) -> dict[str, str]:
    """Return the import paths in a configuration that nobody has allowed, each with its entry."""
    allowed = {_dotted(path) for path in named}
    paths = {path: place for place, path in _paths(config) if _dotted(path) not in allowed}
    return {path: place for path, place in paths.items() if _dotted(path) not in registered_paths()} if paths else {}


def check_trusted(
    source: Path | str, config: Mapping[str, Any], *, trust: bool = False, named: Iterable[str] = ()
) -> None:
    """Raise PermissionError if a file would run code that is not allowed; the message tells how to allow it."""
    foreign = {} if trust else foreign_code(config, named)
    if foreign:
        listed = ", ".join(f"{path} (`{place}`)" for path, place in list(foreign.items())[:5])
        raise PermissionError(
            f"{source} names code that would run here: {listed}. If you wrote the file or trust whoever did, add "
            f"--trust, or trust=True in Python; or name the import path on the command line."
        )


def _dotted(path: str) -> str:
    return path.replace(":", ".")


def _paths(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the import paths of a configuration, each after its entry."""
    named = [(entry_name, config.get(entry_name)) for entry_name in _NAMES]
    named += [("prior", name) for name in _names_of_priors(config.get("prior"))]
    networks = config.get("networks")
    named += [("networks", name) for name in (networks if isinstance(networks, list) else [])]
    yield from ((place, name) for place, name in named if isinstance(name, str) and is_path(name))
    yield from _classes(config, "")
    for entry_name in _METHODS:
        entry = config.get(entry_name)
        entries = [*entry, *entry.values()] if isinstance(entry, Mapping) and entry_name != "method" else entry
        for word in [entries] if isinstance(entries, str) else entries if isinstance(entries, list) else ():
            yield from ((entry_name, path) for path in named_in([word] if isinstance(word, str) else ()))


def _names_of_priors(rules: Any) -> list[Any]:
    if isinstance(rules, Mapping):
        return [rule.get("name") if isinstance(rule, Mapping) else rule for rule in rules.values()]
    return [rules]


def _classes(entry: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yield the classes of others that a configuration names by their path, at any depth."""
    if isinstance(entry, Mapping):
        path = entry.get("class_path")
        if isinstance(path, str) and ("." in path or ":" in path) and not path.startswith("torchbayes."):
            yield place or "class_path", path
        for name, inner in entry.items():
            yield from _classes(inner, f"{place}.{name}" if place else str(name))
    elif isinstance(entry, list | tuple):
        for inner in entry:
            yield from _classes(inner, place)
