"""Options: parsers built from the dataclasses they fill, with defaults that depend on the data set."""

from __future__ import annotations

import argparse
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

import jsonargparse
import yaml

from torchbayes.catalogue.config import CONFIG, check_yaml, class_path, problem_in, read_config, read_run
from torchbayes.catalogue.data import defaults
from torchbayes.catalogue.imports import check_trusted, foreign_code, named_in, path_of, registered_paths
from torchbayes.catalogue.loading import settled
from torchbayes.catalogue.methods import GROUP, classes, entries_of, method_named
from torchbayes.catalogue.problem import Problem
from torchbayes.catalogue.usual import Usual, plain_settings
from torchbayes.cli.terminal import one_line
from torchbayes.density import Ranks
from torchbayes.methods.optimise.sam import AnyOptimizer
from torchbayes.methods.schedules import Schedule, StepSchedule

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Parser = jsonargparse.ArgumentParser
_LOAD = jsonargparse.get_loader("yaml")
# options that decide the defaults of others
_MODEL = ("method", "network", "prior", "start", "temperature")
_DECIDE = ("data", "directory", "likelihood", "target", *_MODEL)


@dataclass(frozen=True)
class Peek:
    """The options that decide the defaults of the others, read before the parser is built."""

    argv: list[str]  # with the configuration of a resumed run in front
    file: dict[str, Any]  # entries of the configuration files; the last file wins
    data: str
    usual: Usual  # for the data, network and likelihood that are asked for
    method: str | None  # value of `--method`, or its class in the file; None if the library chooses
    methods: list[str] | None  # words of `--methods`


