"""Paired differences of metrics against arithmetic by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.stats import binomtest
from tests.laws.cases import normal
from torch import Tensor

import torchbayes as tb

ROWS = 400


def regressions(noise: float = 0.1, seed: int = 0) -> tuple[tb.Evaluation, tb.Evaluation]:
    """Two means that are nearly the same, so that errors are shared."""
    mean, targets = normal(1, ROWS, 1, seed=seed), 2 * normal(ROWS, 1, seed=seed + 1)
    other = mean + noise * normal(1, ROWS, 1, seed=seed + 2)
    likelihood = tb.likelihoods.Gaussian(1.0)
    first, second = (tb.evaluate(tb.Predictive(outputs, likelihood), targets) for outputs in (mean, other))
    return first, second


def classifiers(labels: Tensor | None = None, likelihood: Any = None) -> tuple[tb.Evaluation, tb.Evaluation]:
    outputs = 2 * normal(3, ROWS, 4)
    labels = torch.arange(ROWS) % 4 if labels is None else labels
    likelihood = likelihood or tb.likelihoods.Categorical()
    first, second = (
        tb.evaluate(tb.Predictive(each, likelihood), labels)
        for each in (outputs, outputs + 0.3 * normal(3, ROWS, 4, seed=5))
    )
    return first, second


def test_of_a_mean_the_error_is_that_of_paired_differences() -> None:
    first, second = regressions()
    actual = tb.difference(first, second, resamples=4000)
    each = second.log_prob - first.log_prob
    error = float(each.std()) / math.sqrt(ROWS)
    assert actual.value == pytest.approx(float(each.mean()), rel=1e-9)
    # the standard deviation of 4,000 resamples has a relative error of 1.1 %
    assert actual.error == pytest.approx(error, rel=0.05)
    assert (actual.low - actual.value) / error == pytest.approx(-1.96, abs=0.2)
    assert (actual.high - actual.value) / error == pytest.approx(1.96, abs=0.2)
    assert (actual.metric, actual.level) == ("nll", 0.95)


def test_pairs_are_surer_than_two_intervals() -> None:
    first, second = regressions()
    actual = tb.difference(first, second)
    low, high = first.intervals()["nll"]
    assert actual.high - actual.low < 0.2 * (high - low)


@pytest.mark.parametrize("metric", ["accuracy", "brier", "ece", "ece_mass", "aurc", "entropy", "mutual_information"])
def test_exchanged_evaluations_change_the_sign(metric: str) -> None:
    first, second = classifiers()
    few = {"resamples": 100}
    actual, exchanged = tb.difference(first, second, metric, **few), tb.difference(second, first, metric, **few)
    assert actual.value == -exchanged.value == first.metrics[metric] - second.metrics[metric]
    assert actual.error == pytest.approx(exchanged.error, rel=1e-12)
    assert actual.error > 0
    itself = tb.difference(first, first, metric, **few)
    assert (itself.value, itself.error, itself.low, itself.high) == (0, 0, 0, 0)


def test_intervals_hold_the_true_difference_as_often_as_they_say() -> None:
    """Means of 0.5 and 0.25 for targets N(0, 1): the expected nll differ by (0.25 - 0.0625) / 2."""
    inside = 0
    for trial in range(200):
        targets = normal(80, 1, seed=trial)
        first, second = (
            tb.evaluate(
                tb.Predictive(torch.full((1, 80, 1), mean, dtype=torch.float64), tb.likelihoods.Gaussian(1.0)), targets
            )
            for mean in (0.5, 0.25)
        )
        actual = tb.difference(first, second, level=0.9, resamples=200, seed=trial)
        inside += actual.low <= 0.09375 <= actual.high
    assert 162 <= inside <= 193  # 180 ± 4.2 expected of exact intervals


def test_weights_count_as_copies() -> None:
    weights = torch.arange(ROWS) % 3
    copies = torch.arange(ROWS).repeat_interleave(weights)
    outputs, labels = (2 * normal(3, ROWS, 4), 2 * normal(3, ROWS, 4, seed=8)), torch.arange(ROWS) % 4
    plain, likelihood = tb.likelihoods.Categorical(), tb.likelihoods.Weighted(tb.likelihoods.Categorical())
    weighed = [tb.evaluate(tb.Predictive(each, likelihood), (labels, weights)) for each in outputs]
    copied = [tb.evaluate(tb.Predictive(each[:, copies], plain), labels[copies]) for each in outputs]
    actual, expected = (tb.difference(each[0], each[1], resamples=4000) for each in (weighed, copied))
    assert actual.value == pytest.approx(expected.value, rel=1e-9)
    assert actual.error == pytest.approx(expected.error, rel=0.06)
    alone = [tb.evaluate(tb.Predictive(each, likelihood), labels) for each in outputs]
    with pytest.raises(ValueError, match=r"same rows.*`targets` differ"):
        tb.difference(weighed[0], alone[0])
    others = tb.evaluate(tb.Predictive(outputs[0], likelihood), (labels, weights + (weights > 0)))
    with pytest.raises(ValueError, match=r"same rows.*`weights` differ"):
        tb.difference(weighed[0], others)


def test_other_rows_and_metrics_are_refused() -> None:
    first, _ = classifiers()
    other, _ = classifiers((torch.arange(ROWS) + 1) % 4)
    with pytest.raises(ValueError, match=r"same rows in the same order; their `targets` differ: shape \(400,\) and"):
        tb.difference(first, other)
    with pytest.raises(ValueError, match=r"`metric` must be one that both have, nll; got 'rmse'"):
        tb.difference(first, regressions()[0], "rmse")
    with pytest.raises(ValueError, match="same rows"):
        tb.difference(first, regressions()[0])


def test_an_evaluation_without_terms_is_refused() -> None:
    first, second = regressions()
    with pytest.raises(ValueError, match="rmse needs the `terms` of every row"):
        tb.difference(first, replace(second, terms={}), "rmse")


@pytest.mark.parametrize(
    ("ahead", "behind", "apart"), [(1, 0, False), (2, 0, False), (3, 0, False), (8, 0, True), (9, 5, False)]
)
def test_a_few_rows_that_only_one_has_right_are_no_proof(ahead: int, behind: int, apart: bool) -> None:
    """As by the exact test of McNemar, at 5 %."""
    rows, labels = 200, torch.zeros(200, dtype=torch.int64)
    likely, unlikely = torch.tensor([[0.9, 0.1]]).double(), torch.tensor([[0.1, 0.9]]).double()
    first, second = likely.repeat(rows, 1), likely.repeat(rows, 1)
    second[:ahead], first[ahead : ahead + behind] = unlikely, unlikely
    one, other = (tb.evaluate(tb.Predictive.from_probs(probs), labels) for probs in (first, second))
    actual = tb.difference(one, other, "accuracy")
    assert math.isclose(actual.value, (ahead - behind) / rows)
    assert (actual.low > 0) == apart == (binomtest(ahead, ahead + behind).pvalue < 0.05)
