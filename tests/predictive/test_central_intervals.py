"""Central intervals against those of scipy, with and without a distribution function in torch."""

import numpy as np
import pytest
import torch
from scipy import stats

from torchbayes import Predictive, likelihoods
from torchbayes.predictive import intervals
from torchbayes.predictive.intervals import central_interval, levels_reached

MEANS_B = torch.tensor([[-1.0], [0.0], [2.5]]).double()


def test_intervals_of_one_normal_are_its_quantiles():
    predictive = Predictive(MEANS_B[None], likelihoods.Gaussian(scale=0.5))
    for outside in (0.05, 0.5):
        expected = stats.norm.interval(1 - outside, MEANS_B.numpy(), 0.5)
        np.testing.assert_allclose(torch.stack(central_interval(predictive, outside)), expected, rtol=1e-9)


def test_levels_of_a_mixture_are_those_of_its_distribution_function():
    outputs_SBK = torch.stack([MEANS_B, MEANS_B + 2])
    predictive = Predictive(outputs_SBK, likelihoods.Gaussian(scale=0.5))
    targets = MEANS_B + torch.tensor([[0.2], [1.0], [3.5]]).double()
    cdf = np.mean([stats.norm.cdf(targets.numpy(), mean.numpy(), 0.5) for mean in outputs_SBK], axis=0)
    np.testing.assert_allclose(levels_reached(predictive, targets), abs(1 - 2 * cdf), rtol=1e-6)
    # a target lies in the interval of a level if and only if its own is smaller
    low, high = central_interval(predictive)
    inside = (low <= targets) & (targets <= high)
    assert inside.tolist() == [[True], [True], [False]]
    assert torch.equal(levels_reached(predictive, targets) <= 0.95, inside)


def test_what_cannot_be_inverted_is_sampled():
    predictive = Predictive(MEANS_B.expand(4, 3, 1), likelihoods.StudentT(df=3.0, scale=0.5))
    exact = stats.t(3.0, MEANS_B.numpy(), 0.5)
    with pytest.raises(NotImplementedError):
        predictive.quantile(0.5)
    shares = np.array([[0.2], [0.5], [0.9]])
    actual = levels_reached(predictive, torch.from_numpy(exact.ppf(shares)))
    # 2,000 samples: standard errors of twice a share of at most 0.022
    np.testing.assert_allclose(actual, abs(1 - 2 * shares), rtol=0, atol=0.07)
    for ends, share in zip(central_interval(predictive, 0.5), (0.25, 0.75), strict=True):
        np.testing.assert_allclose(exact.cdf(ends.numpy()), share, rtol=0, atol=0.04)


def test_samples_are_drawn_for_some_rows_after_the_others(monkeypatch: pytest.MonkeyPatch):
    predictive = Predictive(MEANS_B[None], likelihoods.StudentT(df=3.0, scale=0.5))
    targets = MEANS_B + torch.tensor([[0.0], [1.0], [-1.0]]).double()
    whole = levels_reached(predictive, targets)
    monkeypatch.setattr(intervals, "_AT_ONCE", 2000)  # one row at a time
    torch.testing.assert_close(levels_reached(predictive, targets), whole, rtol=0, atol=0.1)


def test_levels_of_counts_are_those_of_the_closed_interval():
    predictive = Predictive(MEANS_B[None], likelihoods.Poisson())
    exact = stats.poisson(np.exp(MEANS_B.numpy()))
    for counts in (np.array([[0.0], [1.0], [9.0]]), np.array([[2.0], [0.0], [30.0]])):
        expected = np.maximum(0, 1 - 2 * np.minimum(exact.cdf(counts), exact.sf(counts - 1)))
        np.testing.assert_allclose(levels_reached(predictive, torch.from_numpy(counts)), expected, rtol=0, atol=1e-9)
