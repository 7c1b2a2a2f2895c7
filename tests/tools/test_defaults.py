"""The table of methods without settings: what its numbers are, against sums by hand."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.defaults.sets import Problem
from benchmarks.defaults.table import by_set, by_way
from benchmarks.defaults.ways import METHODS, PEERS
from scipy.stats import norm

import torchbayes as tb
from torchbayes.data import load
from torchbayes.networks import mlp


def row(name: str, way: str, nll: float, **more: Any) -> dict[str, Any]:
    return {"set": name, "split": 0, "way": way, "nll": nll, "seconds": 1.0, **more}


def cells(table: str, first: str) -> list[str]:
    line = next(line for line in table.splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


ROWS = [
    row("a", "single network", 1.0, coverage=0.8),
    row("b", "single network", -0.01),
    row("c", "single network", 2.0),
    row("a", "SWAG", 1.019, coverage=0.9, problems=1.0),
    row("b", "SWAG", -0.0079),  # a share of nearly nothing would be less
    row("c", "SWAG", 2.05, seconds=4.0),
    {"set": "c", "split": 1, "way": "SWAG", "error": "ValueError: no", "seconds": 0.0},
]


def test_gains_counts_and_coverage_are_those_by_hand() -> None:
    gain, no_worse, covered, failed, warned, seconds = cells(by_way(ROWS), "SWAG")
    assert float(gain) == pytest.approx((-0.019 - 0.0021 - 0.05) / 3, abs=5e-4)
    assert (no_worse, covered, failed, warned, float(seconds)) == ("1 of 3", "90 %", "1", "1", 1.5)
    assert cells(by_way(ROWS), "single network")[:3] == ["+0.000", "3 of 3", "80 %"]


def test_warnings_errors_and_missing_ones_are_marked() -> None:
    table = by_set([*ROWS, row("d", "SWAG", math.nan)])
    assert cells(table, "a") == ["1.000", "1.019!"]
    assert cells(table, "c") == ["2.000", "✗"]
    assert cells(table, "d") == ["", "nan"]


@pytest.fixture(scope="module")
def problem() -> Problem:
    data = load("toy_sine")
    return Problem(data, tb.Model(mlp(1, 1, hidden=(10,)), tb.likelihoods.Gaussian("learned")))


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")
def test_a_method_is_fitted_with_no_settings_and_judged_on_test_rows(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tb.SWA, "usual_steps", 200)
    few = type(problem.data.train)(*(part[:19] for part in problem.data.train))  # too few to hold some of them out
    problem = dataclasses.replace(problem, data=dataclasses.replace(problem.data, train=few))
    actual = METHODS["SWA"](problem, 1)
    posterior = tb.fit(problem.model, problem.data.train, tb.SWA(), seed=1, callbacks=())
    prediction = tb.predict(posterior, problem.data.test.inputs)
    mean, sd = prediction.mean.numpy().ravel(), prediction.variance.sqrt().numpy().ravel()
    targets = problem.data.test.targets.numpy().ravel()
    assert actual["nll"] == pytest.approx(-norm.logpdf(targets, mean, sd).mean(), rel=1e-4)
    assert actual["coverage"] == pytest.approx(np.mean(np.abs(targets - mean) / sd <= norm.ppf(0.95)), abs=0.02)


@pytest.mark.parametrize("way", PEERS)
def test_other_learners_explain_what_is_easy_to_explain(way: str, problem: Problem) -> None:
    actual = PEERS[way](problem, 0)
    spread = float(problem.data.test.targets.std())
    assert actual["rmse"] < 0.9 * spread
    assert math.isfinite(actual["nll"])
    assert 0.5 < actual["coverage"] <= 1


@pytest.mark.parametrize("way", PEERS)
def test_other_learners_of_classes(way: str, problem: Problem) -> None:
    data = problem.data

    def labelled(part: Any) -> Any:
        return type(part)(part.inputs, (part.inputs[:, 0] > 0).long())

    # the same inputs, to predict their sign
    classes = dataclasses.replace(data, train=labelled(data.train), test=labelled(data.train), classes=("-", "+"))
    actual = PEERS[way](Problem(classes, problem.model), 0)
    assert actual["accuracy"] > 0.95
    assert 0 <= actual["nll"] < 0.3
    assert torch.isfinite(torch.tensor(list(actual.values()))).all()
