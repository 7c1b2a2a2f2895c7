"""Predictors that need no network, against scikit-learn by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from tests.oracles import normal
from torch import nn

import torchbayes as tb
from torchbayes.assess import baselines as room
from torchbayes.assess.baselines import baselines, described, warnings_of

INPUTS, NEW = normal(80, 3), normal(30, 3, seed=1)


def model(likelihood: Any, outputs: int = 1) -> tb.Model:
    return tb.Model(nn.Linear(3, outputs), likelihood)


def of_numbers(inputs: torch.Tensor, seed: int) -> torch.Tensor:
    return inputs[:, :1] + 0.1 * normal(len(inputs), 1, seed=seed)


def numbers(**changed: Any) -> dict[str, tb.Evaluation]:
    given = {"train": (INPUTS, of_numbers(INPUTS, 2)), "test": (NEW, of_numbers(NEW, 3)), **changed}
    return baselines(model(tb.likelihoods.Gaussian("learned")), **given)


def test_numbers_have_the_noise_of_residuals_in_folds() -> None:
    scores = numbers(target_scale=7.0)
    assert list(scores) == ["constant", "linear", "trees"]
    trees = HistGradientBoostingRegressor(random_state=0).fit(INPUTS, of_numbers(INPUTS, 2).ravel())
    errors = trees.predict(NEW) - of_numbers(NEW, 3).numpy().ravel()
    assert scores["trees"].metrics["rmse"] == pytest.approx(7 * np.sqrt(np.mean(errors**2)))
    # the noise is 0.1, and both the sd of residuals and new rows have it
    expected = np.log(0.7 * np.sqrt(2 * np.pi)) + 0.5
    assert scores["linear"].metrics["nll"] == pytest.approx(expected, abs=0.2)
    assert scores["linear"].metrics["nll"] < scores["trees"].metrics["nll"] < scores["constant"].metrics["nll"]


def test_classes_have_the_probabilities_of_logistic_regression_and_a_row_of_their_shares() -> None:
    labels, new = ((rows[:, 0] > 0).long() for rows in (INPUTS, NEW))
    new[0] = 2  # a class without training rows
    scores = baselines(model(tb.likelihoods.Categorical(), 3), (INPUTS, labels), (NEW, new))
    scaler = StandardScaler().fit(INPUTS)
    by_hand = LogisticRegression(max_iter=1000).fit(scaler.transform(INPUTS), labels)
    counts = np.maximum(np.bincount(labels, minlength=3), 1)
    probs = np.c_[80 * by_hand.predict_proba(scaler.transform(NEW)), np.zeros(30)] + counts / counts.sum()
    expected = -np.log(probs[np.arange(30), new] / 81).mean()
    assert scores["linear"].metrics["nll"] == pytest.approx(expected)
    assert np.isfinite(scores["trees"].metrics["nll"])


def test_two_classes_as_numbers_are_classes() -> None:
    train, test = ((rows, (rows[:, :1] > 0).double()) for rows in (INPUTS, NEW))
    scores = baselines(model(tb.likelihoods.Bernoulli()), train, test)
    assert scores["linear"].metrics["accuracy"] > 0.8


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"train": (INPUTS[:9], of_numbers(INPUTS[:9], 2))}, ["constant"]),  # too few rows
        ({"train": (INPUTS.masked_fill(INPUTS > 2, torch.nan), of_numbers(INPUTS, 2))}, ["constant"]),
        ({"train": (INPUTS, normal(80, 2)), "test": (NEW, normal(30, 2))}, ["constant"]),  # several numbers a row
        ({"train": (INPUTS.unsqueeze(1), of_numbers(INPUTS, 2))}, ["constant"]),  # no vectors
        ({"train": (INPUTS, torch.ones(80, 1))}, []),
        ({"test": (NEW[:0], NEW[:0, :1])}, []),
        ({"train": (INPUTS, of_numbers(INPUTS, 2)[:, 0]), "test": (NEW, of_numbers(NEW, 3)[:, 0])}, None),
    ],
)
def test_other_rows_have_fewer(changed: Any, names: list[str] | None) -> None:
    assert list(numbers(**changed)) == (["constant", "linear", "trees"] if names is None else names)


def test_of_many_rows_a_part_is_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_VALUES", 3 * 20)
    few, all_of_them = numbers()["linear"], None
    monkeypatch.undo()
    all_of_them = numbers()["linear"]
    assert few.metrics["nll"] != all_of_them.metrics["nll"]
    assert few.metrics["rmse"] < 2 * all_of_them.metrics["rmse"]


def test_a_single_class_has_no_linear_model() -> None:
    train, test = ((rows, torch.zeros(len(rows), dtype=torch.long)) for rows in (INPUTS, NEW))
    assert list(baselines(model(tb.likelihoods.Categorical(), 2), train, test)) == ["constant"]


def test_a_fit_that_is_worse_beyond_chance_is_told() -> None:
    scores = numbers()
    assert described(scores).startswith("Constant: ")
    assert warnings_of(scores["linear"], scores) == []
    of_constant = warnings_of(scores["constant"], scores)
    assert [text.split(" predict")[0] for text in of_constant[1:]] == [
        "Warning: a linear model",
        "Warning: boosted trees",
    ]
    assert "no more likely than under a constant" in of_constant[0]
    mean = scores["linear"].mean
    assert mean is not None
    close = tb.evaluate(tb.Predictive(mean[None] + 1e-3, tb.likelihoods.Gaussian(0.11)), of_numbers(NEW, 3))
    assert warnings_of(close, scores) == []
