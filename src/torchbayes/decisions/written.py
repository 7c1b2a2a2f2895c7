"""Decisions as columns of a table, and costs by the names of files and settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from torchbayes.checks import check_name, seen
from torchbayes.decisions.costs import ABSTAIN
from torchbayes.decisions.decide import Decisions
from torchbayes.decisions.numbers import NUMBER_COSTS, NumberCost


def decision_columns(decisions: Decisions) -> dict[str, np.ndarray]:
    """Return decision, expected cost and its spread over draws, name -> (N,); of several numbers a column for each."""
    labels = decisions.labels
    if decisions.actions is None and decisions.abstained.any():
        labels = np.where(decisions.abstained.numpy(), ABSTAIN, labels.astype(object))
    values = {"decision": labels, "expected_cost": decisions.expected_cost.numpy()}
    if len(decisions.by_draw) > 1:
        values["expected_cost_sd"] = decisions.spread.numpy()
    if decisions.action.ndim == 1:
        return values
    return {f"{name}[{k}]": column for name, each in values.items() for k, column in enumerate(each.T)}


def number_cost(settings: Any, source: str) -> NumberCost:
    """Return the cost that a file of settings names: `linear: {under: 3, over: 1}`.

    A ValueError or TypeError, which begins with the source, if there is none.
    """
    if not isinstance(settings, Mapping) or len(settings) != 1:
        raise ValueError(f"{source} must name one cost, such as `linear: {{under: 3, over: 1}}`; got {seen(settings)}.")
    ((name, fields),) = settings.items()
    check_name(f"cost in {source}", name, NUMBER_COSTS)
    if not isinstance(fields, Mapping | None):
        raise TypeError(f"{source} must have settings of {name!r} by name; got {seen(fields)}.")
    kind, known = NUMBER_COSTS[name], [field.name for field in dataclasses.fields(NUMBER_COSTS[name])]
    for setting in fields or ():
        if setting not in known:
            has = f"Its settings are {', '.join(known)}" if known else "It has none"
            raise ValueError(f"{source}: {name!r} has no setting {setting!r}. {has}; numbers have decimal points.")
    try:
        return kind(**{setting: _number(value) for setting, value in (fields or {}).items()})
    except (TypeError, ValueError) as error:
        raise ValueError(f"{source}: {error}") from None


def _number(value: Any) -> Any:
    """Return a number that YAML takes for text, such as 1e9."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value
