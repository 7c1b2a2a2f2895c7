import math
from typing import Any

import pytest
import torch
from torch import nn

from tests.evidence.helpers import bimodal, linear_problem, normal_draws, skewed, tanh_problem
from tests.oracles import assert_close, finite_differences, normal
from torchbayes.density import LogDensity
from torchbayes.driver.sample import run_chains
from torchbayes.evidence import AnnealedDensity, FunctionTarget, ModelTarget
from torchbayes.evidence.path import as_target
from torchbayes.methods.mcmc.hmc import HMC
from torchbayes.model import Batch, Model, likelihoods, priors

BETAS = torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64)


def laplace_problem() -> tuple[Model, Any]:
    """Not normal, and with a learned noise scale in the flat vector."""
    model = Model(nn.Linear(2, 1).double(), likelihoods.Gaussian("learned"), priors.Laplace(0.7))
    return model, (normal(9, 2), normal(9, seed=1))


@pytest.mark.parametrize("problem", [linear_problem, tanh_problem, laplace_problem])
def test_every_row_has_its_own_temperature(problem: Any):
    model, data = problem()[:2]
    rows = Batch(*data)
    at = 0.5 * normal(3, model.layout.size)
    target = ModelTarget(model, data)
    value, model = AnnealedDensity(target, BETAS)(at), target.model  # with the scale of the targets
    for m, beta in enumerate(BETAS):

        def log_density(w: torch.Tensor, beta: torch.Tensor = beta) -> torch.Tensor:
            return beta * model.log_likelihood(w, rows).sum() + model.log_prior(w)

        assert_close(value.log_density[m], log_density(at[m]))
        assert_close(value.log_likelihood[m], model.log_likelihood(at[m], rows).sum())
        assert_close(value.gradient[m], finite_differences(log_density, at[m]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("plan", ["native", "loop", "vmap"])
def test_at_one_it_is_the_log_density(plan: str):
    model, data = tanh_problem()
    at = normal(5, 4)
    value = AnnealedDensity(ModelTarget(model, data, plan=plan), torch.ones(1))(at)
    expected = LogDensity(model, 8, Batch(*data), plan="loop")(at)
    for actual, wanted in zip(value, expected, strict=True):
        assert_close(actual, wanted)
    assert value.log_density.dtype == torch.float64


def test_functions_have_values_and_gradients():
    target, _ = skewed()
    at = normal(3, 1)
    value = AnnealedDensity(target, BETAS)(at)
    parts = target.parts(at)
    assert_close(value.log_density, BETAS * parts.log_likelihood + parts.log_prior)
    counts = torch.tensor([0.0, 1.0, 0.0]).double()  # d/dw of Σ y w − e^w, and of 2w − e^w / 2
    slope = BETAS * (counts.sum() - 3 * at[:, 0].exp()) + 2 - at[:, 0].exp() / 2
    assert_close(value.gradient[:, 0], slope)


def test_an_impossible_place_counts_for_nothing_at_the_prior():
    target = FunctionTarget(
        lambda w: -0.5 * w.square().sum(-1), lambda w: w[:, 0].log(), normal_draws(1.0, 1)
    )  # log 0 = −inf, with an infinite gradient
    at = torch.zeros(2, 1, dtype=torch.float64)
    value = AnnealedDensity(target, torch.tensor([0.0, 0.5]))(at)
    assert value.log_density.tolist() == [0.0, -math.inf]
    assert value.gradient[0].tolist() == [0.0]


def test_leapfrog_is_reversible_with_a_temperature_for_each_row():
    model, data = tanh_problem()
    density = AnnealedDensity(ModelTarget(model, data), BETAS)
    at, momentum = 0.3 * normal(3, 4), normal(3, 4, seed=1)
    options = {"step_size_M": torch.tensor([0.05, 0.03, 0.01]), "steps_M": torch.tensor([7, 3, 9])}
    end = density.leapfrog(at, momentum, gradient_MD=density(at).gradient, **options)
    back = density.leapfrog(end.weights_MD, -end.momentum_MD, gradient_MD=end.value.gradient, **options)
    assert_close(back.weights_MD, at, atol=1e-10)
    assert_close(end.value.log_density, density(end.weights_MD).log_density)


@pytest.mark.slow
def test_samplers_of_the_library_work_on_it():
    """Mean and covariance of the linear posterior with likelihood^β: noise variance s²/β."""
    model, data, oracle = linear_problem()
    density = AnnealedDensity(ModelTarget(model, data), torch.tensor([0.0, 0.2, 1.0]).double().repeat_interleave(20))
    method = HMC(chains=60, steps=300, burn_in=100, mass="diagonal", jitter=0.2)
    run = run_chains(density, method, 0.1 * normal(60, 3), seed=0)
    features = oracle.features(data[0])
    for m, beta in enumerate([0.0, 0.2, 1.0]):
        draws = run.weights_MSD[20 * m : 20 * m + 20].flatten(0, 1)
        precision = beta * features.T @ features / 0.25 + torch.eye(3).double() / 0.64
        covariance = torch.linalg.inv(precision)
        mean = beta * covariance @ features.T @ data[1] / 0.25
        assert_close(draws.mean(0), mean, rtol=0, atol=0.06)  # 4,000 draws of spread at most 0.8
        assert_close(draws.T.cov(), covariance, rtol=0, atol=0.08)


@pytest.mark.parametrize("betas", [[-0.1], [0.5, 1.2], [math.nan]])
def test_temperatures_outside_the_path(betas: list[float]):
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
        AnnealedDensity(bimodal()[0], torch.tensor(betas))


def test_models_without_an_evidence():
    data = (normal(5, 2), normal(5))
    network = nn.Linear(2, 1).double()
    with pytest.raises(ValueError, match="flat prior is improper"):
        ModelTarget(Model(network, likelihoods.Gaussian(), {"weight": priors.Normal(), "*": priors.Flat()}), data)
    with pytest.raises(ValueError, match="at temperature 1; its temperature is 2"):
        ModelTarget(Model(network, likelihoods.Gaussian(), temperature=2), data)
    normed = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)).double()
    with pytest.raises(ValueError, match="is a batch norm"):
        ModelTarget(Model(normed, likelihoods.Gaussian()), data)
    with pytest.raises(ValueError, match="the data are empty"):
        ModelTarget(Model(network, likelihoods.Gaussian()), (torch.zeros(0, 2), torch.zeros(0)))
    with pytest.raises(ValueError, match="inputs must be finite"):
        ModelTarget(Model(network, likelihoods.Gaussian()), (data[0] / 0, data[1]))


def test_what_is_not_a_target():
    model, data, _ = linear_problem()
    with pytest.raises(TypeError, match="got Linear"):
        as_target(nn.Linear(2, 1), data)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`data` are needed"):
        as_target(model)
    with pytest.raises(ValueError, match="`data` must be None"):
        as_target(bimodal()[0], data)


def test_draws_come_from_the_prior_in_the_networks_dtype():
    model = Model(nn.Linear(2, 1), likelihoods.Gaussian(), priors.Normal(2.0))
    target = ModelTarget(model, (torch.zeros(3, 2), torch.zeros(3)))
    draws = target.draw(5, 7)
    assert draws.dtype == torch.float32
    assert torch.equal(draws, model.prior.sample(5, seed=7).float())
