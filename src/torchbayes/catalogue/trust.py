"""Whose code runs: an import path in a file is used only if the user has allowed it.

A configuration may come from somebody else, and an import path in it is code that is called with settings of that
file's choice. Three things allow it: the user names the path on the command line; an installed package has registered
it as an entry point; or the user trusts the file as a whole, by `--trust` or `trust=True`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torchbayes.catalogue.imports import is_path, registered

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
