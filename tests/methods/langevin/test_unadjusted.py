"""MCLMC and underdamped Langevin dynamics: stationary laws of their steps, what ALBA finds, and refused steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.oracles import LinearGaussian, assert_close, normal
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.methods.langevin.alba import Rule, refused, stages, told
from torchbayes.methods.langevin.integrators import SHARES
from torchbayes.posteriors.problems import ProblemWarning

NORMAL = tb.FunctionDensity(lambda w: -0.5 * w.double().square().sum(1))


def run(method: Any, start: Tensor, density: Any = NORMAL, seed: int = 1) -> tb.Chains:
    return tb.sample(density, method, start, seed=seed, callbacks=())


def oscillator(integrator: str, step_size: float) -> tuple[float, float]:
    """Stationary variance on N(0, 1), and the variance of the energy error, of underdamped steps of one frequency.

    A step of the integrator is [[A, B], [C, A]] on (w, p): the variance is −B/C whatever the refreshment, and
    Var[E] = B² (s² − 1)²/s².
    """
    step = np.eye(2)
    for number, share in enumerate(SHARES[integrator]):
        kick, move = [[1, 0], [-share * step_size, 1]], [[1, share * step_size], [0, 1]]
        part = np.array(move if number % 2 else kick)
        step = part @ step
    variance = -step[0, 1] / step[1, 0]
    return variance, step[0, 1] ** 2 * (variance - 1) ** 2 / variance


@pytest.mark.parametrize(("integrator", "step_size"), [("leapfrog", 0.7), ("minimal_norm", 1.6)])
def test_underdamped_steps_have_the_law_of_their_matrix(integrator: Any, step_size: float):
    settings = {"step_size": step_size, "trajectory": 1.5, "mass": "unit", "energy_error": 1e3}
    method = tb.UnderdampedLangevin(400, 100, 40, 1, integrator=integrator, **settings)
    chains = run(method, normal(400, 40))
    variance, error = oscillator(integrator, step_size)
    squares = chains.weights_MSD.square().mean(1).flatten()  # of 16,000 independent oscillators
    sd = float(squares.std()) / len(squares) ** 0.5
    assert float(squares.mean()) == pytest.approx(variance, abs=4 * sd)
    assert abs(variance - 1) > 8 * sd
    errors = chains.numbers["energy_error"][:, 40:].mean(1)
    assert float(errors.mean()) == pytest.approx(error, abs=4 * float(errors.std()) / 20)
    assert float(errors.std()) / 20 < 0.03 * error


def test_leapfrog_has_its_closed_form():
    variance, error = oscillator("leapfrog", 0.7)
    assert_close(variance, 1 / (1 - 0.49 / 4))
    assert_close(error, 0.7**6 / (16 * (1 - 0.49 / 4)))


@pytest.mark.study  # `test_on_all_the_data_it_is_mclmc_with_leapfrog_steps` has both
@pytest.mark.slow
def test_microcanonical_bias_and_energy_errors_grow_as_they_should():
    """With leapfrog steps of h = ε/√D on N(0, I): h²/12, and Var[E]/D = h⁶/144."""
    size, actual = 100, {}
    for h in (0.35, 0.7):
        settings = {"step_size": h * size**0.5, "trajectory": size**0.5, "mass": "unit", "energy_error": 1.0}
        method = tb.MCLMC(600, 110, 40, 1, integrator="leapfrog", **settings)
        chains = run(method, normal(600, size))
        squares = chains.weights_MSD.square().mean((1, 2))
        error = float(squares.std()) / len(squares) ** 0.5
        actual[h] = float(chains.numbers["energy_error"].mean())
        assert float(squares.mean()) - 1 == pytest.approx(h**2 / 12, abs=4 * error + 0.05 * h**2 / 12)
        assert actual[h] == pytest.approx(h**6 / 144, rel=0.12)
    assert math.log2(actual[0.7] / actual[0.35]) == pytest.approx(6.0, abs=0.2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "integrator", "energy_error", "step_size", "length"),
    [
        (tb.MCLMC, "minimal_norm", 5e-4, 12.36, 8.31),
        pytest.param(tb.MCLMC, "leapfrog", 5e-4, 6.25, 9.49, marks=pytest.mark.study),
        pytest.param(tb.UnderdampedLangevin, "minimal_norm", 3e-4, 1.334, 0.763, marks=pytest.mark.study),
        (tb.UnderdampedLangevin, "leapfrog", 3e-4, 0.398, 0.972),
    ],
)
def test_tuning_finds_the_steps_and_lengths_that_were_published(
    make: Any, integrator: Any, energy_error: float, step_size: float, length: float
):
    """For a normal target of 100 weights, in coordinates in which it is N(0, I)."""
    method = make(3, 1202, 1200, 1, integrator=integrator, energy_error=energy_error, mass="unit")
    state = method.init(NORMAL, 2 * normal(3, 100), seeds=(1, 2, 3))
    for _ in range(1200):
        state, _ = method.step(NORMAL, state)
    assert float(state.step_size.step_size_M.mean()) == pytest.approx(step_size, rel=0.06)
    assert float(state.trajectory_M.mean()) == pytest.approx(length, rel=0.25)
    assert state.path == {}


def test_the_rule_meets_its_target_where_errors_grow_with_the_third_power_of_the_step():
    """A normal E has 0.972 times the variance of the target (section 1.5 of the derivation: a fixed point)."""
    generator = torch.Generator().manual_seed(0)
    step_size, rule, errors = torch.full((200,), 30.0).double(), Rule.empty(torch.zeros(200).double()), []
    for number in range(1500):
        ratio = (step_size.pow(3) * torch.randn(200, generator=generator, dtype=torch.float64)).square()
        rule, step_size = rule.adapted(step_size, ratio)
        if number >= 500:
            errors.append(step_size.pow(6).mean())
    assert float(torch.stack(errors).mean()) == pytest.approx(0.972, abs=0.05)


def test_a_step_that_fails_is_refused_and_tells_that_its_error_was_large():
    error = torch.tensor([0.0, 3.0, -3.2, 1e9, torch.nan, torch.inf], dtype=torch.float64)
    assert refused(error, size=10, target=1e-3).tolist() == [False, False, True, True, True, True]
    assert_close(told(error, size=10, target=1e-3), torch.tensor([0, 900, 1024, 1e9, 1e9, 1e9], dtype=torch.float64))
    rule = Rule.empty(torch.zeros(6).double())
    _, step_size = rule.adapted(torch.ones(6).double(), told(error, size=10, target=1e-3))
    assert (step_size[1:] < 1).all()
    assert float(step_size[-1]) == pytest.approx(1e9 ** (-1 / 6), rel=1e-6)


@pytest.mark.parametrize("make", [tb.MCLMC, pytest.param(tb.UnderdampedLangevin, marks=pytest.mark.study)])
def test_a_first_step_that_is_far_too_long_is_found_out(make: Any):
    """Scales of a thousandth: the first step is refused, and the step size falls instead of growing."""
    narrow = tb.FunctionDensity(lambda w: -0.5 * 1e6 * w.double().square().sum(1))
    method = make(16, 180, 100, 1, mass="unit")
    chains = run(method, 1e-3 * normal(16, 20), narrow)
    ratio = chains.weights_MSD.square().mean() * 1e6
    assert float(ratio) == pytest.approx(1.0, abs=0.15)
    assert float(chains.numbers["acceptance"][:, 0].mean()) == 0.0
    assert float(chains.numbers["acceptance"][:, 100:].mean()) > 0.99


def test_stages_of_burn_in():
    plan = stages(3000, measures=True)
    assert (plan.settled, plan.end) == (2000, 3000)
    assert 0 < plan.first < plan.ends[0] < plan.ends[-1] < plan.settled
    assert stages(3000, measures=False).settled == 3000
    assert stages(4, measures=True) == (3, (), 3, 4)


def test_what_is_given_stays():
    method = tb.MCLMC(2, 100, 60, 1, step_size=0.7, trajectory=3.0)
    state = method.init(NORMAL, normal(2, 5), seeds=(1, 2))
    for _ in range(60):
        state, _ = method.step(NORMAL, state)
    assert_close(state.step_size.step_size_M, torch.full((2,), 0.7, dtype=torch.float64))
    assert_close(state.trajectory_M, torch.full((2,), 3.0, dtype=torch.float64))
    assert (state.inverse_mass_MD != 1).all()


@pytest.mark.slow
@pytest.mark.parametrize("make", [tb.MCLMC, pytest.param(tb.UnderdampedLangevin, marks=pytest.mark.study)])
def test_scales_that_differ_by_thirty_are_learned(make: Any):
    scales = torch.logspace(-0.75, 0.75, 20, dtype=torch.float64)
    target = tb.FunctionDensity(lambda w: -0.5 * (w.double() / scales).square().sum(1))
    chains = run(make(32, 900, 500, 4), scales.max() * normal(32, 20), target)
    if make is tb.MCLMC:
        assert chains.numbers["step_size"][:, -1].min() > 2.0  # 1.1 in the units of the narrowest weight
    squares = (chains.weights_MSD / scales).square().mean((0, 1))
    assert float(squares.mean()) == pytest.approx(1.0, abs=0.05)
    assert ((squares - 1).abs() < 0.2).all()


@pytest.mark.study  # scales are learned, above, and fits of MILE have exact posteriors
@pytest.mark.slow
def test_a_linear_regression_is_met():
    inputs = normal(30, 3, seed=2)
    problem = LinearGaussian(inputs, inputs @ torch.tensor([1.0, -2.0, 0.5]).double() + 0.3, 1.5, 0.5, 1.0)
    model = tb.Model(nn.Linear(3, 1).double(), tb.likelihoods.Gaussian(0.5), tb.priors.Normal(1.5))
    posterior = tb.fit(model, (inputs, problem.targets_N.unsqueeze(-1)), tb.MCLMC(16, 1600, 600, 2), callbacks=())
    assert isinstance(posterior, tb.Draws)
    mean, covariance = problem.posterior()
    actual = posterior.weights_MSD.flatten(0, 1)
    assert_close((actual.mean(0) - mean) / covariance.diagonal().sqrt(), torch.zeros(4).double(), atol=0.12)
    assert_close(actual.T.cov().diagonal() / covariance.diagonal(), torch.ones(4).double(), rtol=0.2)


def test_steps_that_are_all_refused_are_said():
    method = tb.MCLMC(2, 60, 0, 1, step_size=50.0, trajectory=1.0, mass="unit")
    with pytest.warns(ProblemWarning, match="up to 100% of the steps|accepted fewer than 1 %"):
        run(method, normal(2, 5))


def test_chains_without_burn_in_need_a_step_size():
    with pytest.raises(ValueError, match="Give a `step_size`"):
        tb.MCLMC(2, 60, 0)
