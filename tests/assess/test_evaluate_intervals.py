"""Intervals of metrics: their coverage where the truth is known, and resamples against evaluations with weights."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.laws.cases import normal
from torch import Tensor, distributions

import torchbayes as tb
from torchbayes.assess.evaluation import interval_of, resampled
from torchbayes.randomness.seeds import Purpose, seeded


def classifier(rows: int = 60) -> tuple[tb.Predictive, Tensor]:
    predictive = tb.Predictive(2 * normal(3, rows, 4), tb.likelihoods.Categorical())
    generator = torch.Generator().manual_seed(1)
    return predictive, torch.multinomial(predictive.probs, 1, generator=generator).squeeze(1)


def regression(rows: int = 60) -> tuple[tb.Predictive, Tensor]:
    return tb.Predictive(normal(3, rows, 2), tb.likelihoods.Gaussian(0.7)), normal(rows, 2, seed=4)


def tokens(rows: int = 20) -> tuple[tb.Predictive, Tensor]:
    labels = torch.randint(4, (rows, 5), generator=torch.Generator().manual_seed(1))
    labels[:, 3:] = torch.where(normal(rows, 2) > 0, labels[:, 3:], -100)
    labels[4] = -100  # a row that does not count
    return tb.Predictive(normal(3, rows, 5, 4), tb.likelihoods.Categorical(ignore_index=-100)), labels


def binary(rows: int = 30) -> tuple[tb.Predictive, Tensor]:
    return tb.Predictive(normal(3, rows, 2), tb.likelihoods.Bernoulli()), (normal(rows, 2, seed=4) > 0).long()


def weighed(predictive: tb.Predictive, targets: Any, weights: Tensor) -> tb.Evaluation:
    likelihood = tb.likelihoods.Weighted(predictive.likelihood)
    return tb.evaluate(tb.Predictive(predictive.outputs_SBK, likelihood), (targets, weights))


CASES = pytest.mark.parametrize("case", [classifier, regression, tokens, binary])


@CASES
def test_a_resample_is_an_evaluation_with_its_weights(case: Any) -> None:
    predictive, targets = case()
    actual = tb.evaluate(predictive, targets)
    (values,) = resampled([actual], 3, seed=7)
    assert values.keys() == actual.metrics.keys()
    with seeded(Purpose.RESAMPLES, 7):
        drawn = distributions.Gamma(torch.ones(len(actual.log_prob), dtype=torch.float64), 1.0).sample((3,))
    kept = targets.flatten(1).amax(1) >= 0 if targets.ndim > 1 and not targets.is_floating_point() else ...
    for resample in range(3):
        weights = torch.ones(len(targets), dtype=torch.float64)
        weights[kept] = drawn[resample]
        for name, value in weighed(predictive, targets, weights).metrics.items():
            assert float(values[name][resample]) == pytest.approx(value, rel=1e-10), name


@CASES
def test_metrics_lie_in_their_intervals(case: Any) -> None:
    actual = tb.evaluate(*case())
    biased = {"ece", "ece_mass"}  # upwards, and more so on a resample
    for name, (low, high) in actual.intervals().items():
        assert low < high
        assert low <= actual.metrics[name] <= high or name in biased, name
        narrow = actual.intervals(0.5)[name]
        assert low < narrow[0] < narrow[1] < high


def test_ends_are_those_of_the_normal_approximation() -> None:
    actual = tb.evaluate(*regression(1000))
    low, high = actual.intervals(resamples=4000)["nll"]
    error = float(actual.terms["nll"].std()) / math.sqrt(1000)
    # the 2.5 % point of 4,000 resamples has a standard error of 0.04 standard deviations
    assert (low - actual.metrics["nll"]) / error == pytest.approx(-1.96, abs=0.15)
    assert (high - actual.metrics["nll"]) / error == pytest.approx(1.96, abs=0.15)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """N(0, 1) targets under N(0.5, 1): the expected nll is ½ log 2π + ½ (1 + ¼), and the rmse √(1 + ¼)."""
    truth = {"nll": 0.5 * math.log(2 * math.pi) + 0.625, "rmse": math.sqrt(1.25)}
    predictive = tb.Predictive(torch.full((1, 80, 1), 0.5, dtype=torch.float64), tb.likelihoods.Gaussian(1.0))
    inside = dict.fromkeys(truth, 0)
    for trial in range(200):
        actual = tb.evaluate(predictive, normal(80, 1, seed=100 + trial)).intervals(0.9, resamples=200, seed=trial)
        for name, value in truth.items():
            inside[name] += actual[name][0] <= value <= actual[name][1]
    for name, count in inside.items():
        # 180 ± 4.2 expected of exact intervals; those of 80 skewed terms hold a little less
        assert 162 <= count <= 193, name


def test_equal_seeds_give_equal_intervals_and_others_do_not() -> None:
    actual = tb.evaluate(*classifier())
    assert actual.intervals(seed=3) == actual.intervals(seed=3)
    assert actual.intervals(seed=3) != actual.intervals(seed=4)
    state = torch.random.get_rng_state()
    actual.intervals()
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize("case", [classifier, regression])
def test_a_weight_counts_as_copies_of_a_row(case: Any) -> None:
    predictive, targets = case(200)
    weights = torch.arange(200) % 4
    copies = torch.arange(200).repeat_interleave(weights)
    repeated = tb.Predictive(predictive.outputs_SBK[:, copies], predictive.likelihood)
    actual = weighed(predictive, targets, weights).intervals(resamples=4000)
    expected = tb.evaluate(repeated, targets[copies]).intervals(resamples=4000)
    for name in ("nll", "accuracy" if case is classifier else "rmse"):
        width = expected[name][1] - expected[name][0]
        # ends have a standard error of 0.01 widths each
        assert actual[name] == pytest.approx(expected[name], abs=0.05 * width), name


def test_few_resamples_at_a_time_change_nothing_of_their_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    actual = tb.evaluate(*tokens())
    expected = actual.intervals(resamples=2000)
    monkeypatch.setattr("torchbayes.assess.evaluation._AT_ONCE", 1000)
    for name, (low, high) in actual.intervals(resamples=2000).items():
        width = expected[name][1] - expected[name][0]
        assert low == pytest.approx(expected[name][0], abs=0.1 * width)
        assert high == pytest.approx(expected[name][1], abs=0.1 * width)


def test_impossible_targets_have_infinite_ends() -> None:
    actual = tb.evaluate(tb.Predictive.from_probs(torch.eye(2)), torch.tensor([0, 0]))
    assert actual.intervals(resamples=10)["nll"] == (math.inf, math.inf)
    assert actual.intervals(resamples=10)["accuracy"][0] < 1


def test_one_row_is_refused() -> None:
    predictive, targets = classifier(1)
    actual = tb.evaluate(predictive, targets)
    with pytest.raises(ValueError, match="at least 2 rows"):
        actual.intervals(resamples=20)
    with pytest.raises(ValueError, match="at least 2 rows"):
        tb.difference(actual, actual)


@pytest.mark.parametrize("level", [0.0, 1.0, -1.0, math.nan])
def test_levels_outside_0_and_1_are_refused(level: float) -> None:
    with pytest.raises(ValueError, match="`level`"):
        interval_of(torch.zeros(3), level)
