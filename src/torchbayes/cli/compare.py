"""The commands that compare: methods, and networks by their evidence.

`--methods` names the methods to compare, each a name of the catalogue, `NAME=METHOD`, or an import path; or a mapping
in a configuration file does: `methods: {swag: , wide swag: {class_path: SWAG, init_args: {averaging_lr: 0.2}}}`. Each
has options of its own, `--wide_swag.rank 30`; others keep the usual values for the data set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from torchbayes.catalogue.entries import Settings
from torchbayes.catalogue.imports import foreign_code, is_path, path_of
from torchbayes.catalogue.loading import is_file
from torchbayes.catalogue.methods import (
    GROUP,
    METHODS,
    OPTIMISED,
    SAMPLED,
    VARIATIONAL_USUAL,
    classes,
    entries_of,
    entry_of,
)
from torchbayes.catalogue.problem import Problem
from torchbayes.catalogue.usual import Usual
from torchbayes.checks import nearest, seen
from torchbayes.cli.options import (
    Parser,
    Peek,
    add_directory,
    add_method,
    add_open,
    add_problem,
    made_of,
    new_parser,
    parse,
    peek,
    problem_of,
    usual_method,
    with_hints,
)
from torchbayes.cli.terminal import point_to, print_table, resumable, say, track
from torchbayes.comparison.settings import Comparison, check_name_of, key_of
from torchbayes.methods.optimise.map import MAP
from torchbayes.posteriors.locks import Locked

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
    open: bool


@dataclass(frozen=True)
class _Row:
    """One method as it is asked for."""

    name: str
    settings: Settings  # the defaults of its options
    init_args: Mapping[str, Any] = field(default_factory=dict)  # from a file
    first_of: str | None = None  # key of the settings that it shares, apart from the members

    @property
    def key(self) -> str:
        return key_of(self.name)


def compare(argv: list[str]) -> None:
    """Fit several methods and a reference by HMC; print one table, write a report with pictures."""
    from torchbayes.comparison.compare import compare as run
    from torchbayes.comparison.compare import configuration
    from torchbayes.comparison.tables import caption, table, tables

    wanted = settled([word for word in argv if word != "--print_config"])
    if "--print_config" in argv:
        print(yaml.safe_dump(configuration(wanted.comparison), sort_keys=False, allow_unicode=True), end="")
        return
    trusted = ["--trust"] if foreign_code(configuration(wanted.comparison)) else []
    with resumable(["torchbayes", "compare", "--directory", wanted.directory, "--resume", *trusted]):
        compared = run(
            wanted.comparison, wanted.directory, resume=wanted.resume, overwrite=wanted.overwrite, say=say, track=track
        )
    study, base = (compared.setup, compared.outcomes, compared.diagnosis), compared.base
    print_table(
        table(compared.outcomes, caption=caption(*study, base=base), base=base), narrow=tables(*study, base=base)
    )
    point_to(compared.report, opened=wanted.open)


def settled(argv: list[str]) -> Asked:
    """Return what the arguments ask for, with usual values filled in."""
    looked = peek(argv)
    known = {**_table(looked.file, "starts"), **_table(looked.file, "methods")}
    rows = [_row(word, known, looked.usual) for word in _words(looked)]
    starts = [_row(name, known, looked.usual) for name in _starts(rows)]
    named = [_row(name, known, looked.usual) for name in known]  # other methods may be their first members
    many = [row.first_of for row in [*rows, *starts, *named] if row.first_of]
    shown = [_Row(name, looked.usual[name]) for name in dict.fromkeys([*_SHOWN, *many])]
    every = {row.key: row for row in [*shown, *named, *starts, *rows]}
    used = {row.key: row for row in [*rows, *starts]}
    compared = {*used, *(row.first_of for row in used.values() if row.first_of)}
    _say_unused(argv, every, compared)
    arguments = _arguments(looked, every)
    told = compared | _keys(argv) | {*looked.file, *many} | {row.key for row in named}
    parser, chosen = _parsed(looked, rows, every, told, arguments)
    shared = {row.key: row.first_of for row in every.values() if row.first_of is not None and row.key in chosen}
    if shared:  # the settings shared with a first member are known only now
        for key, many in shared.items():
            single = replace(chosen[many], members=1)
            parser.set_defaults({f"{key}.{f.name}": getattr(single, f.name) for f in fields(single)})
        chosen = parse(parser, arguments)
    settings = {
        "problem": problem_of(chosen),
        "methods": {row.name: chosen[row.key] for row in rows},
        "starts": {row.name: chosen[row.key] for row in starts},
        "corruptions": tuple(chosen["corruptions"]),
    }
    comparison = made_of(Comparison, chosen, settings)
    return Asked(comparison, *(chosen[name] for name in ("directory", "resume", "overwrite", "open")))


def _say_unused(argv: Sequence[str], every: Mapping[str, _Row], used: Set[str]) -> None:
    """Say which methods have settings and are not compared."""
    keys = {word.removeprefix("--").partition(".")[0] for word in argv if word.startswith("--") and "." in word}
    for key in sorted(keys & every.keys() - used):
        say(f"The settings of {every[key].name} have no effect: it is not compared. Add it to --methods.")


def _keys(argv: Sequence[str]) -> set[str]:
    """Return what options begin with: those of a method with its key."""
    return {word.removeprefix("--").partition("=")[0].partition(".")[0] for word in argv if word.startswith("--")}


def _parsed(
    looked: Peek, rows: Sequence[_Row], every: Mapping[str, _Row], told: Set[str], arguments: list[str]
) -> tuple[Parser, dict[str, Any]]:
    """Return the parser with the settings of the methods that are told, and what it reads.

    Mistakes are said, and help is given, with the settings of every method, which take long to add.
    """
    if not {"-h", "--help"} & set(arguments):
        with suppress(ValueError):
            parser = _parser(looked, rows, {key: row for key, row in every.items() if key in told})
            return parser, parse(parser, arguments)
    parser = _parser(looked, rows, every)
    return parser, parse(parser, arguments)


def _parser(looked: Peek, rows: Sequence[_Row], every: Mapping[str, _Row]) -> Parser:
    """Return the parser: problem, the settings of every method, and the other fields of a comparison."""
    parser = new_parser(compare, config=True)
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
    add_open(parser)
    return parser


def _short(looked: Peek) -> str:
    """Return the name of a data set for that of a directory."""
    if is_file(looked.data):
        return Path(looked.data).name.partition(".")[0]
    return looked.usual.family if is_path(looked.data) else looked.data


def _words(looked: Peek) -> list[str]:
    """Return the methods that are asked for: by the arguments, else by the file, else the usual ones."""
    words = looked.methods
    if words is None:
        words = list(_table(looked.file, "methods")) or looked.usual.methods
    return list(dict.fromkeys(words))


def _starts(rows: Sequence[_Row]) -> list[str]:
    """Return the fits that methods start at and that are not compared themselves."""
    starts = [entry_of(row.name, row.settings).start for row in rows]
    return list(dict.fromkeys(name for name in starts if name is not None and name not in {row.name for row in rows}))


def _table(file: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the methods in a file by name, from a mapping or a list of names."""
    methods = file.get(key)
    if isinstance(methods, Mapping):
        return {str(name): settings for name, settings in methods.items()}
    if methods is None or (isinstance(methods, list) and all(isinstance(name, str) for name in methods)):
        return dict.fromkeys(methods or ())
    raise ValueError(f"`{key}` must be a mapping from names to settings, or a list of names; got {seen(methods)}.")


