"""Decisions on numbers against closed forms: newsvendor, mean and variance, probabilities of a threshold."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

import torchbayes as tb
from torchbayes.data.base import Standardise
from torchbayes.decisions import Exceeds, Linear, Squared, Within

MEAN, SCALE = torch.tensor([[-1.0], [0.5], [3.0]], dtype=torch.float64), 0.7
UNITS = Standardise(torch.tensor([10.0]), torch.tensor([4.0]))


def normal(draws: int = 1) -> tb.Predictive:
    return tb.Predictive(MEAN.expand(draws, 3, 1), tb.likelihoods.Gaussian(SCALE))


def mixture() -> tb.Predictive:
    outputs = torch.tensor([[[-1.0], [0.0]], [[2.0], [0.1]], [[0.4], [0.2]]], dtype=torch.float64)
    return tb.Predictive(outputs, tb.likelihoods.Gaussian(0.3))


@pytest.mark.parametrize("draws", [1, 30])
@pytest.mark.parametrize(("under", "over"), [(3.0, 1.0), (1.0, 1.0), (0.2, 5.0)])
def test_the_newsvendor_orders_a_quantile(under: float, over: float, draws: int):
    r"""Of y ~ N(m, s²): a = m + s z, z = Φ⁻¹(u/(u + o)), and the expected cost is (u + o) s φ(z)."""
    made = tb.decide(normal(draws), cost=Linear(under, over), targets=UNITS)
    z, scale = stats.norm.ppf(under / (under + over)), 4 * SCALE
    np.testing.assert_allclose(made.action, (10 + 4 * MEAN[:, 0]) + scale * z, rtol=1e-9)
    cost = (under + over) * scale * stats.norm.pdf(z)
    np.testing.assert_allclose(made.expected_cost, cost, rtol=4e-3 if draws > 1 else 1e-4)
    np.testing.assert_allclose(made.perfect_information, made.expected_cost)
    assert made.unlimited_data is None
    assert made.actions is None


def test_counts_at_the_tolerance_are_within_it():
    counts = tb.Predictive(torch.tensor([[[5.0]], [[2.0]]], dtype=torch.float64).log(), tb.likelihoods.Poisson())
    for tolerance in (1.0, 1.5, 0.5):
        made = tb.decide(counts, cost=Within(tolerance))
        numbers = torch.arange(200, dtype=torch.float64)
        outside = (numbers - made.action).abs() > tolerance
        expected = counts.distribution.log_prob(numbers.view(-1, 1, 1, 1)).exp()[outside].sum(0).mean(0)
        torch.testing.assert_close(made.expected_cost, expected[:, 0])


def test_no_other_number_costs_less_than_the_quantile():
    predictive, cost = mixture(), Linear(4.0, 1.0)
    made = tb.decide(predictive, cost=cost)
    grid = np.linspace(-3, 4, 1401)
    each = tb.decide(predictive, cost=lambda a, y: 4 * np.maximum(y - a, 0) + np.maximum(a - y, 0), actions=grid)
    np.testing.assert_allclose(each.expected_cost, made.expected_cost, rtol=2e-3)
    np.testing.assert_allclose(grid[each.action], made.action, atol=0.02)
    assert each.unlimited_data is not None
    assert (each.unlimited_data > 0).all()


def test_squares_take_the_mean_and_cost_the_variance():
    predictive = mixture()
    for cost in ("squared", Squared()):
        made = tb.decide(predictive, cost=cost)
        torch.testing.assert_close(made.action, predictive.mean[:, 0])
        torch.testing.assert_close(made.expected_cost, predictive.variance[:, 0])
        between = (predictive.outputs_SBK[..., 0] - made.action) ** 2
        torch.testing.assert_close(made.by_draw, between + 0.09)


def test_nodes_give_means_of_smooth_functions_to_rounding():
    made = tb.decide(normal(), cost=lambda a, y: np.exp(y) + (y - a) ** 4, actions=[0.0])
    m, s = MEAN[:, 0].numpy(), SCALE
    fourth = m**4 + 6 * m**2 * s**2 + 3 * s**4
    np.testing.assert_allclose(made.expected_cost, np.exp(m + s**2 / 2) + fourth, rtol=1e-6)


def test_the_median_is_within_a_tolerance_as_often_as_the_distribution_says():
    made = tb.decide(normal(), cost=Within(2.0), targets=UNITS)
    np.testing.assert_allclose(made.expected_cost, 2 * stats.norm.sf(2.0 / (4 * SCALE)), rtol=1e-9)


@pytest.mark.parametrize("below", [False, True])
def test_a_threshold_is_acted_on_by_its_probability(below: bool):
    cost = Exceeds(11.0, miss=0.2, alarm=0.8, below=below)  # act where it has the probability 0.8
    made = tb.decide(normal(), cost=cost, targets=UNITS)
    happens = stats.norm(10 + 4 * MEAN[:, 0], 4 * SCALE).sf(11.0)
    happens = 1 - happens if below else happens
    assert made.labels.tolist() == ["act" if p >= 0.8 else "wait" for p in happens]
    np.testing.assert_allclose(made.expected_cost, np.minimum(0.2 * happens, 0.8 * (1 - happens)), rtol=1e-9)
    paid = Exceeds(11.0, 0.2, 0.8).of(torch.tensor([1, 1, 0, 0]), torch.tensor([12.0, 11.0, 12.0, 11.0]))
    assert paid.tolist() == [0.2, 0.0, 0.0, 0.8]


def test_a_tie_of_probability_and_threshold_acts():
    even = tb.Predictive(torch.zeros(1, 1, 1, dtype=torch.float64), tb.likelihoods.Gaussian(1.0))
    assert tb.decide(even, cost=Exceeds(0.0)).labels.tolist() == ["act"]


def test_abstaining_costs_what_it_costs():
    free = tb.decide(mixture(), cost="squared")
    made = tb.decide(mixture(), cost="squared", abstain=0.5)
    assert made.abstained.tolist() == (free.expected_cost > 0.5).tolist() == [True, False]
    torch.testing.assert_close(made.expected_cost, free.expected_cost.clamp_max(0.5))
    assert np.isnan(made.labels[0])
    assert made.labels[1] == float(free.action[1])


def test_counts_have_quantiles_that_are_counts():
    rate = torch.tensor([[[3.0], [20.0]]], dtype=torch.float64)
    predictive = tb.Predictive(rate.log(), tb.likelihoods.Poisson())
    made = tb.decide(predictive, cost=Linear(3.0, 1.0))
    assert made.action.tolist() == stats.poisson([3.0, 20.0]).ppf(0.75).tolist()
    y = np.arange(200)[:, None]
    cost = 3 * np.maximum(y - made.action.numpy(), 0) + np.maximum(made.action.numpy() - y, 0)
    np.testing.assert_allclose(made.expected_cost, (cost * stats.poisson.pmf(y, [3.0, 20.0])).sum(0), rtol=5e-3)


def test_heavy_tails_and_noise_of_each_row_are_taken_as_they_are():
    heavy = tb.Predictive(torch.zeros(2, 3, 1), tb.likelihoods.StudentT(df=5.0, scale=1.0))
    made = tb.decide(heavy, cost=Linear(9.0, 1.0))
    np.testing.assert_allclose(made.action, stats.t(5).ppf(0.9), rtol=0.06)  # by samples
    outputs = torch.tensor([[[1.0, 0.0], [1.0, 2.0]]], dtype=torch.float64)
    noisy = tb.decide(tb.Predictive(outputs, tb.likelihoods.HeteroscedasticGaussian()), cost="squared")
    assert noisy.expected_cost[1] > 2 * noisy.expected_cost[0]


def test_learned_noise_of_each_draw_is_that_of_the_draw():
    outputs = torch.zeros(2, 3, 1, dtype=torch.float64)
    model = tb.Model(tb.networks.mlp(2, 1, hidden=(3,)), tb.likelihoods.Gaussian("learned"))
    posterior = tb.Point(model, torch.randn(2, model.layout.size, generator=torch.Generator().manual_seed(0)) / 5)
    made = tb.decide(posterior, torch.zeros(3, 2), cost="squared")
    predictive = tb.predict(posterior, torch.zeros(3, 2))
    torch.testing.assert_close(made.expected_cost, predictive.variance[:, 0].double(), rtol=1e-5, atol=1e-7)
    assert made.by_draw.shape == outputs.shape[:2]


def test_several_numbers_have_decisions_of_their_own():
    outputs = torch.tensor([[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]])
    units = Standardise(torch.tensor([0.0, 100.0]), torch.tensor([1.0, 10.0]))
    made = tb.decide(tb.Predictive(outputs, tb.likelihoods.Gaussian(0.5)), cost=Linear(1.0, 1.0), targets=units)
    np.testing.assert_allclose(made.action, [[0, 110], [2, 130], [4, 150]], rtol=1e-6)
    np.testing.assert_allclose(made.expected_cost[:, 1], 10 * made.expected_cost[:, 0], rtol=1e-6)


def test_functions_that_give_no_costs_are_refused():
    for wrong in (lambda a, y: 1.0, lambda a, y: y * np.nan, lambda a, y: y[0]):
        with pytest.raises(ValueError, match="finite number for each"):
            tb.decide(normal(), cost=wrong, actions=[1, 2])
    with pytest.raises(ValueError, match="needs `actions`"):
        tb.decide(normal(), cost=lambda a, y: y)
    with pytest.raises(TypeError, match="'squared'"):
        tb.decide(normal(), cost="hinge")
