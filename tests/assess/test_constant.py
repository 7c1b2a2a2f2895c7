"""The constant predictor against distributions written out, and R² against scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import r2_score
from tests.oracles import normal
from torch import distributions, nn

import torchbayes as tb
from torchbayes.assess.baselines import constant, r_squared, worse


def model(likelihood: Any, outputs: int = 1) -> tb.Model:
    return tb.Model(nn.Linear(2, outputs), likelihood)


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("scale", [1.0, 7.5])
def test_numbers_have_the_mean_and_deviation_of_the_training_targets(width: int, scale: float) -> None:
    train, test = normal(50, width) * 2 + 1, normal(20, width, seed=1)
    actual = constant(model(tb.likelihoods.Gaussian("learned")), train, test, target_scale=scale)
    assert actual is not None
    each = distributions.Normal(train.mean(0) * scale, train.std(0, correction=0) * scale)
    expected = -each.log_prob(test * scale).sum(-1).mean()
    assert actual.metrics["nll"] == pytest.approx(float(expected))
    assert actual.metrics["rmse"] == pytest.approx(float((test - train.mean(0)).square().mean().sqrt() * scale))


@pytest.mark.parametrize("likelihood", [tb.likelihoods.Categorical(), tb.likelihoods.Bernoulli()])
def test_classes_have_their_shares(likelihood: Any) -> None:
    train, test = torch.tensor([0, 0, 0, 1]), torch.tensor([1, 0, 1])
    if isinstance(likelihood, tb.likelihoods.Bernoulli):
        train, test = train[:, None].double(), test[:, None].double()
    actual = constant(model(likelihood), train, test)
    assert actual is not None
    assert actual.metrics["nll"] == pytest.approx(-(2 * np.log(0.25) + np.log(0.75)) / 3)
    assert actual.metrics["accuracy"] == pytest.approx(1 / 3)


def test_a_class_that_only_the_test_rows_have_is_not_impossible() -> None:
    actual = constant(model(tb.likelihoods.Categorical(), 3), torch.tensor([0, 1, 1]), torch.tensor([2]))
    assert actual is not None
    assert actual.metrics["nll"] == pytest.approx(-np.log(1 / 4))


def test_counts_have_their_mean_rate() -> None:
    train, test = torch.tensor([1, 2, 6]), torch.tensor([0, 4])
    actual = constant(model(tb.likelihoods.Poisson()), train, test)
    assert actual is not None
    assert actual.metrics["nll"] == pytest.approx(-float(distributions.Poisson(3.0).log_prob(test.double()).mean()))


@pytest.mark.parametrize("targets", [{"a": normal(3)}, normal(3, 2, 2), torch.ones(3, 1)])
def test_other_targets_have_none(targets: Any) -> None:
    assert constant(model(tb.likelihoods.Gaussian(1.0)), targets, targets) is None


@pytest.mark.parametrize("scale", [1.0, 9.0])
def test_r_squared_is_that_of_scikit_learn(scale: float) -> None:
    predictive = tb.Predictive(normal(3, 40, 1), tb.likelihoods.Gaussian(0.5))
    targets = predictive.mean + 0.3 * normal(40, 1, seed=4)
    actual = tb.evaluate(predictive, targets, target_scale=scale)
    assert r_squared(actual) == pytest.approx(r2_score(targets.numpy(), predictive.mean.numpy()))
    weights = torch.arange(1.0, 41.0, dtype=torch.float64)
    weighted = tb.evaluate(
        tb.Predictive(predictive.outputs_SBK, tb.likelihoods.Weighted(tb.likelihoods.Gaussian(0.5))), (targets, weights)
    )
    expected = r2_score(targets.numpy(), predictive.mean.numpy(), sample_weight=weights.numpy())
    assert r_squared(weighted) == pytest.approx(expected)
    same = tb.evaluate(tb.Predictive(normal(2, 5, 3), tb.likelihoods.Categorical()), torch.zeros(5, dtype=torch.long))
    assert r_squared(same) is None


@pytest.mark.parametrize(
    ("nll", "same", "warns"),
    [
        (1.2, {"nll": 1.1}, True),
        (float("nan"), {"nll": 1.1}, True),
        (1.1, {"nll": 1.1}, True),
        (1.0, {"nll": 1.1}, False),
        (1.2, {}, False),
        (1.2, None, False),
    ],
)
def test_a_warning_says_that_the_constant_is_better(nll: float, same: dict[str, float] | None, warns: bool) -> None:
    assert bool(worse({"nll": nll}, same)) == warns
