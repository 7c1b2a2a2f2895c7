"""The command that compares methods.

Which methods are compared is said by `--methods`, each a name of the catalogue, `NAME=METHOD`, or an import path; or by
a mapping in a configuration file, `methods: {swag: , wide swag: {class_path: SWAG, init_args: {averaging_lr: 0.2}}}`.
Each has options of its own, `--wide_swag.rank 30`; what is not said is usual for the data set.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from torchbayes.catalogue.entries import Settings
from torchbayes.catalogue.imports import is_path, path_of
from torchbayes.catalogue.loading import is_file
from torchbayes.catalogue.methods import GROUP, METHODS, OPTIMISED, SAMPLED, VARIATIONAL_USUAL, classes, entry_of
from torchbayes.catalogue.trust import foreign_code
from torchbayes.catalogue.usual import Usual
from torchbayes.checks import seen
from torchbayes.cli.errors import suggest
from torchbayes.cli.options import (
    Parser,
    Peek,
    add_directory,
    add_method,
    add_problem,
    new_parser,
    parse,
    peek,
    problem_of,
    usual_method,
)
from torchbayes.cli.terminal import print_table, resumable, say, track
from torchbayes.comparison.settings import Comparison, check_name_of, key_of
from torchbayes.native.process import short_path

_LISTS = {
    "methods": "methods, in the order of the table: names of `torchbayes list compared`, NAME=METHOD, or import paths",
    "corruptions": "image corruptions, none to leave them out",
}
_SHOWN = tuple(name for name in OPTIMISED + VARIATIONAL_USUAL + SAMPLED if METHODS[name].first_of is None)


class Asked(NamedTuple):
    """What the arguments of the command ask for."""

    comparison: Comparison
    directory: str
    resume: bool
    overwrite: bool


@dataclass(frozen=True)
class _Row:
    """One method as it is asked for.

    Attributes:
        name: in the comparison.
        settings: those that hold where nothing else is said.
        init_args: what a file says.
        first_of: key of the settings that it shares but for the members; None if its settings are its own.
    """

    name: str
    settings: Settings
    init_args: Mapping[str, Any] = field(default_factory=dict)
    first_of: str | None = None

    @property
    def key(self) -> str:
        return key_of(self.name)


def compare(argv: list[str]) -> None:
    """Fit several methods and a reference by HMC; print one table, write a report with pictures.

    Args:
        argv: options.
    """
    from torchbayes.comparison.compare import compare as run
    from torchbayes.comparison.compare import configuration
    from torchbayes.comparison.tables import caption, table, tables

    asked = settled([word for word in argv if word != "--print_config"])
    if "--print_config" in argv:
        print(yaml.safe_dump(configuration(asked.comparison), sort_keys=False, allow_unicode=True), end="")
        return
    trusted = ["--trust"] if foreign_code(configuration(asked.comparison)) else []
    with resumable(["torchbayes", "compare", "--directory", asked.directory, "--resume", *trusted]):
        found = run(
            asked.comparison, asked.directory, resume=asked.resume, overwrite=asked.overwrite, say=say, track=track
        )
    about, base = (found.setup, found.outcomes, found.diagnosis), found.base
    print_table(table(found.outcomes, caption=caption(*about, base=base), base=base), narrow=tables(*about, base=base))
    print(f"Report: {short_path(found.report)}")


def settled(argv: list[str]) -> Asked:
    """Return what the arguments ask for, everything that is usual filled in.

    Args:
        argv: options.

    Returns:
        The comparison, and where it goes.
    """
    looked = peek(argv)
    known = {**_table(looked.file, "starts"), **_table(looked.file, "methods")}
    rows = [_row(word, known, looked.usual) for word in _words(looked)]
    starts = [_row(name, known, looked.usual) for name in _starts(rows)]
    told = [_row(name, known, looked.usual) for name in known]  # which others may be the first members of
    many = [row.first_of for row in [*rows, *starts, *told] if row.first_of]
    shown = [_Row(name, looked.usual[name]) for name in dict.fromkeys([*_SHOWN, *many])]
    every = {row.key: row for row in [*shown, *told, *starts, *rows]}
    used = {row.key: row for row in [*rows, *starts]}
    _say_unused(argv, every, {*used, *(row.first_of for row in used.values() if row.first_of)})
    parser = _parser(looked, rows, every)
    arguments = _arguments(looked, every)
    chosen = parse(parser, arguments)
    shared = {row.key: row.first_of for row in every.values() if row.first_of is not None}
    if shared:  # what the first member shares with the others is known only now
        for key, many in shared.items():
            single = replace(chosen[many], members=1)
            parser.set_defaults({f"{key}.{f.name}": getattr(single, f.name) for f in fields(single)})
        chosen = parse(parser, arguments)
    rest = {f.name: chosen[f.name] for f in fields(Comparison) if f.name not in {"problem", "methods", "starts"}}
    comparison = Comparison(
        problem_of(chosen),
        {row.name: chosen[row.key] for row in rows},
        starts={row.name: chosen[row.key] for row in starts},
        **{**rest, "corruptions": tuple(chosen["corruptions"])},
    )
    return Asked(comparison, *(chosen[name] for name in ("directory", "resume", "overwrite")))


def _say_unused(argv: Sequence[str], every: Mapping[str, _Row], used: Set[str]) -> None:
    """Say which methods are given settings and not compared."""
    keys = {word.removeprefix("--").partition(".")[0] for word in argv if word.startswith("--") and "." in word}
    for key in sorted(keys & every.keys() - used):
        say(f"The settings of {every[key].name} have no effect: it is not compared. Add it to --methods.")


def _parser(looked: Peek, rows: Sequence[_Row], every: Mapping[str, _Row]) -> Parser:
    """Return the parser: problem, the settings of every method, and the rest of a comparison."""
    parser = new_parser("compare", (compare.__doc__ or "").strip().splitlines()[0], config=True)
    add_problem(parser, looked.usual)
    parser.add_class_arguments(Comparison, None, skip={"problem", "starts", *_LISTS})
    usual = {"methods": [row.name for row in rows], "corruptions": list(Comparison.corruptions)}
    for name, text in _LISTS.items():
        parser.add_argument(f"--{name}", nargs="*", type=str, default=usual[name], help=text)
    for key, row in every.items():
        entry = entry_of(row.name, row.settings)
        add_method(parser, key, row.settings, text=f"{entry.label}: {entry.line}" if entry.line else row.name)
    add_directory(parser, f"compare_{_short(looked)}")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier comparison in the directory")
    return parser


def _short(looked: Peek) -> str:
    """Return the name of a data set as that of a directory has it."""
    if is_file(looked.data):
        return Path(looked.data).name.partition(".")[0]
    return looked.usual.family if is_path(looked.data) else looked.data


def _words(looked: Peek) -> list[str]:
    """Return the methods that are asked for: by the arguments, else by the file, else those that are usual."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--methods", nargs="*")
    words = parser.parse_known_args(looked.argv)[0].methods
    if words is None:
        words = list(_table(looked.file, "methods")) or looked.usual.methods
    return list(dict.fromkeys(words))