def _row(word: str, known: Mapping[str, Any], usual: Usual) -> _Row:
    """Return one method by what was written for it. Raises ValueError if there is no such method."""
    name, equals, method = word.partition("=")
    value: Any = method if equals else known.get(word)
    if isinstance(value, Mapping) and "first_of" in value:
        value = None
    init_args: Mapping[str, Any] = {}
    if isinstance(value, Mapping):
        has_class = "class_path" in value or "init_args" in value
        init_args = (value.get("init_args") or {}) if has_class else value
        value = value.get("class_path") if has_class else None
    if (value is not None and not isinstance(value, str)) or not isinstance(init_args, Mapping):
        raise ValueError(
            f"the method {name!r} must be a name, or a mapping with class_path and init_args; got {seen(known[word])}."
        )
    if is_path(name) and value is None:  # its attribute becomes its name
        value, name = name, name.rpartition(":")[2].rpartition(".")[2]
    check_name_of("methods", name)
    if name in METHODS:
        entry = METHODS[name]
        if value is not None and value.removeprefix("torchbayes.") not in {name, entry.kind.__name__}:
            raise ValueError(
                f"{name!r} is {entry.label} in the catalogue. Choose another name for {value}: my_{name}={value}."
            )
        return _Row(name, usual[name], init_args, None if init_args else entry.first_of)
    return _Row(name, _usual(value or name, usual, bare=value is None), init_args)


