"""Costs and rules of abstention in the shell, for `predict`, `report` and `abstain`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchbayes.checks import as_file
from torchbayes.cli.options import Parser
from torchbayes.cli.terminal import say

if TYPE_CHECKING:
    import numpy as np

    from torchbayes.catalogue.problem import Setup
    from torchbayes.decisions import Abstention
    from torchbayes.predictive.average import Predictive

DRAWN = ("draws", "seed")  # options that say which functions predict
_WORDS = ("error", "squared", "absolute")


def add_cost(parser: Parser) -> None:
    """Add `--cost`, by which rows are decided."""
    text = "what decisions cost: a CSV file of actions and classes, a YAML file of numbers; or error, squared, absolute"
    parser.add_argument("--cost", type=str | None, default=None, help=text)


def cost_of(chosen: Mapping[str, Any]) -> Any:
    """Return the cost that `--cost` names, None without it. Raises ValueError if the file holds none."""
    from torchbayes.catalogue.config import read_config
    from torchbayes.decisions import Costs
    from torchbayes.decisions.written import number_cost

    named = chosen["cost"]
    if named is None or named in _WORDS:
        return named
    path = Path(named)
    if path.suffix.lower() == ".csv":
        return Costs.read(path)
    if path.suffix.lower() not in {".yaml", ".yml", ".json"}:
        raise ValueError(f"`--cost` must be {', '.join(_WORDS)}, a .csv or a .yaml file; got {named!r}.")
    return number_cost(read_config(as_file(path)), named)


def rule_of(run: Path, setup: Setup, chosen: Mapping[str, Any]) -> Abstention | None:
    """Return the rule of abstention that was certified for a run; None if there is none, or it is for other costs.

    Raises ValueError if it was certified for other functions than those of the options, whose risk it does not promise.
    """
    from torchbayes.decisions import load
    from torchbayes.decisions.abstention import FILE, same_cost
    from torchbayes.decisions.costs import Costs
    from torchbayes.decisions.decide import ERROR
    from torchbayes.decisions.numbers import number_cost_of

    path = run / FILE
    if not path.is_file():
        return None
    rule, drawn, classes = load(path), {name: chosen[name] for name in DRAWN}, setup.data.classes
    if (cost := cost_of(chosen)) is not None:
        if classes and (isinstance(cost, Costs) or cost == ERROR):
            table = Costs.errors(classes) if cost == ERROR else cost
            asked: Any = table.for_classes(classes, len(classes))
        else:
            asked = cost if isinstance(cost, Costs) else number_cost_of(cost)
        if not same_cost(rule.cost, asked):
            say(f"The rule of abstention in {path} is for other costs than --cost, and is left out.")
            return None
    if rule.drawn is not None and rule.drawn != drawn:
        raise ValueError(
            f"the rule of abstention in {path} was certified for the functions of {_options(rule.drawn)}, and promises "
            f"nothing of those of {_options(drawn)}. Give the same options, or certify it again by `torchbayes abstain "
            f"--overwrite`."
        )
    return rule


def _options(drawn: Mapping[str, Any]) -> str:
    draws = "the default --draws" if drawn.get("draws") is None else f"--draws {drawn['draws']}"
    return f"{draws} and --seed {drawn.get('seed')}"


def deciding(
    run: Path, setup: Setup, chosen: Mapping[str, Any]
) -> Callable[[Predictive], Mapping[str, np.ndarray]] | None:
    """Return what gives the columns of decisions of a predictive; None if there are neither costs nor a rule."""
    from torchbayes.decisions.abstention import FILE
    from torchbayes.decisions.decide import decide
    from torchbayes.decisions.written import decision_columns

    cost = cost_of(chosen)
    rule = rule_of(run, setup, chosen)
    if rule is not None:
        say(f"Rule of abstention in {run / FILE}: {rule.words}")
    if rule is None and cost is None:
        return None

    classes, units = setup.data.classes or None, setup.data.target_standardise
    return lambda predictive: decision_columns(decide(predictive, cost=cost, rule=rule, classes=classes, targets=units))
