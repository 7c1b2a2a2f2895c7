"""Options: parsers built from the dataclasses they fill, with defaults that depend on the data set."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import jsonargparse
import yaml

from torchbayes.catalogue.config import CONFIG, Problem, problem_in, read_config
from torchbayes.catalogue.usual import Defaults, defaults
from torchbayes.catalogue.yaml_text import check_yaml
from torchbayes.cli.errors import one_line
from torchbayes.density import Ranks
from torchbayes.methods import HMC, MALA, MAP, NUTS, SGHMC, SGLD, SGNHT, SWA, SWAG, Laplace, OnlineLaplace, RandomWalk
from torchbayes.methods.optimise.optimizers import Optimizer
from torchbayes.methods.protocol import Method
from torchbayes.methods.sampler import Sampler
from torchbayes.methods.schedules import Schedule, StepSchedule

SAMPLERS = (HMC, NUTS, RandomWalk, MALA, SGLD, SGHMC, SGNHT)
METHODS = (MAP, SWA, SWAG, Laplace, OnlineLaplace, *SAMPLERS)
Parser = jsonargparse.ArgumentParser
_LOAD = jsonargparse.get_loader("yaml")


class Peek(NamedTuple):
    """The options that decide the defaults of the others, read before the parser is built.

    Attributes:
        argv: the arguments, with the configuration of a run that is resumed in front.
        data: name of the data set.
        usual: its settings, for the network that is asked for.
        method: name of the method.
    """

    argv: list[str]
    data: str
    usual: Defaults
    method: str


def peek(argv: list[str]) -> Peek:
    """Read the options that decide the defaults of the others, from the arguments or the configuration file.

    A fit that starts at another one is of that one's problem, unless something else is said.

    Args:
        argv: arguments of a command.

    Returns:
        What was found.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("--data", "--directory", "--method", "--network", "--start"):
        parser.add_argument(name)
    parser.add_argument("--config", action="append", default=[])
    parser.add_argument("--resume", action="store_true")
    seen, _ = parser.parse_known_args(argv)
    if seen.resume and not seen.config and seen.directory is not None:
        path = Path(seen.directory) / CONFIG
        if path.is_file():
            argv, seen.config = ["--config", str(path), *argv], [str(path)]
    file: dict[str, Any] = {}
    for name in seen.config:  # as the parser takes them: the last word counts
        file |= read_config(Path(str(name)))
    method = file.get("method")
    named = method.get("class_path") if isinstance(method, Mapping) else method
    started = {} if seen.start is None or file else read_config(Path(seen.start) / CONFIG)
    data = str(seen.data or file.get("data") or started.get("data") or Problem.data)
    usual = defaults(data)
    problem = problem_in(started) if started.get("data") == data else usual.problem
    network = str(seen.network or file.get("network") or problem.network)
    if network != problem.network:  # settings are those of one network
        problem = replace(problem, network=network, network_settings={})
    return Peek(argv, data, usual.of(problem), str(seen.method or named or "SWAG").rpartition(".")[2])


def new_parser(name: str, description: str, *, config: bool = False) -> Parser:
    """Return an empty parser.

    Args:
        name: of the command.
        description: one line.
        config: whether options can come from a YAML file.

    Returns:
        The parser; it raises `argparse.ArgumentError`.
    """
    # a choice among dataclasses (SGD or Adam) is then made by name, and never guessed from the fields
    choices = [*METHODS, *get_args(Optimizer), *get_args(Schedule), *get_args(StepSchedule)]
    jsonargparse.set_parsing_settings(subclasses_enabled=choices)
    jsonargparse.set_loader("yaml", _bounded, exceptions=(yaml.YAMLError,))
    parser = Parser(prog=f"torchbayes {name}", description=description, exit_on_error=False, allow_abbrev=False)
    if config:
        parser.add_argument("--config", action="config", help="YAML file with any of these options")
    return parser


def _bounded(text: str) -> Any:
    """Return what the text of an option or a file holds, which must not stand for more than it can hold."""
    check_yaml(text)
    return _LOAD(text)


