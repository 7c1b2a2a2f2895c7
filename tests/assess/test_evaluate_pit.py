"""Probability integral transforms and scores of numbers, row by row."""

from __future__ import annotations

import pytest
import torch
from scipy import stats
from tests.laws.cases import normal

import torchbayes as tb


def test_transforms_are_the_distribution_function_at_the_targets() -> None:
    predictive = tb.Predictive(normal(5, 40, 2), tb.likelihoods.Gaussian(0.4))
    targets = predictive.sample(5, seed=1)[-1]
    actual = tb.evaluate(predictive, targets, target_scale=3.0)
    expected = torch.tensor(stats.norm.cdf(targets, loc=predictive.outputs_SBK, scale=0.4)).mean(0)
    assert actual.pit is not None
    torch.testing.assert_close(actual.pit, expected)


def test_of_targets_drawn_from_the_average_they_are_uniform() -> None:
    predictive = tb.Predictive(normal(4, 2000, 2), tb.likelihoods.HeteroscedasticGaussian())
    rows = torch.arange(2000)
    actual = tb.evaluate(predictive, predictive.sample(4, seed=2)[rows % 4, rows])
    assert actual.pit is not None
    assert stats.kstest(actual.pit.flatten().numpy(), "uniform").pvalue > 0.01


def test_of_samples_they_are_shares() -> None:
    predictive = tb.Predictive(torch.zeros(1, 50, 1, dtype=torch.float64), tb.likelihoods.StudentT(df=4.0))
    targets = torch.linspace(-3, 3, 50, dtype=torch.float64)
    actual = tb.evaluate(predictive, targets).pit
    assert actual is not None
    expected = torch.tensor(stats.t(4).cdf(targets))
    assert (actual.flatten() - expected).abs().max() < 4 * 0.5 / 2000**0.5


def test_counts_and_classes_have_none() -> None:
    counts = tb.evaluate(tb.Predictive(normal(4, 30, 1), tb.likelihoods.Poisson()), torch.ones(30, 1))
    assert counts.pit is None
    assert "crps" not in counts.metrics
    classes = tb.evaluate(tb.Predictive(normal(4, 30, 3), tb.likelihoods.Categorical()), torch.zeros(30).long())
    assert classes.pit is None


def test_rows_of_weight_0_have_no_transform_and_the_others_count_by_their_weight() -> None:
    weights = torch.arange(30) % 3
    targets = normal(30, 2, seed=4)
    predictive = tb.Predictive(normal(5, 30, 2), tb.likelihoods.Weighted(tb.likelihoods.Gaussian(0.4)))
    actual = tb.evaluate(predictive, (targets, weights))
    copies = torch.arange(30).repeat_interleave(weights)
    repeated = tb.evaluate(
        tb.Predictive(predictive.outputs_SBK[:, copies], tb.likelihoods.Gaussian(0.4)), targets[copies]
    )
    assert actual.pit is not None
    assert actual.pit.shape == (20, 2)
    assert actual.metrics == pytest.approx(repeated.metrics, rel=1e-12)
    for name, terms in actual.terms.items():
        mean = float((terms * weights[weights > 0]).sum() / weights.sum())
        assert (mean**0.5 if name == "rmse" else mean) == pytest.approx(actual.metrics[name], rel=1e-12), name
