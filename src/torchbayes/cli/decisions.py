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


def rule_of(run: Path) -> Abstention | None:
    """Return the rule of abstention that was certified for a run, if there is one."""
    from torchbayes.decisions import load
    from torchbayes.decisions.abstention import FILE

    return load(run / FILE) if (run / FILE).is_file() else None


def deciding(run: Path, setup: Setup, cost: Any) -> Callable[[Predictive], Mapping[str, np.ndarray]] | None:
    """Return what gives the columns of decisions of a predictive; None if there are neither costs nor a rule."""
    from torchbayes.decisions.abstention import FILE
    from torchbayes.decisions.decide import decide
    from torchbayes.decisions.written import decision_columns

    rule = rule_of(run)
    if rule is not None:
        say(f"Rule of abstention in {run / FILE}: {rule.words}")
    if rule is None and cost is None:
        return None

    classes, units = setup.data.classes or None, setup.data.target_standardise
    return lambda predictive: decision_columns(decide(predictive, cost=cost, rule=rule, classes=classes, targets=units))
