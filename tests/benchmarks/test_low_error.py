"""Gradients to low error: the targets against distributions of PyTorch, closed forms, and what is computed of runs."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from benchmarks.low_error.crossing import REFERENCES, Run, crossing, errors, is_done, moments, pooled
from benchmarks.low_error.gradients import GRADIENTS
from benchmarks.low_error.references import brownian
from benchmarks.low_error.runs import Closed, blackjax, ours
from benchmarks.low_error.targets import PAIRS, STUDENTS, TARGETS
from torch import Tensor
from torch.distributions import Bernoulli, Gamma, LogNormal, Normal, SoftplusTransform
from torch.nn.functional import softplus

import torchbayes as tb
from tests.oracles import assert_close, normal


def data_of(name: str) -> dict[str, Tensor]:
    return {key: torch.from_numpy(value) for key, value in TARGETS[name].posterior.data.items()}


def by_formula(name: str, w: Tensor) -> Tensor:
    """The normalised log density, from distributions."""
    data = data_of(name)
    if name == "gaussian":
        return Normal(0.0, torch.logspace(-0.75, 0.75, 100, dtype=torch.float64)).log_prob(w).sum(-1)
    if name == "banana":
        return Normal(0.0, 10.0).log_prob(w[:, 0]) + Normal(0.03 * (w[:, 0] ** 2 - 100), 1.0).log_prob(w[:, 1])
    if name == "rosenbrock":
        x, y = w[:, :PAIRS], w[:, PAIRS:]
        return (Normal(1.0, 1.0).log_prob(x) + Normal(x**2, 0.1**0.5).log_prob(y)).sum(-1)
    if name == "brownian":
        to = SoftplusTransform()
        scales, path = softplus(w[:, :2]), w[:, 2:]
        before = torch.cat([torch.zeros(len(w), 1), path[:, :-1]], 1)
        value = (LogNormal(0.0, 2.0).log_prob(scales) + to.log_abs_det_jacobian(w[:, :2], scales)).sum(-1)
        seen = Normal(path, scales[:, 1:]).log_prob(data["observed"])[:, data["seen"] > 0]
        return value + Normal(before, scales[:, :1]).log_prob(path).sum(-1) + seen.sum(-1)
    if name == "credit":
        scales = w[:, :26].exp()
        half = torch.full((2,), 0.5).double()
        prior = (Gamma(half[0], half[1]).log_prob(scales) + w[:, :26]).sum(-1) + Normal(0.0, 1.0).log_prob(
            w[:, 26:]
        ).sum(-1)
        logits = (scales[:, :1] * scales[:, 1:] * w[:, 26:]) @ data["inputs"].T
        return prior + Bernoulli(logits=logits).log_prob((data["signs"] > 0).double()).sum(-1)
    able, mean, hard = w[:, :STUDENTS], w[:, STUDENTS], w[:, STUDENTS + 1 :]
    logits = (mean[:, None] + able)[:, :, None] - hard[:, None]
    arrays = np.load(REFERENCES.with_name("targets.npz"))
    correct = torch.from_numpy(np.unpackbits(arrays["correct"]).reshape(logits.shape[1:])).double()
    prior = Normal(0.0, 1.0).log_prob(torch.cat([able, hard], 1)).sum(-1) + Normal(0.75, 1.0).log_prob(mean)
    return prior + (data["asked"] * Bernoulli(logits=logits).log_prob(correct)).sum((-2, -1))


@pytest.mark.parametrize("name", TARGETS)
def test_densities_are_their_formulas_up_to_a_constant_and_gradients_those_of_autograd(name: str):
    target = TARGETS[name]
    points = 0.7 * normal(5, target.posterior.size) + 0.2
    actual = target.posterior.log_density(torch, data_of(name), points)
    expected = by_formula(name, points)
    assert_close(actual - actual[0], expected - expected[0], rtol=1e-9, atol=1e-8)
    leaf = points.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(target.posterior.log_density(torch, data_of(name), leaf).sum(), leaf)
    value = Closed(name)(points)
    assert_close(value.log_density, actual, rtol=1e-12, atol=1e-9)
    assert_close(value.gradient, gradient, rtol=1e-10, atol=1e-9)
    assert_close(Closed(name).value(points).log_density, actual, rtol=1e-12, atol=1e-9)


def test_the_data_are_those_that_are_told_of():
    items, credit = TARGETS["items"].posterior.data, TARGETS["credit"].posterior.data
    generated = np.random.RandomState(seed=1).binomial(1, 0.75, size=(100, 400)).T  # as the Inference Gym made it
    assert np.array_equal(items["asked"], generated)
    assert items["asked"].sum() == 30_012
    assert credit["inputs"].shape == (1000, 25)
    assert (credit["signs"] > 0).sum() == 300
    assert_close(credit["inputs"][:, :24].std(0), np.ones(24))
    assert TARGETS["brownian"].posterior.data["seen"].sum() == 20


def test_closed_moments_are_those_of_exact_draws():
    """Polynomials of normal numbers, by Gauss-Hermite quadrature."""
    nodes, weights = (torch.from_numpy(array) for array in np.polynomial.hermite_e.hermegauss(20))
    share = (weights[:, None] * weights / (2 * math.pi)).flatten()
    first, second = (nodes_.flatten() for nodes_ in torch.meshgrid(nodes, nodes, indexing="ij"))
    pairs = {
        "banana": (10 * first, 0.03 * (100 * first**2 - 100) + second),
        "rosenbrock": (1 + first, (1 + first) ** 2 + 0.1**0.5 * second),
    }
    for name, pair in pairs.items():
        for at, values in zip((0, -1), pair, strict=True):
            square = share @ values**2
            assert_close(moments(name)[:, at], torch.stack([square, share @ values**4 - square**2]), rtol=1e-9)
    variances = np.logspace(-1.5, 1.5, 100)
    assert_close(moments("gaussian"), np.stack([variances, 2 * variances**2]))


@pytest.mark.slow
def test_the_reference_of_the_brownian_motion_is_its_quadrature():
    actual = json.loads(REFERENCES.read_text())["brownian"]["mean"]
    assert_close(brownian(0.4).mean_F, torch.tensor(actual).double(), rtol=1e-6)


def test_every_target_has_moments_and_starts():
    for name, target in TARGETS.items():
        mean_D, variance_D = moments(name)
        assert mean_D.shape == (target.posterior.size,)
        assert (variance_D > 0).all()
        assert np.array_equal(target.starts(3), target.starts(3))
        assert torch.isfinite(Closed(name)(torch.from_numpy(target.starts(3))).gradient).all()
    assert GRADIENTS.keys() == TARGETS.keys()


def test_a_crossing_is_the_last_step_whose_median_is_above():
    paths = np.array([[1.0, 0.5, 0.001, 0.02, 0.001, 0.001], [1.0, 0.5, 0.02, 0.03, 0.02, 0.001], [1, 0, 0, 1, 0, 0]])
    assert crossing(paths) == 4  # medians 1, 0.5, 0.001, 0.03, 0.001, 0.001
    assert crossing(paths[:, :4]) == math.inf
    assert crossing(np.zeros((2, 3))) == 1


def test_errors_are_squares_in_variances_of_the_square():
    means = np.array([[[2.0, 5.0], [1.0, 4.0]]])
    actual = errors(means, np.array([[1.0, 4.0], [2.0, 0.5]]))
    assert_close(actual, np.array([[[1.25, 0.0]], [[2.0, 0.0]]]))


def test_independent_draws_need_a_hundred():
    """The error by the mean over many parameters is 1/t after t independent draws."""
    squares = normal(16, 200, 500).square().numpy()
    means = squares.cumsum(1) / np.arange(1, 201)[:, None]
    curves = errors(means, np.stack([np.ones(500), np.full(500, 2.0)]))
    run = Run(curves, 3.0, 7.0, 1.0, 1.0, np.concatenate([means[:, -1], means[:, -1]], 1))
    assert run.needed_C[0] == pytest.approx(300, rel=0.05)
    assert run.needed_C[1] == math.inf  # the largest of 500 errors is about 9 times as large
    assert run.spread_C()[0] < 15
    assert math.isnan(run.spread_C()[1])
    expected = (squares.mean((0, 1)) - 1) ** 2 / 2
    assert pooled(run, np.stack([np.ones(500), np.full(500, 2.0)])) == pytest.approx(expected.max(), rel=1e-9)


def test_a_run_ends_half_again_after_its_crossing_or_with_its_budget():
    target, curve = replace(TARGETS["gaussian"], budget=1000), np.full((2, 4, 10), 0.5)
    low = np.zeros((2, 4, 10))
    assert not is_done([curve], 2.0, target)
    assert not is_done([curve, low[..., :4]], 2.0, target)
    assert is_done([curve, low[..., :5]], 2.0, target)
    assert is_done([curve], 100.0, target)
    assert is_done([curve], 2.0, target, length=20)
    assert not is_done([curve, low], 2.0, target, length=41)


def test_our_runs_count_their_gradients_and_meet_the_moments(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(TARGETS, "gaussian", replace(TARGETS["gaussian"], budget=2000))
    run = ours("gaussian", tb.MCLMC(8, 1204, 1200))
    assert (run.gradients, run.tuning) == (2.0, 2400.0)
    assert 150 < run.needed_C[0] < 700
    assert pooled(run, moments("gaussian")) < 0.02
    assert_close(run.means_MF[:, :100].mean(0) / moments("gaussian")[0], np.ones(100), rtol=0, atol=0.3)


def test_without_an_environment_there_is_advice(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"setup\.sh"):
        blackjax("gaussian", "nuts", chains=2, where=tmp_path)
