"""Lines for the shell: held against the real parser of the command line, the Makefile, and the lines before them."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

from tools.docs.examples import write_examples
from tools.docs.pages import Fault, Page

from torchbayes import data, experiments, networks
from torchbayes.catalogue.config import CONFIG, describe, entries, read_config, write_config
from torchbayes.catalogue.imports import is_path
from torchbayes.catalogue.loading import is_file
from torchbayes.catalogue.methods import classes
from torchbayes.catalogue.problem import Problem
from torchbayes.cli import abstain as abstaining
from torchbayes.cli import acquire as acquiring
from torchbayes.cli import certify as certifying
from torchbayes.cli import commands, judge, options
from torchbayes.cli import compare as comparing
from torchbayes.cli import forecast as forecasting
from torchbayes.cli import lora as adapting
from torchbayes.methods.optimise.optimizers import Optimizer
from torchbayes.methods.schedules import Schedule, StepSchedule

SHELLS = {"bash", "sh", "shell", "console"}
KINDS = {"methods", "compared", "data", "networks", "likelihoods", "priors", "corruptions", "foreign", "experiments"}
FOREIGN = {"--constraint"}  # options of pip


class _Seen(BaseException):
    """Stops a command once its options are known; no handler of errors takes it."""

    def __init__(self, chosen: Any) -> None:
        self.chosen = chosen


def check_commands(page: Page, root: Path, folder: Path) -> Iterator[Fault]:
    """Find lines for the shell that do not work, each block from top to bottom, the page in one empty folder.

    Args:
        page: the page.
        root: of the repository.
        folder: an empty folder, where the runs that the lines would leave are marked.

    Yields:
        One fault per line.
    """
    blocks = [block for block in page.blocks if block.info.split(" ")[0] in SHELLS]
    with _working_in(folder):
        if blocks:
            write_examples(folder)
        for block in blocks:
            for line, text in _lines(block.text):
                yield from (page.fault(block.line + line, fault) for fault in faults_of(text, root))
    for span in page.spans:
        yield from (page.fault(span.line, said) for said in faults_in_span(span.text, root))


@contextmanager
def _working_in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    sys.path.insert(0, str(folder))  # where the program finds modules of the user
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        os.chdir(before)


def _lines(code: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of every line, those joined that end in a backslash."""
    text = ""
    for number, line in enumerate(code.splitlines(), 1):
        text += line.removesuffix("\\") + " " if line.endswith("\\") else line
        if not line.endswith("\\"):
            yield number, text
            text = ""


def faults_of(line: str, root: Path) -> list[str]:
    """Return what is wrong with a line for the shell, run in the working folder."""
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    if not words:
        return []
    if words[0] == "torchrun" and "-m" in words:
        words = words[words.index("-m") + 1 :]
    if words[:2] == ["python", "-m"]:
        words = words[2:] if words[2] == "torchbayes" else words
    if words[0] == "torchbayes":
        return _said(lambda: run(words[1:]))
    return _elsewhere(words, root)


def _elsewhere(words: list[str], root: Path) -> list[str]:
    """Return what is wrong with a command that is not ours."""
    if words[0] == "make":
        wanted = [word for word in words[1:] if re.fullmatch(r"[a-z-]+", word)]
        targets = re.findall(r"^([a-z -]+):", (root / "Makefile").read_text(), flags=re.MULTILINE)
        known = {name for line in targets for name in line.split()}
        return [f"the Makefile has no target `{name}`" for name in wanted if name not in known]
    if words[0] == "python" and words[1] != "-c":
        name = words[1] if words[1] != "-m" else words[2].replace(".", "/")
        files = [place / name for place in (root, root / "experiments" / "src")]
        exists = any(file.exists() or file.with_suffix(".py").exists() for file in files)
        return [] if exists else [f"there is no {' '.join(words[:3])!r}"]
    return [] if words[0] in {"pip", "git", "python"} else [f"{words[0]!r} is no command the docs know"]


def _said(call: Callable[[], Any]) -> list[str]:
    try:
        call()
    except (ValueError, OSError, TypeError, KeyError) as error:
        return [str(error)]
    return []


def run(argv: list[str]) -> None:
    """Parse a command as the program does, check the names in it, and mark the run it would leave.

    Args:
        argv: the arguments after `torchbayes`.

    Raises:
        ValueError: if it does not parse, names something that does not exist, or needs a run that no earlier line
            creates.
    """
    if not argv or argv[0] not in commands.COMMANDS:
        if argv[:1] in (["--help"], ["--version"]):
            return
        raise ValueError(f"there is no command {' '.join(argv[:1])!r}")
    if argv[0] == "compare":
        _compare(argv[1:])
    else:
        chosen = _caught(argv, options.parse)
        {"fit": _fit, "acquire": _acquire, "tune": _tune}.get(argv[0], _other)(chosen)


def _caught(argv: list[str], then: Callable[..., Any]) -> Any:
    """Return what `then` makes of the parser and arguments of a command, which goes no further."""

    def stop(parser: Any, arguments: list[str]) -> Any:
        raise _Seen(then(parser, arguments))

    rooms = (commands, comparing, judge, certifying, abstaining, adapting, acquiring, forecasting)
    with ExitStack() as stack:
        for room in rooms:
            stack.enter_context(patch.object(room, "parse", stop))
        try:
            commands.COMMANDS[argv[0]](argv[1:])
        except _Seen as seen:
            return seen.chosen
    raise ValueError(f"`torchbayes {argv[0]}` reads no options")


