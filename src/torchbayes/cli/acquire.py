"""The command for active learning: a study where labels are known, or rows to label where they are not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torchbayes.catalogue.config import CONFIG, describe, entries, write_config
from torchbayes.catalogue.imports import foreign_code
from torchbayes.cli.options import (
    add_directory,
    add_method_choice,
    add_problem,
    by_class,
    named_method,
    new_parser,
    parse,
    peek,
    plain_method,
    problem_of,
)
from torchbayes.cli.terminal import print_table, resumable, say, say_notes
from torchbayes.methods.optimise.swag import SWAG
from torchbayes.native.process import full_path, short_path

_ASKED = ("scores", "first", "acquire", "rounds", "seeds", "seed", "warm", "draws", "pool", "test")
_BY_TASK = {"classification": ["bald", "margin"], "regression": ["bald", "variance"]}


def acquire(argv: list[str]) -> None:
    """Choose rows to label: write those of a pool, or compare ways to choose where labels are known."""
    chosen = _parsed(argv)
    chosen |= {name: str(full_path(chosen[name])) for name in ("pool", "test") if chosen[name] is not None}
    problem, method, directory = problem_of(chosen), chosen["method"], Path(chosen["directory"])
    config = configuration(chosen)
    trusted = ["--trust"] if foreign_code(config) else []
    with resumable(["torchbayes", "acquire", "--directory", str(directory), "--resume", *trusted]):
        if chosen["pool"] is not None:
            _label(chosen, problem, config)
            return
        done, setup = _studied(chosen, problem, config)
    from torchbayes.report import acquisition as page

    tables = [page.class_table(done.classes, setup.data.classes)] if done.classes else []
    written = page.write_rounds(
        directory,
        done.rounds,
        title=f"Active learning on {setup.data.name}",
        lead=f"{setup.data.source}: {len(setup.data.train.inputs):,} rows to choose from, "
        f"{len(setup.data.test.inputs):,} test rows. {type(method).__name__}. {'. '.join([*done.problems, ''])}",
        tables=tables,
        settings=config,
    )
    if chosen["json"]:
        print(json.dumps([asdict(each) for each in done.rounds], indent=1))
        return
    print_table(page.round_table(done.rounds))
    print_table(page.gain_table(done.rounds))
    print(f"Report: {short_path(written)}")


def configuration(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a directory records of the options."""
    asked = {name: chosen[name] for name in _ASKED}
    return {**entries(problem_of(chosen)), "method": describe(chosen["method"]), **asked}


def _parsed(argv: list[str]) -> dict[str, Any]:
    """Return the options by name."""
    seen = peek(argv)
    parser = new_parser(acquire, config=True)
    add_problem(parser, seen.usual)
    name = named_method(seen.argv)
    default = plain_method(name, SWAG(members=5))  # lengths for the whole data do not suit a few rows of them
    add_method_choice(parser, default)
    parser.add_argument(
        "--pool", type=str | None, default=None, help="CSV file of rows without labels, of which to ask"
    )
    parser.add_argument("--test", type=str | None, default=None, help="with --pool: CSV file of rows for the numbers")
    scores = "bald, batchbald, epig, variance, entropy, margin; with --pool the first counts"
    parser.add_argument("--scores", nargs="+", type=str, default=None, help=scores)
    parser.add_argument("--first", type=int, default=10, help="rows at the start of a study")
    parser.add_argument("--acquire", type=int, default=10, help="rows of a round")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of a study")
    parser.add_argument("--seeds", type=int, default=3, help="how often a study is done")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--warm", type=bool, default=False, help="begin fits at the networks of the round before")
    parser.add_argument("--draws", type=int | None, default=None, help="functions that scores compare; about 100")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_directory(parser, None)
    return parse(parser, by_class(seen.argv, name, default))


def _studied(chosen: Mapping[str, Any], problem: Any, config: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return a study, and its problem with data."""
    from torchbayes.acquisition import Plan, Sizes, study

    if chosen["test"] is not None:
        raise ValueError("`--test` goes with `--pool`; a study has the test rows of its data.")
    setup, directory = problem.setup(), Path(chosen["directory"])
    say_notes(setup.data)
    plan = Plan(
        Sizes(chosen["first"], chosen["acquire"], chosen["rounds"]),
        tuple(chosen["scores"] or _BY_TASK[setup.data.task]),
        seeds=chosen["seeds"],
        seed=chosen["seed"],
        warm=chosen["warm"],
        draws=chosen["draws"],
        target_scale=setup.target_scale,
    )
    with problem.threading():
        done = study(
            setup.model,
            tuple(setup.data.train),
            chosen["method"],
            test=tuple(setup.data.test),
            plan=plan,
            directory=directory,
            resume=chosen["resume"],
        )
    write_config(directory, config)
    return done, setup


def _label(chosen: Mapping[str, Any], problem: Any, config: Mapping[str, Any]) -> None:
    """Write rows to label, after reading those that were labelled before."""
    from torchbayes.comparison.labelling import Labelling, advance
    from torchbayes.report import acquisition as page

    scores, directory = chosen["scores"] or ["bald"], Path(chosen["directory"])
    if len(scores) > 1:
        raise ValueError(f"rows are chosen by one score; got {', '.join(scores)}. Name it with --scores.")
    test = None if chosen["test"] is None else Path(chosen["test"])
    again = {"draws": chosen["draws"], "seed": chosen["seed"]}
    asked = Labelling(problem, chosen["method"], Path(chosen["pool"]), test, scores[0], chosen["acquire"], **again)
    step = advance(asked, directory, resume=chosen["resume"])
    if not (directory / CONFIG).is_file():
        write_config(directory, config)
    say_notes(step.setup.data)
    for sentence in _balance(step.setup.data):
        say(sentence)
    written = page.write_rounds(
        directory,
        step.rounds,
        title=f"Active learning on {Path(problem.data).name}",
        lead=f"{step.rounds[-1].labelled:,} rows have labels. The next are in {step.path}.",
        settings=config,
    )
    if chosen["json"]:
        print(json.dumps([asdict(each) for each in step.rounds], indent=1))
        return
    print_table(page.round_table(step.rounds))
    print(
        f"Rows to label: {short_path(step.path)}\nReport: {short_path(written)}\nFill in the last column, then: "
        f"torchbayes acquire --directory {directory} --resume"
    )


_FEW = 0.2  # of an equal share: a class with fewer rows is told


def _balance(data: Any) -> Sequence[str]:
    """Return in sentences which classes have few rows among those with labels."""
    if not data.classes:
        return []
    counts = data.train.targets.bincount(minlength=data.num_classes).tolist()
    few = [f"{data.classes[k]} ({n})" for k, n in enumerate(counts) if n < _FEW * sum(counts) / len(counts)]
    return [f"Few of the {sum(counts)} rows with labels are of {', '.join(few)}."] if few else []
