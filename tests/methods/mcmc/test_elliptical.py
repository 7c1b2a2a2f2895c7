"""Elliptical slice sampling against exact posteriors: normal and other priors, tempered, correlated, in a subspace."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from tests.oracles import LinearGaussian, assert_close, normal
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.diagnostics import mcse_mean
from torchbayes.linalg import Dense
from torchbayes.methods.mcmc.elliptical import State
from torchbayes.methods.noise import Purpose, normals, uniforms
from torchbayes.model.priors.joint import Joint

INPUTS, NOISE = normal(20, 2, seed=1), 0.8


def targets(scale: float) -> LinearGaussian:
    return LinearGaussian(INPUTS, normal(20, seed=2), scale, NOISE)


def linear(prior: Any, **options: Any) -> tb.Model:
    return tb.Model(nn.Linear(2, 1).double(), tb.likelihoods.Gaussian(NOISE), prior, **options)


def sampled(model: tb.Model, **settings: Any) -> Tensor:
    method = tb.EllipticalSlice(400, 34, 14, plan="native", **settings)
    rows = (INPUTS, targets(1.5).targets_N.unsqueeze(1))
    posterior: Any = tb.fit(model, rows, method, callbacks=(), seed=3)
    return posterior.weights_MSD


def assert_moments(weights_MSD: Tensor, mean_D: Tensor, covariance_DD: Tensor) -> None:
    """Mean and covariance within five standard errors, by effective sample size."""
    error_D = mcse_mean(weights_MSD)
    assert ((weights_MSD.mean((0, 1)) - mean_D).abs() < 5 * error_D).all()
    centred_MSD = weights_MSD - mean_D
    products_MSDD = centred_MSD.unsqueeze(-1) * centred_MSD.unsqueeze(-2)
    flat_MSC = products_MSDD.flatten(2)
    assert ((flat_MSC.mean((0, 1)) - covariance_DD.flatten()).abs() < 5 * mcse_mean(flat_MSC)).all()
    assert (error_D < 0.05 * covariance_DD.diagonal().sqrt()).all()  # or the check could not fail


def exact(prior_DD: Tensor, loc_D: Tensor, *, likelihood: float = 1.0) -> tuple[Tensor, Tensor]:
    """Posterior of the linear model under N(loc, prior) with the likelihood to a power."""
    features = torch.cat([INPUTS, torch.ones(20, 1, dtype=torch.float64)], 1)
    precision_DD = torch.linalg.inv(prior_DD) + likelihood * features.T @ features / NOISE**2
    shift_D = torch.linalg.solve(prior_DD, loc_D) + likelihood * features.T @ targets(1.5).targets_N / NOISE**2
    covariance_DD = torch.linalg.inv(precision_DD)
    return covariance_DD @ shift_D, covariance_DD


@pytest.mark.parametrize(
    ("tempering", "temperature"),
    [
        *(pytest.param("joint", t, marks=pytest.mark.study) for t in (1.0, 3.0)),
        ("likelihood", 3.0),
    ],  # 1 is any ellipse's
)
def test_the_posterior_under_a_normal_prior(tempering: str, temperature: float):
    model = linear(tb.priors.Normal(1.5), temperature=temperature, tempering=tempering)
    widened = temperature if tempering == "joint" else 1.0
    prior_DD = 1.5**2 * widened * torch.eye(3, dtype=torch.float64)
    assert_moments(sampled(model), *exact(prior_DD, torch.zeros(3).double(), likelihood=1 / temperature))


@pytest.mark.parametrize("temperature", [pytest.param(1.0, marks=pytest.mark.study), 2.0])
def test_the_posterior_under_a_correlated_prior_away_from_zero(temperature: float):
    root_DD = normal(3, 3, seed=5)
    covariance_DD, loc_D = root_DD @ root_DD.T + 0.3 * torch.eye(3).double(), normal(3, seed=6)
    model = linear(
        Joint(loc_D, Dense.of_precision(torch.linalg.inv(covariance_DD).unsqueeze(0))), temperature=temperature
    )
    assert_moments(sampled(model), *exact(temperature * covariance_DD, loc_D, likelihood=1 / temperature))


@pytest.mark.study  # a prior that is not normal, below, is sampled by an ellipse of its spread
@pytest.mark.parametrize("scale", [0.4, 3.0])
def test_any_ellipse_gives_the_same_posterior(scale: float):
    prior_DD = 1.5**2 * torch.eye(3, dtype=torch.float64)
    found_MSD = sampled(linear(tb.priors.Normal(1.5)), scale=scale)
    assert_moments(found_MSD, *exact(prior_DD, torch.zeros(3).double()))


def test_a_prior_that_is_not_normal_is_sampled_exactly():
    weights_D = torch.linspace(-6, 6, 81, dtype=torch.float64)
    grid = torch.cartesian_prod(weights_D, weights_D)
    model = tb.Model(nn.Linear(1, 1).double(), tb.likelihoods.Gaussian(NOISE), tb.priors.Laplace(0.7))
    rows = (INPUTS[:6, :1], targets(1.5).targets_N[:6, None])
    method = tb.EllipticalSlice(250, 22, 12, plan="vmap")
    posterior: Any = tb.fit(model, rows, method, callbacks=(), seed=3)
    found_MSD = posterior.weights_MSD
    log_G = tb.LogDensity(model, 6, tb.Batch(*rows), plan="vmap").value(grid).log_density
    weight_G = log_G.softmax(0)
    mean_D = weight_G @ grid
    covariance_DD = (grid - mean_D).T @ ((grid - mean_D) * weight_G.unsqueeze(1))
    assert_moments(found_MSD, mean_D, covariance_DD)


def test_without_data_that_tell_anything_the_first_point_of_an_ellipse_is_taken():
    """Under a constant likelihood draws are independent: E cos φ = 0."""
    density = tb.FunctionDensity(lambda w_MD: -0.5 * w_MD.square().sum(-1))
    chains = tb.sample(density, tb.EllipticalSlice(256, 125, 0, scale=1.0), torch.zeros(256, 3).double(), callbacks=())
    assert (chains.numbers["gradients"] == 1).all()
    lagged = (chains.weights_MSD[:, 1:] * chains.weights_MSD[:, :-1]).mean()
    assert abs(lagged) < 5 / math.sqrt(256 * 124 * 3)
    assert_moments(chains.weights_MSD, torch.zeros(3).double(), torch.eye(3).double())


def test_a_step_is_the_published_one():
    """The same angles and heights, one chain at a time, in plain numbers."""

    def log_likelihood(w_D: Tensor) -> float:
        return float(-3 * (w_D - 1).square().sum())

    loc, scale, seeds = 0.0, 1.3, (5, 6, 7)
    density = tb.FunctionDensity(lambda w: -3 * (w - 1).square().sum(-1) - 0.5 * (w / scale).square().sum(-1))
    method, start_MD = tb.EllipticalSlice(3, 10, 0, scale=scale), normal(3, 2, seed=8)
    state: State = method.init(density, start_MD, seeds=seeds)
    for step in range(4):
        second_MD = scale * normals(seeds, Purpose.SLICE_ELLIPSE, step, like=start_MD)
        level_M, first_M = uniforms(seeds, Purpose.SLICE_LEVEL, step, count=2).unbind(1)
        wanted = []
        for chain in range(3):
            here_D = state.weights_MD[chain]
            height = log_likelihood(here_D) + math.log1p(-float(level_M[chain]))
            angle = 2 * math.pi * float(first_M[chain])
            low, high, number = angle - 2 * math.pi, angle, 0
            while True:
                there_D = loc + (here_D - loc) * math.cos(angle) + second_MD[chain] * math.sin(angle)
                if log_likelihood(there_D) > height:
                    break
                low, high = (angle, high) if angle < 0 else (low, angle)
                share = float(uniforms(seeds, Purpose.SLICE_ANGLE, step, number)[chain])
                angle, number = low + share * (high - low), number + 1
            wanted.append(there_D)
        state, info = method.step(density, state)
        assert_close(state.weights_MD, torch.stack(wanted), rtol=1e-12)
        assert_close(info.log_density_M, density.value(state.weights_MD).log_density, rtol=1e-12)


def test_points_where_the_density_is_not_finite_or_raises_are_outside():
    def log_density(w_D: Tensor) -> Tensor:
        if (w_D > 1.5).any():
            raise ValueError("too large")
        return torch.where(w_D[0] < -1, torch.nan, -0.5 * w_D.square().sum())

    method = tb.EllipticalSlice(8, 110, 10, scale=1.0)
    chains = tb.sample(log_density, method, torch.zeros(8, 1).double(), callbacks=())
    draws = chains.weights_MSD
    assert draws.min() >= -1
    assert draws.max() <= 1.5
    density = torch.distributions.Normal(torch.tensor(0.0).double(), 1.0)
    a, b = (density.log_prob(torch.tensor(v).double()).exp() for v in (-1.0, 1.5))
    mass = density.cdf(torch.tensor(1.5)) - density.cdf(torch.tensor(-1.0))
    assert abs(draws.mean() - (a - b) / mass) < 5 * mcse_mean(draws).item()


def test_a_density_that_is_not_the_same_twice_does_not_hang():
    levels = itertools.count(0, -10)

    def falling(w_D: Tensor) -> Tensor:
        return next(levels) - 0.0 * w_D.sum()

    method = tb.EllipticalSlice(1, 21, 1, scale=1.0)
    with pytest.warns(tb.ProblemWarning, match="accepted fewer than 1 %"):
        chains = tb.sample(falling, method, torch.zeros(1, 2).double(), callbacks=())
    assert (chains.weights_MSD == 0).all()


@pytest.mark.parametrize("prior", [tb.priors.Flat(), tb.priors.StudentT(2.0, 1.0)], ids=["flat", "infinite variance"])
def test_priors_without_variance_need_a_scale(prior: Any):
    rows = (INPUTS, targets(1.5).targets_N.unsqueeze(1))
    with pytest.raises(ValueError, match="Give `scale`"):
        tb.fit(linear(prior), rows, tb.EllipticalSlice(2, 20, 5), callbacks=())
    actual: Any = tb.fit(linear(prior), rows, tb.EllipticalSlice(2, 20, 5, scale=1.0), callbacks=())
    assert torch.isfinite(actual.weights_MSD).all()


def test_a_density_without_prior_needs_a_scale():
    density = tb.FunctionDensity(lambda w_MD: -0.5 * w_MD.square().sum(-1))
    with pytest.raises(ValueError, match="Give `scale`"):
        tb.sample(density, tb.EllipticalSlice(2, 20, 5), torch.zeros(2, 3).double(), callbacks=())
