"""What a page says first: never praise of what should not be used, and every warning of the fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from tests.oracles import normal

import torchbayes as tb
from torchbayes.catalogue.problem import Problem
from torchbayes.comparison.certainty import certainties
from torchbayes.comparison.report import findings
from torchbayes.comparison.scores import Outcome
from torchbayes.comparison.settings import Comparison
from torchbayes.comparison.tables import CONSTANT, is_worse, table

COMPARISON = Comparison(
    Problem("two_moons", "mlp", {"hidden": [4]}), {"single": tb.MAP(epochs=1), "ensemble": tb.MAP(2, epochs=1)}
)
TARGETS = normal(60, 1)


def outcome(noise: float, *, scale: float = 0.5, problems: tuple[str, ...] = ()) -> Outcome:
    mean = TARGETS + noise * normal(60, 1, seed=2)
    predictive: Any = tb.Predictive(mean[None], tb.likelihoods.Gaussian(scale))
    return Outcome(predictive, tb.evaluate(predictive, TARGETS), problems=problems)


def of(**outcomes: Outcome) -> dict[str, Outcome]:
    sure = certainties({name: each.clean for name, each in outcomes.items()})
    return {name: replace(each, certainty=sure[name]) for name, each in outcomes.items()}


BASE = outcome(0.0, scale=1.0)
BASE = replace(BASE, clean=tb.evaluate(tb.Predictive(torch.zeros(1, 60, 1), tb.likelihoods.Gaussian(1.0)), TARGETS))


def test_the_best_is_named_with_what_is_not_different() -> None:
    said = findings(COMPARISON, of(single=outcome(0.5), ensemble=outcome(0.1)), BASE, unit="EUR")
    assert said.startswith("Test set: best NLL (nats) by deep ensemble, ")
    assert "best RMSE (EUR) by deep ensemble, " in said
    assert "Warning" not in said
    alike = findings(COMPARISON, of(single=outcome(0.5), ensemble=outcome(0.5)), BASE)
    assert "is not significantly different" in alike


def test_what_is_worse_than_a_constant_is_not_praised() -> None:
    outcomes = of(single=outcome(1.0, scale=0.1), ensemble=outcome(1.2, scale=0.1))
    said = findings(COMPARISON, outcomes, BASE)
    assert "best" not in said.partition("No method is the best here")[0]
    assert "deep ensemble are worse than a constant prediction" in said
    assert all(is_worse(each, BASE) for each in outcomes.values())
    rows = table(outcomes, base=BASE).rows
    assert [row[0] for row in rows] == ["single network ✗", "deep ensemble ✗", CONSTANT]


def test_warnings_of_fits_are_said_and_their_scores_are_not_the_best() -> None:
    doubted = outcome(0.1, problems=("its noise is far too small",))
    outcomes = of(single=doubted, ensemble=outcome(0.5))
    said = findings(COMPARISON, outcomes, BASE)
    assert said.startswith("Test set: best NLL (nats) by deep ensemble, ")
    assert "Warning: single network should not be trusted: its noise is far too small." in said
    assert [row[0] for row in table(outcomes).rows] == ["single network !", "deep ensemble"]