def _usual(method: str, usual: Usual, *, bare: bool) -> Settings:
    """Return the usual settings of a method that has a name of its own in the comparison.

    `method` names an entry, a class or an entry point, or is an import path. `bare` means that it is its own name,
    which must then be that of an entry or entry point, so that a name has the same settings in every comparison.
    """
    plain_name = method.removeprefix("torchbayes.")
    if plain_name in METHODS and not bare:
        return usual[plain_name]
    if plain_name in classes() and not bare:
        return usual[entries_of(classes()[plain_name])[0].name]
    dotted = "." in method and not bare
    if path_of(method, GROUP) is not None or dotted:
        return usual_method(method, usual)
    close = [name for name, entry in METHODS.items() if entry.kind.__name__ == plain_name]
    advice = f"Did you mean {' or '.join(close)}?" if close else nearest(method, METHODS)
    raise ValueError(f"there is no method called {seen(method)}. {advice}")


def _arguments(looked: Peek, every: Mapping[str, _Row]) -> list[str]:
    """Return the arguments with one configuration instead of the files, with the settings of each method by key."""
    words = [word for word in looked.argv if not word.startswith("--config=")]
    while "--config" in words:
        at = words.index("--config")
        words[at : at + 2] = []
    file = {name: value for name, value in looked.file.items() if name not in {"methods", "starts"}}
    file |= {key: {**(file.get(key) or {}), **row.init_args} for key, row in every.items() if row.init_args}
    return [f"--config={yaml.safe_dump(file, allow_unicode=True)}", *words] if file else words


def evidence(argv: list[str]) -> None:
    """Compare networks by their evidence, estimated by Laplace's approximation."""
    from torchbayes.comparison import evidence as room

    seen = peek(argv)
    parser = new_parser(evidence, config=True)
    problem_fields = [f.name for f in fields(Problem) if f.name != "network"]
    parser.add_class_arguments(Problem, None, skip={"network"}, help="Data and model")
    parser.set_defaults({name: getattr(seen.usual.problem, name) for name in problem_fields})
    parser.add_class_arguments(with_hints(MAP), "map", skip={"members", "plan"}, help="How each network is trained")
    single_network = seen.usual["single"]
    trained = [f.name for f in fields(MAP) if f.name not in {"members", "plan"}]
    parser.set_defaults({f"map.{name}": getattr(single_network, name) for name in trained})
    parser.add_class_arguments(room.Settings, None, skip={"problem", "map", "networks"})
    images = seen.usual.problem.network != "mlp" or seen.usual.family == "digits"  # digits: a small mlp
    names = ["linear", "mlp", *(["cnn"] if images else [])]
    parser.add_argument("--networks", nargs="*", type=str, default=names, help="networks; cnn is short for small_cnn")
    parser.add_argument("--directory", type=str | None, default=None, help="where numbers and a figure go; nowhere")
    parser.add_argument("--overwrite", action="store_true", help="replace earlier results in the directory")
    chosen = parse(parser, seen.argv)
    if chosen["prior"] in room.TUNED:  # the meaning of `prior` in configurations of earlier versions
        chosen |= {"prior": Problem.prior, "tune_prior": chosen["prior"]}
    networks = {"problem": problem_of(chosen), "networks": tuple(chosen["networks"])}
    settings = made_of(room.Settings, chosen, networks)
    directory = None if chosen["directory"] is None else Path(chosen["directory"])
    with nullcontext() if directory is None else _reserved(directory, overwrite=chosen["overwrite"]):
        results = room.compare_networks(settings, callbacks=None, say=say)
        print_table(room.table(settings, results), narrow=room.tables(settings, results))
        print("\n".join(room.remarks(results)))
        if directory is not None:
            print(f"Results: {room.write(directory, settings, results)}")


@contextmanager
def _reserved(directory: Path, *, overwrite: bool) -> Iterator[None]:
    """Lock a directory for results, and remove the folders made for it if nothing is written."""
    from torchbayes.comparison.evidence import check_directory

    folders = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    try:
        with Locked(directory):
            check_directory(directory, overwrite=overwrite)  # after the lock, so that nobody else can put results there
            yield
    finally:
        with suppress(OSError):  # a folder is not empty after a success
            for folder in folders:
                folder.rmdir()
