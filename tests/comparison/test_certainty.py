"""How sure scores are: the library's own intervals and differences, and which methods share the mark of the best."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.laws.cases import normal

import torchbayes as tb
from torchbayes.comparison.certainty import Certainty, certainties, resampled_detection
from torchbayes.comparison.scores import Outcome
from torchbayes.comparison.tables import certainty_table, table

ROWS, CLASSES = 200, 3
TARGETS = torch.arange(ROWS) % CLASSES


def evaluation(strength: float, seed: int = 0) -> tb.Evaluation:
    """Return that of a classifier that is the better the larger its strength is."""
    logits = normal(ROWS, CLASSES, seed=seed) + strength * torch.nn.functional.one_hot(TARGETS, CLASSES)
    return tb.evaluate(tb.Predictive(logits.unsqueeze(0), tb.likelihoods.Categorical()), TARGETS)


GOOD, NEAR, BAD = evaluation(2.0), evaluation(1.97, seed=1), evaluation(0.5)
ALL = {"ensemble": GOOD, "single": NEAR, "laplace": BAD}


def test_they_are_those_of_the_library() -> None:
    actual = certainties(ALL, seed=3)
    values = {name: each.metrics["nll"] for name, each in ALL.items()}
    best = min(values, key=values.__getitem__)
    assert best in {"ensemble", "single"}
    for name, each in ALL.items():
        assert actual[name].intervals == each.intervals(seed=3)
        assert actual[name].apart["nll"] == tb.difference(each, ALL[best], "nll", seed=3)
        assert actual[name].apart["accuracy"].high <= 0.1
    assert actual[best].apart["nll"].value == actual[best].apart["nll"].error == 0


def test_what_cannot_be_told_from_the_best_is_marked() -> None:
    actual = certainties(ALL)
    outcomes = {n: Outcome(None, each, certainty=actual[n]) for n, each in ALL.items()}  # type: ignore[arg-type]
    assert [actual[name].is_best("nll") for name in ALL] == [True, True, False]
    shown = table(outcomes)
    assert [row[shown.columns.index("NLL")].best for row in shown.cells] == [True, True, False]
    intervals = certainty_table(outcomes)
    assert intervals is not None
    low, high = actual["laplace"].intervals["nll"]
    row = dict(zip(intervals.columns, intervals.cells[2], strict=True))
    assert row["NLL"].text == f"{low:.3f} to {high:.3f}"
    apart = actual["laplace"].apart["nll"]
    assert row["NLL − best"].text == f"{apart.value:.3f} ± {apart.error:.3f}"
    numbers = outcomes["laplace"].numbers()
    assert numbers["clean"] == BAD.metrics
    assert numbers["intervals"]["nll"] == [low, high]
    assert numbers["from_best"]["nll"]["value"] == pytest.approx(BAD.metrics["nll"] - GOOD.metrics["nll"], abs=0.1)


def test_one_row_and_no_terms_say_nothing() -> None:
    one = tb.evaluate(tb.Predictive(normal(1, 1, CLASSES), tb.likelihoods.Categorical()), TARGETS[:1])
    assert certainties({"single": one, "swag": one}) == {"single": Certainty(), "swag": Certainty()}
    assert certainty_table({"single": Outcome(None, one)}) is None  # type: ignore[arg-type]
    assert Certainty().numbers() == {}


def test_rows_of_all_sets_are_drawn_independently() -> None:
    """Of equal scores the area varies by 1/(12 N) for the rows of each side, and by half of it for two foreign sets."""
    scores = normal(ROWS, seed=4)
    drawn_R = resampled_detection(scores, {"one": scores, "other": scores}, seed=0)
    assert float(drawn_R.mean()) == pytest.approx(0.5, abs=0.005)
    assert float(drawn_R.std()) == pytest.approx((8 * ROWS) ** -0.5, rel=0.08)


def test_a_method_that_has_diverged_is_never_the_best() -> None:
    lost = replace(BAD, metrics={**BAD.metrics, "nll": math.nan})
    actual = certainties({"single": GOOD, "sgld": lost})
    assert actual["single"].is_best("nll")
    assert not actual["sgld"].is_best("nll")