def _starts(rows: Sequence[_Row]) -> list[str]:
    """Return the fits that methods start at and that are not compared themselves."""
    starts = [entry_of(row.name, row.settings).start for row in rows]
    return list(dict.fromkeys(name for name in starts if name is not None and name not in {row.name for row in rows}))


def _table(file: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return the methods in a file by name.

    Raises:
        ValueError: if they are neither a mapping nor a list of names.
    """
    found = file.get(what)
    if isinstance(found, Mapping):
        return {str(name): about for name, about in found.items()}
    if found is None or (isinstance(found, list) and all(isinstance(name, str) for name in found)):
        return dict.fromkeys(found or ())
    raise ValueError(f"`{what}` must be a mapping from names to settings, or a list of names; got {seen(found)}.")


def _row(word: str, known: Mapping[str, Any], usual: Usual) -> _Row:
    """Return one method by what was written for it.

    Raises:
        ValueError: if there is no such method.
    """
    name, equals, method = word.partition("=")
    about: Any = method if equals else known.get(word)
    if isinstance(about, Mapping) and "first_of" in about:
        about = None
    init_args: Mapping[str, Any] = {}
    if isinstance(about, Mapping):
        apart = "class_path" in about or "init_args" in about
        init_args = (about.get("init_args") or {}) if apart else about
        about = about.get("class_path") if apart else None
    if (about is not None and not isinstance(about, str)) or not isinstance(init_args, Mapping):
        raise ValueError(
            f"the method {name!r} must be a name, or a mapping with class_path and init_args; got {seen(known[word])}."
        )
    if is_path(name) and about is None:  # named by its attribute
        about, name = name, name.rpartition(":")[2].rpartition(".")[2]
    check_name_of("methods", name)
    if name in METHODS:
        entry = METHODS[name]
        if about is not None and about.removeprefix("torchbayes.") not in {name, entry.load().__name__}:
            raise ValueError(
                f"{name!r} is {entry.label} in the catalogue. Choose another name for {about}: my_{name}={about}."
            )
        return _Row(name, usual[name], init_args, None if init_args else entry.first_of)
    return _Row(name, _usual(about or name, usual, bare=about is None), init_args)


def _usual(method: str, usual: Usual, *, bare: bool) -> Settings:
    """Return the usual settings of a method that has a name of its own in the comparison.

    Args:
        method: name of an entry, a class or an entry point, or an import path.
        usual: what is usual for the data set.
        bare: whether it is its own name, which is then that of an entry or entry point, so that what is compared under
            it has the same settings in every comparison.

    Returns:
        The settings.

    Raises:
        ValueError: if there is no such method.
    """
    own = method.removeprefix("torchbayes.")
    if own in METHODS and not bare:
        return usual[own]
    if own in classes() and not bare:
        return usual[next(name for name, entry in METHODS.items() if entry.load() is classes()[own])]
    dotted = "." in method and not bare
    if path_of(method, GROUP) is not None or dotted:
        return usual_method(method, usual)
    close = [name for name, entry in METHODS.items() if entry.load().__name__ == own]
    advice = f"Did you mean {' or '.join(close)}?" if close else suggest(method, METHODS)
    raise ValueError(f"there is no method called {seen(method)}. {advice}")


def _arguments(looked: Peek, every: Mapping[str, _Row]) -> list[str]:
    """Return the arguments with one configuration in the place of the files: the settings of each method by its key."""
    words = [word for word in looked.argv if not word.startswith("--config=")]
    while "--config" in words:
        at = words.index("--config")
        words[at : at + 2] = []
    file = {name: about for name, about in looked.file.items() if name not in {"methods", "starts"}}
    file |= {key: {**(file.get(key) or {}), **row.init_args} for key, row in every.items() if row.init_args}
    return [f"--config={yaml.safe_dump(file, allow_unicode=True)}", *words] if file else words