def peek(argv: list[str], *, single: bool = False) -> Peek:
    """Read the options that decide the defaults of the others, from the arguments or the configuration file.

    A `single` fit of which neither method nor model is asked for has those that go together on the data.
    A fit that starts at another one has that one's problem, unless options say otherwise. Raises PermissionError if a
    file names code by an import path that nobody has allowed, ValueError if there is neither a run to resume nor data
    to begin one.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in _DECIDE:
        parser.add_argument(f"--{name}")
    parser.add_argument("--methods", nargs="*")
    parser.add_argument("--config", action="append", default=[])
    for name in ("--resume", "--trust"):
        parser.add_argument(name, action="store_true")
    seen, _ = parser.parse_known_args(argv)
    named = named_in(argv)
    resumed = False
    if seen.resume and not seen.config and seen.directory is not None:
        path = Path(seen.directory) / CONFIG
        if path.is_file():
            argv, seen.config, resumed = ["--config", str(path), *argv], [str(path)], True
        elif seen.data is None and seen.start is None:  # otherwise a typing error would begin a run of the default data
            raise ValueError(f"there is no run in {seen.directory} to resume. Correct --directory, or name --data.")
    file = _trusted(seen.config, resumed=resumed, trust=seen.trust, named=named)
    started = {} if seen.start is None or file else read_run(Path(seen.start))
    problem = problem_in(started, Path(str(seen.start)) / CONFIG, trust=seen.trust, named=named)
    data = settled(str(seen.data or file.get("data") or started.get("data") or Problem.data))
    target = seen.target or file.get("target") or started.get("target")
    given = file.get("data_settings") or started.get("data_settings") or {}
    settings = {**(given if isinstance(given, Mapping) else {}), **_settings("data", argv)}
    usual = defaults(data, settings, target)
    problem = problem if started.get("data") == data else usual.problem
    asked = any(getattr(seen, name) or name in file for name in _MODEL)
    automatic = usual.automatic if single and not asked else None
    problem = problem if automatic is None else automatic().problem
    for kind_of_model in ("network", "likelihood"):
        name = str(getattr(seen, kind_of_model) or file.get(kind_of_model) or getattr(problem, kind_of_model))
        if name != getattr(problem, kind_of_model):  # settings belong to one name
            problem = replace(problem, **{kind_of_model: name, f"{kind_of_model}_settings": {}})
    given = file.get("likelihood_settings") or problem.likelihood_settings
    settings = {**(given if isinstance(given, Mapping) else {}), **_settings("likelihood", argv)}
    problem = replace(problem, likelihood_settings=settings)
    allow(named)
    method_name = None if automatic else str(seen.method or _method_in(file) or "SWAG")
    return Peek(argv, file, data, usual.of(problem), method_name, seen.methods)


def _trusted(configs: Sequence[str], *, resumed: bool, trust: bool, named: set[str]) -> dict[str, Any]:
    """Return the entries of configuration files; the import paths that they may name are added to `named`."""
    file: dict[str, Any] = {}
    for name in map(Path, configs):  # in the order of the parser: the last value wins
        entries_of_file = read_run(name.parent) if resumed else read_config(name)
        check_trusted(name, entries_of_file, trust=trust, named=named)
        named.update(foreign_code(entries_of_file))  # `|=` with keys would make a new set
        file |= entries_of_file
    return file


def _settings(group: str, argv: list[str]) -> dict[str, Any]:
    """Return the settings of data or of a likelihood among the arguments, as the parser will read them."""
    settings: dict[str, Any] = {}
    option = f"--{group}_settings"
    for word, following in zip(argv, [*argv[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        if name == option or name.startswith(f"{option}."):
            try:
                parsed = _bounded(value if equals else following)
            except yaml.YAMLError as error:
                said = " ".join(str(error).split())
                raise ValueError(f"`{name}` is no YAML: {said}. Quote names with signs: \"['a [m]']\".") from error
            key = name.partition(".")[2]
            settings |= {key: parsed} if key else dict(parsed) if isinstance(parsed, Mapping) else {}
    return settings


def first_line(documented: Any) -> str:
    """Return the first line of a docstring."""
    return (documented.__doc__ or "").strip().splitlines()[0]


def new_parser(command: Callable[..., Any], *, config: bool = False, reads: bool = True) -> Parser:
    """Return an empty parser of a command, a function, which raises `argparse.ArgumentError`.

    `config` adds `--config` for a YAML file of options. `reads` adds `--trust`, for commands that read runs or files
    of settings, which may be somebody else's.
    """
    # choices among dataclasses (SGD or Adam) are made by name, never guessed from the fields
    choices = [*classes().values(), *get_args(AnyOptimizer), *get_args(Schedule), *get_args(StepSchedule)]
    jsonargparse.set_parsing_settings(subclasses_enabled=choices, instantiate_subclass_spec_in_any=False)
    jsonargparse.set_parsing_settings(import_path_denylist=["*"], import_path_allowlist=["torchbayes"])
    allow(registered_paths())
    jsonargparse.set_loader("yaml", _bounded, exceptions=(yaml.YAMLError,))
    name = command.__name__.rstrip("_")
    parser = Parser(prog=f"torchbayes {name}", description=first_line(command), exit_on_error=False, allow_abbrev=False)
    if config:
        parser.add_argument("--config", action="config", help="YAML file with any of these options")
    if reads:
        parser.add_argument("--trust", action="store_true", help="run the code that a run or a file of settings names")
    return parser


def allow(paths: Iterable[str]) -> None:
    """Let options name classes of these import paths, which the user has named or trusts."""
    jsonargparse.set_parsing_settings(import_path_allowlist=[path.replace(":", ".") for path in paths])


def _bounded(text: str) -> Any:
    """Return the value of a YAML text of an option or a file, within the bounds of `check_yaml`."""
    check_yaml(text)
    return _LOAD(text)


def at_home(word: str) -> str:
    """Return an argument with the home folder instead of ~, which shells keep after an equals sign."""
    option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    return option + equals + (os.path.expanduser(value) if value == "~" or value.startswith("~/") else value)


def parse(parser: Parser, argv: list[str]) -> dict[str, Any]:
    """Return the options by name, with dataclasses made. Raises ValueError if one is unknown or does not fit."""
    try:
        chosen = parser.instantiate(parser.parse_args(argv)).as_dict()
    except (argparse.ArgumentError, ValueError, TypeError) as error:
        raise ValueError(one_line(error, _options(parser))) from error
    return {name: at_home(value) if isinstance(value, str) else value for name, value in chosen.items()}


def _options(parser: Parser) -> list[str]:
    """Return the options of a command, with the settings of a method that is chosen by its class."""
    options = [text for action in parser._actions for text in action.option_strings]
    method = parser.get_defaults().get("method")
    kind = None if method is None else method_named(str(method["class_path"]).rpartition(".")[2])
    return options + ([f"--method.{f.name}" for f in fields(kind)] if isinstance(kind, type) else [])


def add_problem(parser: Parser, usual: Usual) -> None:
    """Add the fields of `Problem` with the defaults of a data set."""
    parser.add_class_arguments(Problem, None, help="Data and model")
    parser.set_defaults({f.name: getattr(usual.problem, f.name) for f in fields(Problem)})


def with_hints(kind: type) -> type:
    """Return a class of settings whose annotations jsonargparse can read.

    It looks them up in the module of the class alone, which need not import those of inherited fields.
    """
    if is_dataclass(kind):
        # An annotation may name what only a type checker imports. The constructor is a wrapper, whose signature Python
        # takes from what it wraps.
        with suppress(NameError):
            inspect.unwrap(kind.__init__).__annotations__.update(get_type_hints(kind))
    return kind


def add_method(parser: Parser, name: str, method: Any, *, text: str) -> None:
    """Add the settings of one method, with its values as defaults, as `--NAME.SETTING`; `text` heads them."""
    parser.add_class_arguments(with_hints(type(method)), name, help=text)
    parser.set_defaults({f"{name}.{f.name}": getattr(method, f.name) for f in fields(method)})


def add_method_choice(parser: Parser, default: Any) -> None:
    """Add `--method`, which names a class of the library or that of `default`; its settings are `--method.SETTING`."""
    kinds = dict.fromkeys([*classes().values(), type(default)])
    jsonargparse.set_parsing_settings(subclasses_enabled=[*kinds])  # a user's class too is chosen by name
    parser.add_argument("--method", type=reduce(or_, map(with_hints, kinds)), default=default, help="how to infer")


def add_directory(parser: Parser, default: str | None) -> None:
    """Add `--directory`, required if `default` is None, and `--resume`."""
    parser.add_argument("--directory", type=str, required=default is None, default=default, help="where it goes")
    parser.add_argument("--resume", action="store_true", help="continue the run in the directory, with its settings")


def add_run(parser: Parser, contents: str = "a fit") -> None:
    """Add the directory of `contents`, which a command is about."""
    parser.add_argument("run", nargs="?", default=None, help=f"directory of {contents}")


def run_of(chosen: Mapping[str, Any], question: str, contents: str = "a fit") -> Path:
    """Return the directory that `add_run` asks for. Raises ValueError if it is not given; `question` says for what."""
    if chosen["run"] is None:
        raise ValueError(f"say {question}: the directory of {contents}.")
    return Path(chosen["run"])


def add_open(parser: Parser) -> None:
    """Add whether the page that a command writes is opened."""
    parser.add_argument("--open", action="store_true", help="open the page in the browser")


def add_draws(parser: Parser) -> None:
    """Add the number and the seed of functions drawn from a posterior."""
    text = "functions to draw, a multiple of the members; without it Laplace is linearised, in closed form"
    parser.add_argument("--draws", type=int | None, default=None, help=text)
    parser.add_argument("--seed", type=int, default=0, help="seed of the draws")


def usual_method(name: str | None, usual: Usual) -> Any:
    """Return the settings of a method for a data set: one member, or as many chains as a sampler has by itself.

    `name` is that of a class or entry point, or an import path; None for the method that the library chooses. An
    unknown one gives SWAG, and the parser reports it.
    """
    if name is None:
        assert usual.automatic is not None, "the library chooses where it has a choice"
        return usual.automatic().method
    target = _target(name)
    if target is None:
        return usual["swag"]
    if not isinstance(target, type):
        return target
    entry = next(iter(entries_of(target)), None)
    return plain_settings(target, usual) if entry is None or entry.alone else usual[entry.name]


def plain_method(name: str | None, default: Any) -> Any:
    """Return a method with the defaults of its class, which suit no data set in particular, or settings by their path.

    `default` if no name is given; it stands in for an unknown one too, which the parser reports.
    """
    target = None if name is None else _target(name)
    if target is None:
        return default
    return target() if isinstance(target, type) else target


def _target(name: str) -> Any:
    """Return the class or the settings that a name on the command line or in a configuration means; None if unknown."""
    target = method_named(name.removeprefix("torchbayes."))
    module, dot, attribute = name.rpartition(".")
    if target is None and dot and module != "torchbayes":  # the path of a class, as in configurations
        target = method_named(f"{module}:{attribute}")
    return target


def by_class(argv: list[str], name: str | None, method: Any) -> list[str]:
    """Return arguments that name a method by its class where the user named an import path or an entry point."""
    if name is None or path_of(name, GROUP) is None:
        return argv
    option, path = f"--method={name}", class_path(type(method))
    allow([path])
    words = [f"--method={path}" if word == option else word for word in argv]
    return [path if pair == ("--method", name) else pair[1] for pair in zip(["", *words], words, strict=False)]


def named_method(argv: list[str]) -> str | None:
    """Return the method that the arguments, or the configuration files among them, name; None if they name none.

    Raises PermissionError if a file names code by an import path that nobody has allowed.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--method")
    parser.add_argument("--config", action="append", default=[])
    parser.add_argument("--trust", action="store_true")
    seen, _ = parser.parse_known_args(argv)
    named = named_in(argv)
    file = _trusted(seen.config, resumed=False, trust=seen.trust, named=named)
    allow(named)
    return seen.method or _method_in(file)


