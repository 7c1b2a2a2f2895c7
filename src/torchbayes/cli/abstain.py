"""The command `abstain`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torchbayes.cli.decisions import DRAWN, add_cost, cost_of
from torchbayes.cli.judge import labelled
from torchbayes.cli.options import Parser, add_draws, add_run, new_parser, parse
from torchbayes.cli.terminal import say
from torchbayes.predictive.linearised import preferred


def abstain(argv: list[str]) -> None:
    """Certify on held-out rows which new rows to decide on, and save the rule in the run, where `predict` uses it."""
    from torchbayes import decisions
    from torchbayes.catalogue.config import load_run
    from torchbayes.data.user.rows import shared
    from torchbayes.decisions.abstain import check_held_out
    from torchbayes.decisions.abstention import FILE

    chosen = parse(_parser(), argv)
    if chosen["run"] is None or chosen["held_out"] is None:
        raise ValueError("say which run, and on which rows: torchbayes abstain RUN HELD_OUT, such as held_out.csv.")
    run = Path(chosen["run"])
    path = run / FILE
    if path.exists() and not chosen["overwrite"]:
        raise ValueError(f"{path} is there already. Add --overwrite; a rule of several by the same rows promises less.")
    setup, posterior = load_run(run, trust=chosen["trust"])
    cost = cost_of(chosen)
    if cost is None and not setup.data.classes:
        raise ValueError(
            "numbers have no errors by themselves: say by --cost what one is, such as a file costs.yaml with the line "
            "`within: {tolerance: 5}`, which counts predictions that are off by more than 5."
        )
    inputs, targets = labelled(setup, Path(chosen["held_out"]))
    check_held_out(setup.data.train.inputs, inputs)
    if tested := shared(setup.data.test.inputs, inputs):
        say(f"Rows with the same inputs as a test row: {tested:,}. What a report says of the rule there is too good.")
    with setup.problem.threading():
        functions = preferred(posterior, chosen["draws"], seed=chosen["seed"])
        rule = decisions.abstain(
            functions,
            (inputs, targets),
            risk=chosen["risk"],
            rate=chosen["rate"],
            confidence=chosen["confidence"],
            cost="error" if cost is None else cost,
            classes=setup.data.classes or None,
            targets=setup.data.target_standardise,
        )
    rule = replace(rule, drawn={name: chosen[name] for name in DRAWN})
    rule.save(path)
    print(f"{rule.words}\nRule: {path}")


def _parser() -> Parser:
    parser = new_parser(abstain)
    add_run(parser)
    parser.add_argument("held_out", nargs="?", default=None, help="a file of rows that nothing has seen, with targets")
    parser.add_argument("--risk", type=float | None, default=None, help="promise this mean loss of accepted rows")
    parser.add_argument("--rate", type=float | None, default=None, help="promise this loss of accepted rows, per row")
    parser.add_argument("--confidence", type=float, default=0.9, help="probability of the promise of a risk")
    add_cost(parser)
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier rule")
    add_draws(parser)
    return parser
