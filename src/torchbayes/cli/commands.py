"""The commands."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import torchbayes as tb
from torchbayes.assess.approximation import DRAWS, Approximating
from torchbayes.catalogue.imports import foreign_code, named_in
from torchbayes.catalogue.methods import METHODS, method_names
from torchbayes.catalogue.models import known
from torchbayes.catalogue.problem import Problem
from torchbayes.checks import nearest
from torchbayes.cli.abstain import abstain
from torchbayes.cli.acquire import acquire
from torchbayes.cli.certify import certify
from torchbayes.cli.compare import compare, evidence
from torchbayes.cli.forecast import forecast
from torchbayes.cli.judge import evaluate, predict, report, tune
from torchbayes.cli.lora import lora
from torchbayes.cli.options import (
    add_directory,
    add_method_choice,
    add_open,
    add_problem,
    add_run,
    at_home,
    by_class,
    first_line,
    join,
    new_parser,
    of_length,
    parse,
    peek,
    problem_of,
    run_of,
    usual_method,
)
from torchbayes.cli.terminal import (
    Interrupted,
    debugging,
    is_foreseen,
    one_line,
    plain_warnings,
    point_to,
    print_names,
    print_table,
    reported,
    resumable,
    say,
    say_notes,
)
from torchbayes.posteriors.locks import folder_in


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, with the arguments of the process if `argv` is None.

    Returns the exit code: 0, 1 after an unforeseen error, 2 after a user's error, 130 after Ctrl-C.
    """
    arguments = [at_home(argument) for argument in (sys.argv[1:] if argv is None else argv) if argument != "--debug"]
    if "" not in sys.path and ("--trust" in arguments or named_in(arguments)):
        sys.path.append("")  # the user's modules are found in this folder, after all others
    debug = debugging() or len(arguments) < len(sys.argv[1:] if argv is None else argv)
    try:
        with plain_warnings():
            return _dispatch(arguments)
    except SystemExit as finished:  # --help and --print_config
        return finished.code if isinstance(finished.code, int) else int(bool(finished.code))
    except (KeyboardInterrupt, Interrupted) as stopped:
        print(f"\nStopped. {stopped}".rstrip(), file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if debug:
            traceback.print_exc()
        foreseen = is_foreseen(error)
        print(f"torchbayes: {one_line(error) if foreseen else reported(error, arguments)}", file=sys.stderr)
        return 2 if foreseen else 1


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in {"-h", "--help"}:
        print(_usage())
        return 0 if argv else 2
    if argv[0] == "--version":
        print(f"torchbayes {tb.__version__}")
        return 0
    if argv[0] not in COMMANDS:
        raise ValueError(f"there is no command {argv[0]!r}. {nearest(argv[0], COMMANDS)}")
    if argv[0] != "fit" and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(f"`{argv[0]}` runs in one process; torchrun is for `fit`. Start it without torchrun.")
    COMMANDS[argv[0]](argv[1:])
    return 0


def _usage() -> str:
    return "\n".join([
        "usage: torchbayes COMMAND [options]      torchbayes COMMAND --help      torchbayes --version",
        "       torchbayes --debug COMMAND ...    shows the traceback of an error, as TORCHBAYES_DEBUG=1 does",
        "",
        *(f"  {name:<10} {first_line(command)}" for name, command in COMMANDS.items()),
        "",
        "Start with: torchbayes compare --data digits",
    ])


def _chosen(problem: Problem, method: Any) -> str:
    """Return a sentence on a model and a method that the library chose."""
    from torchbayes.report.words import likelihood_of, prior_of, with_settings

    usual = type(method)()
    settings = {f.name: getattr(method, f.name) for f in fields(method)}
    changed = {name: value for name, value in settings.items() if value != getattr(usual, name) or name == "chains"}
    return (
        f"Chosen, as nothing was asked for: {with_settings(type(method).__name__, changed)} on the network "
        f"{with_settings(problem.network, problem.network_settings)}; likelihood {likelihood_of(problem)}; prior "
        f"{prior_of(problem)}."
    )


def fit(argv: list[str]) -> None:
    """Fit one method and save the posterior in a run directory."""
    from torchbayes.catalogue.config import describe, entries, fit_run

    seen = peek(argv, single=True)
    parser = new_parser(fit, config=True)
    add_problem(parser, seen.usual)
    default = usual_method(seen.method, seen.usual)
    add_method_choice(parser, default)
    parser.add_argument("--start", type=str | None, default=None, help="directory of a fit whose weights it starts at")
    parser.add_argument("--seed", type=int, default=0, help="seed of initialisation, data order and noise")
    parser.add_argument("--steps", type=int | None, default=None, help="length of a sampler's chains; more go on")
    parser.add_argument("--ranks", type=str | None, default=None, help="under torchrun: data, chains, or both as 2x4")
    add_directory(parser, None)
    chosen = parse(parser, by_class(seen.argv, seen.method, default))
    directory, problem = Path(chosen["directory"]), problem_of(chosen)
    method = of_length(chosen["method"], chosen["steps"])
    start = None if chosen["start"] is None else Path(chosen["start"])
    trusted = ["--trust"] if foreign_code({**entries(problem), "method": describe(method)}) else []
    shares = 1 if method.needs.coupled else method.members  # most shares of members
    with (
        resumable(["torchbayes", "fit", "--directory", str(directory), "--resume", *trusted]),
        join(chosen["ranks"], members=shares, device=problem.place) as ranks,
    ):
        setup = problem.setup()  # after each process has its device
        if ranks.first:
            say_notes(setup.data)
            if seen.method is None:
                say(f"  {_chosen(problem, method)}")
        posterior = fit_run(
            setup, method, directory, start=start, seed=chosen["seed"], resume=chosen["resume"], ranks=ranks
        )
        if ranks.first:
            print(f"Posterior: {directory / 'posterior.safetensors'}")
        if posterior.still:
            raise ValueError(
                f"no chain moved: all draws are the same, as {type(method).__name__} rejected every proposal or took "
                f"steps too small to tell. They are saved all the same, and mean nothing. Set another "
                f"`--method.step_size`, in another directory."
            )


def diagnose(argv: list[str]) -> None:
    """Say whether the chains of a sampler have converged, or how close a Gaussian is to the posterior; write a report.

    A sampler that still runs, or was killed, is judged by its draws so far.
    """
    from torchbayes.catalogue.config import CONFIG, load_run, read_config
    from torchbayes.comparison.reference import ROWS, spread
    from torchbayes.report import diagnosis as page

    parser = new_parser(diagnose)
    add_run(parser, "a fit by HMC, SGLD, VI, Laplace, ...")
    parser.add_argument("--inputs", type=int, default=ROWS, help="test rows at which functions are compared")
    parser.add_argument("--directory", type=str | None, default=None, help="where the report goes; RUN/diagnosis")
    parser.add_argument("--draws", type=int, default=DRAWS, help="where there is a density: a pass of the rows each")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_open(parser)
    chosen = parse(parser, argv)
    run = run_of(chosen, "what to diagnose")
    if chosen["inputs"] < 1:
        raise ValueError(f"`--inputs` must be at least 1; got {chosen['inputs']}.")
    setup, posterior = load_run(run, unfinished=True, trust=chosen["trust"])
    if isinstance(posterior, Approximating):
        _approximation(setup, posterior, run=run, chosen=chosen)
        return
    inputs, targets = spread(setup.data.test, chosen["inputs"])
    with setup.problem.threading():
        diagnosis = tb.diagnose(posterior, inputs, targets, log=run)  # type: ignore[arg-type]
    settings = read_config(run / CONFIG)
    kind, length = settings["method"]["class_path"].rpartition(".")[2], settings["method"]["init_args"].get("steps")
    taken = int(diagnosis.record.step_R[-1]) if diagnosis.record else None
    done = f" {taken:,} of {length:,} iterations are done." if taken is not None and length else ""
    report = page.write_diagnosis(
        Path(chosen["directory"] or folder_in(run, "diagnosis")),
        diagnosis,
        title=f"{kind} on {setup.data.name}: have the chains converged?",
        lead=f"{setup.data.source}: {len(setup.data.train.inputs):,} training rows. Network: {setup.problem.network}, "
        f"{setup.model.layout.size:,} weights.{done} Functions are compared at {len(inputs):,} test rows.",
        settings=settings,
    )
    if chosen["json"]:
        print(json.dumps(page.numbers(diagnosis), indent=1))
    else:
        print_table(page.space_table(diagnosis, caption=page.caption(diagnosis)), narrow=page.space_tables(diagnosis))
        print("\n".join(page.remarks(diagnosis)))
    point_to(report, opened=chosen["open"], name=None if chosen["json"] else "Report")


def _approximation(setup: Any, posterior: Any, *, run: Path, chosen: Mapping[str, Any]) -> None:
    """Print how close a posterior with a density is, and write its report."""
    from torchbayes.catalogue.config import CONFIG, read_config
    from torchbayes.report import diagnosis as page

    with setup.problem.threading():
        approximation = tb.diagnose(posterior, setup.data.train.inputs, setup.data.train.targets, draws=chosen["draws"])
    settings = read_config(run / CONFIG)
    kind = settings["method"]["class_path"].rpartition(".")[2]
    report = page.write_approximation(
        Path(chosen["directory"] or folder_in(run, "diagnosis")),
        approximation,
        title=f"{kind} on {setup.data.name}: is it close to the posterior?",
        lead=f"{setup.data.source}. Network: {setup.problem.network}.",
        settings=settings,
    )
    numbers = json.dumps(page.approximation_numbers(approximation), indent=1)
    print(numbers if chosen["json"] else approximation.words)
    point_to(report, opened=chosen["open"], name=None if chosen["json"] else "Report")


def reproduce(argv: list[str]) -> None:
    """Put a claim from a paper to the test, and write a page with figure, numbers and verdict."""
    from torchbayes import experiments

    parser = new_parser(reproduce, reads=False)
    parser.add_argument("name", nargs="?", default=None, help="experiment")
    parser.add_argument("--list", action="store_true", help="list the experiments")
    parser.add_argument(
        "--scale",
        default="small",
        help="small (minutes on 2 cores), paper (for a GPU), or another that the experiment has",
    )
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--directory", default=None, help="where everything goes")
    add_open(parser)
    chosen = parse(parser, argv)
    if chosen["list"]:
        print_names(experiments.names())
        return
    if (name := chosen["name"]) is None:
        raise ValueError(f"say which experiment: {', '.join(experiments.names())}.")
    if chosen["seeds"] == 1:
        say("One seed cannot decide: the page will have figure and numbers, and the verdict will be inconclusive.")
    with resumable(["torchbayes", "reproduce", *argv]):
        page = experiments.reproduce(name, scale=chosen["scale"], seeds=chosen["seeds"], directory=chosen["directory"])
    verdict = json.loads(page.with_name("results.json").read_text(encoding="utf-8"))["verdict"]
    print(f"{verdict['outcome'].capitalize()}. {verdict['reason']}")
    point_to(page, opened=chosen["open"], name="Page")


def list_(argv: list[str]) -> None:
    """List methods, data sets, networks, likelihoods, priors, corruptions, foreign sets and experiments, one line each.

    With the name of a kind, only that kind is listed.
    """
    kinds: dict[str, Callable[[], dict[str, str]]] = {
        "methods": method_names,
        "compared": lambda: {entry.name: f"{entry.label}: {entry.line}. {entry.cost}" for entry in METHODS.values()},
        "data": lambda: _module("catalogue.loading").data_names(),
        "networks": lambda: known("network"),
        "likelihoods": lambda: known("likelihood"),
        "priors": lambda: known("prior"),
        "corruptions": lambda: dict.fromkeys(_module("data").CORRUPTIONS, "of images, severities 1 to 5"),
        "foreign": lambda: _module("data").ood_names(),
        "experiments": lambda: _module("experiments").names(),
    }
    parser = new_parser(list_, reads=False)
    parser.add_argument("kind", nargs="?", default=None, help=f"only one of: {', '.join(kinds)}")
    kind = parse(parser, argv)["kind"]
    if kind is not None and kind not in kinds:
        raise ValueError(f"there is nothing called {kind!r} to list. {nearest(kind, kinds)}")
    for name in kinds if kind is None else (kind,):
        if kind is None:
            print(f"{name}:")
        try:
            print_names(kinds[name]())
        except ModuleNotFoundError as missing:  # the experiments are a distribution of their own
            print(f"  {missing}")


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "compare": compare,
    "fit": fit,
    "tune": tune,
    "evaluate": evaluate,
    "predict": predict,
    "abstain": abstain,
    "evidence": evidence,
    "diagnose": diagnose,
    "certify": certify,
    "report": report,
    "acquire": acquire,
    "forecast": forecast,
    "lora": lora,
    "reproduce": reproduce,
    "list": list_,
}


def _module(name: str) -> Any:
    return import_module(f"torchbayes.{name}")
