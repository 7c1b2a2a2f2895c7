"""The command for adapters of language models: fit, predict, and ask for labels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchbayes.catalogue.config import read_config
from torchbayes.cli.options import Parser, add_directory, add_open, made_of, new_parser, parse
from torchbayes.cli.terminal import point_to, print_table, resumable, say
from torchbayes.native.process import short_path

if TYPE_CHECKING:
    from torchbayes.lora.settings import Settings

_SKIPPED: set[str | int] = {"base", "data", "targets"}


def lora(argv: list[str]) -> None:
    """Fit a posterior over an adapter of a language model that answers questions; predict, or ask for labels."""
    recorded = _recorded(argv)
    chosen = parse(_parser(recorded), argv)
    for path in chosen["config"] or ():  # which fills options, and not what is named by its place
        chosen["base"] = chosen["base"] or read_config(Path(str(path))).get("base")
    if chosen["acquire"] is not None:
        _acquire(chosen)
        return
    if chosen["data"] is None and chosen["predict"] is not None:
        _predict(chosen, None)
        return
    run = _fit(chosen, recorded)
    if chosen["predict"] is not None:
        _predict(chosen, run)


def _recorded(argv: Sequence[str]) -> dict[str, Any]:
    """Return what the run that is resumed was asked for; empty if none is."""
    if "--resume" not in argv:
        return {}
    from torchbayes.lora.run import read_run

    given = [following for word, following in pairwise(argv) if word == "--directory"]
    given += [word.partition("=")[2] for word in argv if word.startswith("--directory=")]
    if not given:
        raise ValueError("say which run to resume: --directory.")
    return read_run(Path(given[-1]))


def _parser(recorded: Mapping[str, Any]) -> Parser:
    from torchbayes.lora.methods import ALL, METHODS
    from torchbayes.lora.settings import Settings

    parser = new_parser(lora, config=True)
    parser.add_argument("base", nargs="?", type=str, default=None, help="folder of a language model, or its hub name")
    parser.add_argument("--data", type=str | None, default=None, help="questions: lines of JSON")
    parser.add_argument("--method", nargs="+", type=str, default=None, help=f"{', '.join(METHODS)}, or {ALL}")
    parser.add_class_arguments(Settings, None, skip=_SKIPPED, help="Adapter and training")
    targets = "layers of a fresh adapter, or all-linear; those of queries, values and outputs without it"
    parser.add_argument("--targets", nargs="*", type=str, default=[], help=targets)
    parser.add_argument("--predict", type=str | None, default=None, help="questions to answer with the run")
    parser.add_argument("--output", type=str | None, default=None, help="where answers go; DIRECTORY/answers.jsonl")
    parser.add_argument("--overwrite", action="store_true", help="replace what --output names")
    parser.add_argument("--acquire", type=int | None, default=None, help="questions that a round of BALD asks for")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of --acquire")
    parser.add_argument("--first", type=int, default=10, help="questions that --acquire begins with")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_open(parser)
    add_directory(parser, "lora")
    parser.set_defaults(recorded.get("settings", {}))
    return parser


def _settings(chosen: Mapping[str, Any]) -> Settings:
    from torchbayes.lora.settings import Settings

    missing = {"base": "base: torchbayes lora BASE --data FILE", "data": "questions: --data FILE.jsonl"}
    for name, question in missing.items():
        if chosen[name] is None:
            raise ValueError(f"say which {question}.")
    return made_of(Settings, chosen, {"targets": tuple(chosen["targets"])})


def _again(chosen: Mapping[str, Any], *more: str) -> list[str]:
    """Return the command that goes on with a run."""
    trusted = ["--trust"] if chosen["trust"] else []
    return ["torchbayes", "lora", "--directory", chosen["directory"], "--resume", *more, *trusted]


def _fit(chosen: Mapping[str, Any], recorded: Mapping[str, Any]) -> Any:
    """Fit, and print the numbers; return the run."""
    from torchbayes.lora import page, scores
    from torchbayes.lora.methods import DEFAULT, named
    from torchbayes.lora.run import fit

    asked = [] if chosen["method"] is None else named(chosen["method"])
    methods = [*dict.fromkeys([*recorded.get("methods", []), *asked])] or [DEFAULT]
    settings = _settings(chosen)
    with resumable(_again(chosen)):
        run = fit(settings, methods, directory=chosen["directory"], resume=chosen["resume"], trust=chosen["trust"])
        say("evaluating")
        worth = scores.score(run)
    scores.write(worth, run)
    written = page.write(run, worth)
    if chosen["json"]:
        print(json.dumps(scores.numbers(worth), indent=1))
    else:
        print_table(scores.table(worth))
        print_table(scores.interval_table(worth))
    point_to(written, opened=chosen["open"], name=None if chosen["json"] else "Report")
    return run


def _predict(chosen: Mapping[str, Any], run: Any) -> None:
    """Answer a file of questions."""
    from torchbayes.lora import answers
    from torchbayes.lora.methods import named
    from torchbayes.lora.run import load

    output = Path(chosen["output"] or Path(chosen["directory"]) / "answers.jsonl")
    if chosen["output"] is not None and output.exists() and not chosen["overwrite"]:
        raise ValueError(f"{output} is there already. Add --overwrite, or choose another --output.")
    methods = [] if chosen["method"] is None else named(chosen["method"])
    if len(methods) > 1:
        raise ValueError(f"one method predicts; got {', '.join(methods)}. Name it with --method.")
    method = methods[0] if methods else None
    if run is None:
        run = load(chosen["directory"], method=method, base=chosen["base"], trust=chosen["trust"])
    said = answers.predict(run, chosen["predict"], method=method)
    path = answers.write(output, said)
    print(json.dumps(said, indent=1) if chosen["json"] else f"Answers: {short_path(path)}")


def _acquire(chosen: Mapping[str, Any]) -> None:
    """Learn in rounds, and print the numbers of each."""
    from torchbayes.acquisition.rounds import Sizes
    from torchbayes.lora import page
    from torchbayes.lora.acquire import acquire
    from torchbayes.lora.methods import DEFAULT
    from torchbayes.report import acquisition

    settings, (method, *others) = _settings(chosen), chosen["method"] or [DEFAULT]
    if others:
        raise ValueError(f"--acquire takes one method; got {method}, {', '.join(others)}.")
    sizes = Sizes(chosen["first"], chosen["acquire"], chosen["rounds"])
    told = [f"--{name}={chosen[name]}" for name in ("acquire", "rounds", "first")]
    with resumable(_again(chosen, f"--method={method}", *told)):
        study = acquire(
            settings,
            method,
            sizes=sizes,
            directory=chosen["directory"],
            resume=chosen["resume"],
            trust=chosen["trust"],
        )
    written = page.write_rounds(study)
    if chosen["json"]:
        print(json.dumps([asdict(each) for each in study.rounds], indent=1))
    else:
        print_table(acquisition.round_table(study.rounds, row_label="questions"))
    point_to(written, opened=chosen["open"], name=None if chosen["json"] else "Report")