def _method_in(file: Mapping[str, Any]) -> Any:
    """Return the class that the entries of a configuration file name as the method; None if they do not."""
    method = file.get("method")
    return method.get("class_path") if isinstance(method, Mapping) else method


def of_length(method: Any, steps: int | None) -> Any:
    """Return the method with chains of `steps` steps, unless None. Raises ValueError if it is no sampler."""
    if steps is None:
        return method
    if not method.needs.chain:
        raise ValueError(f"`--steps` is for samplers; the length of {type(method).__name__} is `--method.epochs`.")
    return replace(method, steps=steps)


_Settings = TypeVar("_Settings", bound="DataclassInstance")


def problem_of(chosen: Mapping[str, Any]) -> Problem:
    """Return the problem that the options describe."""
    return made_of(Problem, chosen, {})


def made_of(kind: type[_Settings], chosen: Mapping[str, Any], others: Mapping[str, Any]) -> _Settings:
    """Return settings with those fields that options have, and others in their place."""
    return kind(**{**{f.name: chosen[f.name] for f in fields(kind) if f.name in chosen}, **others})


def join(text: str | None, *, members: int, device: str) -> Ranks:
    """Return the processes that torchrun started, as a grid; this process alone without it.

    `text` is "data", "chains", or both numbers, as "2x4"; None leaves it to the number of members.
    """
    shares = {None: (None, None), "data": (None, 1), "chains": (1, None)}
    if text not in shares:
        if not re.fullmatch(r"\d+x\d+", text or ""):
            raise ValueError(f"`--ranks` must be data, chains, or two numbers such as 2x4; got {text!r}.")
        data, chains = map(int, str(text).split("x"))
        shares[text] = (data, chains)
    if text is not None and "WORLD_SIZE" not in os.environ:
        raise ValueError(
            "`--ranks` is for several processes. Start them with: torchrun --nproc-per-node 2 -m torchbayes fit ..."
        )
    return Ranks.grid(*shares[text], members=members, device=device)
