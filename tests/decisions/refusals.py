"""Nonsense for decisions: what must be refused, argument by argument."""

from __future__ import annotations

import torch

import torchbayes as tb
from tests.refusals.nonsense import FLAG, INF, NAN, OBJECT, OPEN_SHARE, POSITIVE, REAL, Case, maybe
from torchbayes import decisions
from torchbayes.data.base import Standardise

_PROBS = torch.full((40, 2), 0.5, dtype=torch.float64)
_PROBS[:, 0] += torch.linspace(0, 0.49, 40)
_PROBS[:, 1] -= torch.linspace(0, 0.49, 40)
_TARGETS = torch.zeros(40, dtype=torch.int64)
_COSTS = torch.tensor([[1.0, 0.0], [0.0, 5.0], [0.5, 0.5]])
_TABLES = (
    "text",
    3,
    NAN,
    torch.zeros(2),
    torch.zeros(3, 3),
    torch.zeros(0, 2),
    torch.zeros(2, 3, 2),
    torch.full((3, 2), NAN),
    torch.full((3, 2), INF),
    {},
    {"a": 1.0},
    {"a": {"0": 1.0, "1": 2.0}, "b": {"0": 1.0}},
    {"a": {"x": 1.0, "y": 2.0}},
    decisions.Linear(1.0, 1.0),
    lambda a, y: y,
)
_PREDICTION = (
    None,
    "text",
    3,
    NAN,
    tb.Point,
    torch.zeros(40),
    torch.zeros(0, 2),
    2 * _PROBS,
    torch.full((40, 2), NAN),
    [],
)
_NAMES = ("text", 3, NAN, ("a",), ("a", "a", "b", "c"), ("a", "a", "b"))
_UNITS = (3, "text", NAN, Standardise, torch.zeros(2))
_LOSSES = torch.zeros(40)
_SCORES = torch.linspace(0, 1, 40)
_ARRAY = (None, "text", 3, torch.zeros(0), torch.zeros(39), torch.zeros(2, 20), torch.full((40,), NAN))
_CERTIFIED = {"posterior": tb.Predictive.from_probs(_PROBS), "data": _TARGETS, "risk": 0.2}


def _rated(rate: float) -> decisions.Abstention:
    return decisions.abstain(tb.Predictive.from_probs(_PROBS), _TARGETS, rate=rate)


DECISIONS = {
    "decide": Case(
        tb.decide,
        lambda: {"prediction": _PROBS, "cost": _COSTS},
        {
            "prediction": _PREDICTION,
            "inputs": (3, torch.zeros(3, 2)),
            "cost": (None, *_TABLES),
            "actions": _NAMES,
            "classes": (*_NAMES, ("a", "b", "c")),
            "abstain": maybe(REAL),
            "rule": ("text", 3, NAN, decisions.Abstention),
            "targets": _UNITS,
        },
        named={
            "prediction": ("`prediction`", "`posterior`", "inputs"),
            "cost": ("`cost`", "`costs`"),
            "actions": ("`actions`",),
            "inputs": ("`inputs`",),
        },
    ),
    "decisions.abstain": Case(
        decisions.abstain,
        lambda: _CERTIFIED,
        {
            "posterior": (*OBJECT, tb.Point),
            "data": (None, "text", 3, NAN, torch.zeros(40), _TARGETS[:5], _TARGETS - 1, _TARGETS + 2),
            "risk": (*POSITIVE, 1.0, 2.0, 1e-3),
            "confidence": OPEN_SHARE,
            "cost": (*_TABLES, None, -_COSTS, torch.zeros(3, 2)),
            "classes": (*_NAMES, ("a", "b", "c")),
            "targets": _UNITS,
        },
        {"rate": "below, as `risk` is given"},
        named={
            "posterior": ("`posterior`", "prediction"),
            "data": ("targets", "class labels"),
            "risk": ("`risk`", "risk", "`limit`"),
            "cost": ("cost",),
        },
    ),
    "decisions.abstain.rate": Case(
        _rated, lambda: {"rate": 0.2}, {"rate": (*POSITIVE, 1.0, 1e-3)}, named={"rate": ("rate", "`limit`")}
    ),
    "decisions.Abstention": Case(
        decisions.Abstention,
        lambda: {"losses_N": _LOSSES, "scores_N": _SCORES, "limit": 0.2},
        {
            "losses_N": (*_ARRAY, _LOSSES - 1, _LOSSES + 2),
            "scores_N": _ARRAY,
            "limit": (*POSITIVE, 1.0, 1e-3),
            "confidence": maybe(OPEN_SHARE),
            "bound": POSITIVE,
            "drawn": ("text", 3, NAN),
            "cost": ("text", 3, NAN, decisions.Costs),
        },
        named={"limit": ("`limit`", "risk"), "scores_N": ("`scores_N`", "`losses_N`")},
    ),
    "decisions.Costs": Case(
        decisions.Costs,
        lambda: {"costs": _COSTS},
        {
            "costs": (None, "text", 3, NAN, torch.zeros(2), torch.zeros(0, 2), torch.full((3, 2), NAN)),
            "actions": (None, *_NAMES, ("abstain", "b", "c")),
            "classes": (None, *_NAMES),
        },
        named={"actions": ("`actions`", "action")},
    ),
    "decisions.Linear": Case(decisions.Linear, wrong={"under": POSITIVE, "over": POSITIVE}),
    "decisions.Squared": Case(decisions.Squared),
    "decisions.Within": Case(decisions.Within, wrong={"tolerance": POSITIVE}),
    "decisions.Exceeds": Case(
        decisions.Exceeds, wrong={"threshold": REAL, "miss": POSITIVE, "alarm": POSITIVE, "below": FLAG}
    ),
}
