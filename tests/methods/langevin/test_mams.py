"""MAMS against exact answers: moments and quantiles where steps are rejected, and lengths of trajectories."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.oracles import assert_close, normal
from tests.targets import (
    Target,
    assert_moments,
    assert_quantiles,
    correlated_gaussian,
    logistic_regression,
    skewed,
)
from torch import Tensor

import torchbayes as tb
from torchbayes.methods.langevin.mams import numbers_of_steps
from torchbayes.posteriors.problems import ProblemWarning

BANANA_CURVE = 0.03


def banana(weights_MD: Tensor) -> Tensor:
    """x₀ = 10 z₀, x₁ = 0.03 (x₀² − 100) + z₁."""
    x, y = weights_MD.double().unbind(-1)
    return -0.5 * (x / 10).square() - 0.5 * (y - BANANA_CURVE * (x.square() - 100)).square()


@pytest.mark.parametrize("mean", [1.0, 1.1, 1.5, 2.0, 3.3, 7.6])
def test_the_number_of_steps_has_its_mean_and_hardly_two_values_of_weight(mean: float):
    uniform = (torch.arange(200_000).double() + 0.5) / 200_000
    steps = numbers_of_steps(torch.full_like(uniform, mean), uniform)
    assert float(steps.double().mean()) == pytest.approx(mean, abs=1e-4)
    assert int(steps.min()) == 1
    assert int(steps.max()) <= 2 * mean


def test_a_mean_below_one_gives_one_step():
    uniform = torch.tensor([0.0, 0.5, 1 - 2**-53]).double()
    for mean in (1e-9, 0.3, 0.7, 0.999):
        assert numbers_of_steps(torch.full_like(uniform, mean), uniform).tolist() == [1, 1, 1]


def started(target: Target, chains: int) -> Tensor:
    assert target.sample is not None
    return target.sample(chains, 3)


@pytest.mark.parametrize("integrator", ["minimal_norm", pytest.param("leapfrog", marks=pytest.mark.study)])
def test_steps_that_are_rejected_often_leave_no_bias(integrator: Any):
    """Where a third is rejected, the same steps without rejections are off by many standard errors."""
    size, chains = 5, 15_000
    density = tb.FunctionDensity(lambda w: -0.5 * w.double().square().sum(1))
    step_size, trajectory = (5.0, 6.0) if integrator == "minimal_norm" else (3.2, 6.0)
    given: dict[str, Any] = {"step_size": step_size, "trajectory": trajectory, "mass": "unit"}
    method = tb.MAMS(chains, 12, 0, integrator=integrator, **given)
    run = tb.sample(density, method, normal(chains, size, seed=3), seed=5, callbacks=())
    assert 0.35 < run.numbers["acceptance"].mean() < 0.85
    last = run.weights_MSD[:, -1]
    error = (2 / (chains * size)) ** 0.5
    assert float(last.square().mean()) == pytest.approx(1.0, abs=4 * error)
    assert float(last.pow(4).mean()) == pytest.approx(3.0, abs=4 * (96 / (chains * size)) ** 0.5)
    assert_close(last.mean(0), torch.zeros(size).double(), rtol=0, atol=4.5 * chains**-0.5)
    moved = (last - run.weights_MSD[:, 0]).square().mean()
    assert float(moved) > 0.5
    loose = tb.MCLMC(4000, 20, 0, 1, integrator=integrator, energy_error=1e3, **given)
    with pytest.warns(ProblemWarning, match="energy error of .* chains has a variance of .* biased by 15 % and more"):
        other = tb.sample(density, loose, normal(4000, size, seed=3), seed=5, callbacks=())
    assert abs(float(other.weights_MSD[:, -1].square().mean()) - 1) > 10 * error


@pytest.mark.slow
def test_a_skewed_target_is_left_as_it_is():
    target = skewed()
    method = tb.MAMS(3000, 31, 30, step_size=1.2, trajectory=2.5, mass="unit")
    run = tb.sample(target.density(), method, started(target, 3000), seed=2, callbacks=())
    assert run.numbers["acceptance"].mean() < 0.995
    assert_moments(run.weights_MSD, target, variance_within=0.4)
    assert_quantiles(run.weights_MSD, target)


@pytest.mark.slow
def test_moments_of_a_logistic_regression_after_adaptation():
    target = logistic_regression()
    start = target.mean_D + 2 * normal(640, 3, seed=9) @ torch.linalg.cholesky(target.covariance_DD).T
    run = tb.sample(target.density(), tb.MAMS(640, 100, 80), start, seed=1, callbacks=())
    assert float(run.numbers["acceptance"].mean()) == pytest.approx(0.9, abs=0.06)
    assert_moments(run.weights_MSD, target)


@pytest.mark.study  # so is a skewed one, above
@pytest.mark.slow
def test_a_correlated_target_is_left_as_it_is():
    target = correlated_gaussian(condition=1e2)
    method = tb.MAMS(4000, 9, 8, step_size=1.2, trajectory=4.0, mass="unit")
    start = started(target, 4000)
    run = tb.sample(target.density(), method, start, seed=2, callbacks=())
    assert 0.5 < run.numbers["acceptance"].mean() < 0.98
    assert ((run.weights_MSD[:, 0] - start).square().mean(0) / target.variance_D).min() > 0.3
    assert_moments(run.weights_MSD, target)


@pytest.mark.study  # a skewed target is left as it is, above
@pytest.mark.slow
def test_a_banana_keeps_its_curve():
    """E[x₁] = 0, E[x₁²] = 19, and the curve itself: x₁ − 0.03 (x₀² − 100) is N(0, 1)."""
    chains = 4000
    z = normal(chains, 2, seed=1)
    start = torch.stack([10 * z[:, 0], BANANA_CURVE * (100 * z[:, 0].square() - 100) + z[:, 1]], 1)
    method = tb.MAMS(chains, 40, 39, step_size=1.5, trajectory=6.0, mass="unit")
    run = tb.sample(tb.FunctionDensity(banana), method, start, seed=2, callbacks=())
    x, y = run.weights_MSD[:, -1].unbind(-1)
    assert 0.5 < run.numbers["acceptance"].mean() < 0.98
    assert float(x.square().mean()) == pytest.approx(100, abs=4 * (20_000 / chains) ** 0.5)
    assert float(y.square().mean()) == pytest.approx(19, abs=4 * (4610 / chains) ** 0.5)
    rest = y - BANANA_CURVE * (x.square() - 100)
    assert float(rest.square().mean()) == pytest.approx(1, abs=4 * (2 / chains) ** 0.5)
    assert float((x - start[:, 0]).square().mean()) > 20


def test_a_single_weight_is_refused():
    density = tb.FunctionDensity(lambda w: -0.5 * w.double().square().sum(1))
    for make in (tb.MAMS, tb.MCLMC):
        with pytest.raises(ValueError, match=r"at least 2 random weights; got 1\. Take NUTS or HMC"):
            tb.sample(density, make(2, 60, 30), normal(2, 1), callbacks=())
    chains = tb.sample(density, tb.UnderdampedLangevin(400, 100, 60, 1), normal(400, 1), callbacks=())
    assert float(chains.weights_MSD.square().mean()) == pytest.approx(1.0, abs=0.1)