def _fit(chosen: Mapping[str, Any]) -> None:
    method, folder = chosen["method"], Path(chosen["directory"])
    if not is_path(chosen["network"]):
        _among("network", chosen["network"], networks.names())
    if (folder / CONFIG).exists() and not chosen["resume"]:
        raise ValueError(f"an earlier line leaves a run in {folder} already")
    if chosen["start"] is not None:
        _need(chosen["start"], {"MAP", "SWA"})
    options.of_length(method, chosen["steps"])
    write_config(folder, {**entries(options.problem_of(chosen)), "method": describe(method)})


def _acquire(chosen: Mapping[str, Any]) -> None:
    write_config(Path(chosen["directory"]), acquiring.configuration(chosen))


def _tune(chosen: Mapping[str, Any]) -> None:
    run = Path(chosen["run"])
    write_config(Path(chosen["directory"] or run / "tuned"), _need(str(run), {"Laplace"}))


def _compare(argv: list[str]) -> None:
    comparison = comparing.settled(argv).comparison
    _among("network", comparison.problem.network, networks.names())
    if comparison.directory_of_reference:
        held = _need(comparison.directory_of_reference)
        names = [f.name for f in fields(Problem) if f.name not in {"device", "threads"}]  # in order: the first is said
        for name in names:
            if held[name] != getattr(comparison.problem, name):
                raise ValueError(
                    f"the reference {comparison.reference} has {name} {held[name]}; "
                    f"the comparison has {getattr(comparison.problem, name)}"
                )


def _other(chosen: Mapping[str, Any]) -> None:
    samplers = {name for name, kind in classes().items() if kind().needs.chain}
    if chosen.get("run"):
        _need(chosen["run"], samplers if "inputs" in chosen else None)
        if not is_file(chosen.get("data") or "digits"):
            _among("data set", chosen.get("data"), data.ood_names())
        if "new" in chosen and not Path(str(chosen["new"])).exists():
            raise ValueError(f"the page does not say where {chosen['new']} comes from")
    for name in chosen.get("networks", ()):
        _among("network", name, {*networks.names(), "cnn"})
    if "seeds" in chosen and "scale" in chosen and not chosen["list"]:
        _among("scale", chosen["scale"], experiments.get(str(chosen["name"])).recipes)
    _among("kind", chosen.get("kind"), KINDS)


def _need(folder: str, methods: set[str] | None = None) -> dict[str, Any]:
    """Return the configuration of a run that an earlier line leaves.

    Raises:
        ValueError: if none does, or its method is another one.
    """
    if not (Path(folder) / CONFIG).is_file():
        raise ValueError(f"no earlier line of the page leaves a run in {folder!r}")
    config = read_config(Path(folder) / CONFIG)
    kind = config["method"]["class_path"].rpartition(".")[2]
    if methods is not None and kind not in methods:
        raise ValueError(f"{folder!r} is a run of {kind}; it must be one of {', '.join(sorted(methods))}")
    return config


def _among(what: str, name: Any, known: Any) -> None:
    if name is not None and name not in known:
        raise ValueError(f"there is no {what} {name!r}")


def faults_in_span(text: str, root: Path) -> list[str]:
    """Return what is wrong with inline code if it is a command, a part of one, or an option."""
    words = text.split()
    if not words or "\n" in text:
        return []
    if words[0].startswith("--"):
        return [f"no command has the option {word}" for word in words if word.startswith("--") and not _option(word)]
    if words[0] in {"make", "python"} and len(words) > 1:
        return _elsewhere(words, root)
    if words[0] != "torchbayes" or len(words) == 1:
        return []
    if words[1].startswith("--"):
        return []
    said = [f"there is no command {w!r}" for w in _commands_in(text) if w not in commands.COMMANDS]
    return said or [
        f"`torchbayes {words[1]}` has no option {word}"
        for word in words
        if word.startswith("--") and not _option(word, words[1])
    ]


def _commands_in(text: str) -> list[str]:
    names = re.match(r"torchbayes ((?:[\w]+)(?: \| \w+)*)", text)
    return [] if names is None or names[1].isupper() else names[1].split(" | ")


def _option(word: str, command: str | None = None) -> bool:
    """Return whether a command, or any, has an option; the settings of methods count."""
    if word in FOREIGN:
        return True
    choices = [*classes().values(), *get_args(Optimizer), *get_args(Schedule), *get_args(StepSchedule)]
    settings = {field.name for choice in choices for field in fields(choice)}
    for name in commands.COMMANDS if command is None else (command,):
        known = _options_of(name)
        above, _, last = word.rpartition(".")
        if word in known or (above.endswith("_settings") and above in known):  # of a user's own, or of any kind
            return True
        if last in settings and any(above == k or above.startswith(f"{k}.") for k in known):
            return True
    return word in {"--help", "--version"}


@cache
def _options_of(command: str) -> set[str]:
    needed = {"fit": ["--directory", "x"]}.get(command, [])
    return _caught([command, *needed], lambda parser, _: {o for a in parser._actions for o in a.option_strings})