def parse(parser: Parser, argv: list[str]) -> dict[str, Any]:
    """Return the options, dataclasses made.

    Args:
        parser: of the command.
        argv: its arguments.

    Returns:
        name -> value.

    Raises:
        ValueError: if an option is unknown or its value does not fit.
    """
    try:
        return parser.instantiate(parser.parse_args(argv)).as_dict()
    except (argparse.ArgumentError, ValueError, TypeError) as error:
        known = [text for action in parser._actions for text in action.option_strings]
        raise ValueError(one_line(error, known)) from error


def add_problem(parser: Parser, usual: Defaults) -> None:
    """Add the fields of `Problem` with the defaults of a data set.

    Args:
        parser: where.
        usual: the defaults.
    """
    parser.add_class_arguments(Problem, None, help="Data and model")
    parser.set_defaults({f.name: getattr(usual.problem, f.name) for f in fields(Problem)})


def add_method(parser: Parser, name: str, method: Any, *, text: str) -> None:
    """Add the settings of one method as `--NAME.SETTING`.

    Args:
        parser: where.
        name: prefix of the options.
        method: a method that holds the defaults.
        text: heading in the help.
    """
    parser.add_class_arguments(type(method), name, help=text)
    parser.set_defaults({f"{name}.{f.name}": getattr(method, f.name) for f in fields(method)})


def add_directory(parser: Parser, default: str | None) -> None:
    """Add where a run goes, and whether it is continued.

    Args:
        parser: where.
        default: directory; None makes the option required.
    """
    parser.add_argument("--directory", type=str, required=default is None, default=default, help="where it goes")
    parser.add_argument("--resume", action="store_true", help="continue the run in the directory, with its settings")


def usual_method(name: str, usual: Defaults) -> Method | Sampler:
    """Return the settings of a method for a data set: one member, or as many chains as a sampler has by itself.

    Args:
        name: of the method; one that is not known gives SWAG, and the parser says what is wrong.
        usual: settings of the data set.

    Returns:
        The settings.
    """
    plan = usual.ensemble.plan
    swag = replace(usual.multiswag, members=1)
    for sampler in SAMPLERS:
        if sampler.__name__ == name:
            rows: dict[str, Any] = {"batch_size": swag.batch_size} if sampler in {SGLD, SGHMC, SGNHT} else {}
            return sampler(plan=plan, **rows)
    if name == "SWA":
        return SWA(**{f.name: getattr(swag, f.name) for f in fields(SWA)})
    if name == "Laplace":
        return usual.laplace
    if name == "OnlineLaplace":
        single = usual.ensemble
        own: dict[str, Any] = {"epochs_of_descent": single.epochs, "batch_size": single.batch_size, "plan": plan}
        return OnlineLaplace(optimizer=single.optimizer, **own)
    return replace(usual.ensemble, members=1) if name == "MAP" else swag


def of_length(method: Method | Sampler, steps: int | None) -> Method | Sampler:
    """Return the method with the length that was asked for.

    Args:
        method: any.
        steps: length of a sampler's chains; None leaves it.

    Returns:
        The method.

    Raises:
        ValueError: if it is no sampler.
    """
    if steps is None:
        return method
    if not isinstance(method, Sampler):
        raise ValueError(f"`--steps` is for samplers; the length of {type(method).__name__} is `--method.epochs`.")
    return replace(method, steps=steps)


def problem_of(chosen: Mapping[str, Any]) -> Problem:
    """Return the problem that the options describe.

    Args:
        chosen: name -> value.

    Returns:
        The problem.
    """
    return Problem(**{f.name: chosen[f.name] for f in fields(Problem)})


def join(text: str | None, *, members: int, device: str) -> Ranks:
    """Return the processes that torchrun started, as a grid; this process alone without it.

    Args:
        text: "data", "chains", or both numbers, as "2x4"; None leaves it to the number of members.
        members: M.
        device: "cpu" or "cuda".

    Returns:
        The grid.

    Raises:
        ValueError: if the text is none of these, or does not fit the number of processes.
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
