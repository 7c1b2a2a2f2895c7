"""Where the answer is known in closed form, methods meet it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy.optimize import brentq
from torch import Tensor, nn

import torchbayes as tb
from tests.laws.cases import normal
from torchbayes.linalg import Diagonal
from torchbayes.methods.optimise.optimizers import Optimizer

ROWS, FEATURES, NOISE, SCALE = 40, 3, 0.7, 0.4
INPUTS = normal(ROWS, FEATURES)
TARGETS = INPUTS @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + NOISE * normal(ROWS, seed=1)


def linear(prior: Any, likelihood: Any = None, **settings: Any) -> tb.Model:
    module = nn.Linear(FEATURES, 1, bias=False).double()
    return tb.Model(module, likelihood or tb.likelihoods.Gaussian(NOISE), prior, **settings)


STEEP = tb.SGD(lr=0.1, momentum=0.6)  # 150 steps reach the modes here to rounding


def mode(model: tb.Model, epochs: int = 150, **settings: Any) -> Tensor:
    """Full-batch MAP, (M, D)."""
    usual = {"optimizer": STEEP, "schedule": tb.Constant()}
    method = tb.MAP(**{**usual, **settings}, epochs=epochs)
    return tb.fit(model, (INPUTS, TARGETS), method, callbacks=()).sample(method.members)


def ridge(noise_variance: float = NOISE**2, prior_variance: float = SCALE**2) -> Tensor:
    """Posterior mean (XᵀX/σ² + I/s²)⁻¹ Xᵀy/σ²."""
    precision = INPUTS.T @ INPUTS / noise_variance + torch.eye(FEATURES, dtype=torch.float64) / prior_variance
    return torch.linalg.solve(precision, INPUTS.T @ TARGETS / noise_variance)


def test_map_is_the_posterior_mean_of_a_linear_gaussian_model() -> None:
    actual = mode(linear(tb.priors.Normal(SCALE)), members=2)
    torch.testing.assert_close(actual, ridge().expand(2, -1), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("optimizer", "schedule"),
    [
        pytest.param(
            tb.SGD(lr=0.05, nesterov=True), tb.Constant(), marks=pytest.mark.study
        ),  # of optimizers' own tests
        (tb.SGD(lr=0.2, momentum=0.0), tb.PiecewiseLinear(0.1)),
        (tb.Adam(lr=0.1), tb.Cosine()),
    ],
)
def test_map_does_not_depend_on_the_way_down(optimizer: Optimizer, schedule: Any) -> None:
    actual = mode(linear(tb.priors.Normal(SCALE)), optimizer=optimizer, schedule=schedule, epochs=400)
    torch.testing.assert_close(actual[0], ridge(), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_averages_at_a_vanishing_rate_are_the_mode() -> None:
    """The prior and the likelihood of SWA and SWAG are those of MAP: full batches lead to the same point."""
    settings = {"epochs": 200, "averaging_lr": 0.05, "optimizer": STEEP, "burn_in": 0.9}
    for method in (tb.SWA(**settings), tb.SWAG(**settings, rank=2)):
        posterior = tb.fit(linear(tb.priors.Normal(SCALE)), (INPUTS, TARGETS), method, callbacks=())
        torch.testing.assert_close(posterior.functions(1).weights_SD[0], ridge(), rtol=1e-9, atol=1e-9)


def test_map_with_a_flat_prior_is_least_squares() -> None:
    expected = torch.linalg.lstsq(INPUTS, TARGETS.unsqueeze(1)).solution.squeeze(1)
    torch.testing.assert_close(mode(linear(tb.priors.Flat()))[0], expected, rtol=1e-9, atol=1e-9)


def test_weight_decay_of_adamw_is_added_to_the_prior() -> None:
    """At the fixed point of AdamW the update of Adam equals the decay; with a small one it is near least squares."""
    near = mode(
        linear(tb.priors.Flat()), optimizer=tb.AdamW(lr=0.05, weight_decay=0.0), schedule=tb.Cosine(), epochs=400
    )
    far = mode(
        linear(tb.priors.Flat()), optimizer=tb.AdamW(lr=0.05, weight_decay=1.0), schedule=tb.Cosine(), epochs=400
    )
    expected = torch.linalg.lstsq(INPUTS, TARGETS.unsqueeze(1)).solution.squeeze(1)
    torch.testing.assert_close(near[0], expected, rtol=1e-6, atol=1e-6)
    assert 0.5 < far.norm() / expected.norm() < 0.8  # over starts 0.64 to 0.69


def test_joint_tempering_leaves_the_mode() -> None:
    actual = mode(linear(tb.priors.Normal(SCALE), temperature=0.1))
    torch.testing.assert_close(actual[0], ridge(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("temperature", [0.5, 4.0])
@pytest.mark.slow
def test_likelihood_tempering_moves_the_mode_as_more_noise_does(temperature: float) -> None:
    model = linear(tb.priors.Normal(SCALE), temperature=temperature, tempering="likelihood")
    actual = mode(model, optimizer=tb.SGD(lr=0.05, momentum=0.6), epochs=200)
    torch.testing.assert_close(actual[0], ridge(noise_variance=NOISE**2 * temperature), rtol=1e-7, atol=1e-7)


def test_learned_noise_is_the_maximum_likelihood_scale() -> None:
    """σ̂² = RSS/N."""
    likelihood = tb.likelihoods.Gaussian("learned", prior=tb.priors.Flat())
    actual = mode(linear(tb.priors.Flat(), likelihood))[0]
    solution = torch.linalg.lstsq(INPUTS, TARGETS.unsqueeze(1)).solution.squeeze(1)
    torch.testing.assert_close(actual[:FEATURES], solution, rtol=1e-8, atol=1e-8)
    expected = math.sqrt(float(((TARGETS - INPUTS @ solution) ** 2).mean()))
    assert math.exp(float(actual[-1])) == pytest.approx(expected, rel=1e-8)


@pytest.mark.slow
def test_learned_noise_meets_its_prior() -> None:
    """With log σ ~ N(0, τ²): RSS/σ² − N − log σ/τ² = 0."""
    likelihood = tb.likelihoods.Gaussian("learned", prior=tb.priors.Normal(0.1))
    actual = mode(linear(tb.priors.Flat(), likelihood), optimizer=tb.SGD(lr=0.05, momentum=0.6), epochs=300)[0]
    solution = torch.linalg.lstsq(INPUTS, TARGETS.unsqueeze(1)).solution.squeeze(1)
    rss = float(((TARGETS - INPUTS @ solution) ** 2).sum())
    expected = brentq(lambda s: rss * math.exp(-2 * s) - ROWS - s / 0.01, -3, 3)
    assert float(actual[-1]) == pytest.approx(expected, rel=1e-7)


@pytest.mark.slow
def test_minibatches_reach_the_same_mode_as_the_rate_falls() -> None:
    actual = mode(linear(tb.priors.Normal(SCALE)), batch_size=8, epochs=100, schedule=tb.Cosine())
    torch.testing.assert_close(actual[0], ridge(), rtol=2e-2, atol=2e-2)


def test_predictive_of_an_exact_posterior_is_the_closed_form() -> None:
    """Orthogonal inputs, so that the exact posterior is diagonal: mean x'μ, variance x'Σx + σ²."""
    inputs = torch.linalg.qr(normal(ROWS, FEATURES)).Q
    precision = 1 / NOISE**2 + 1 / SCALE**2
    mean = inputs.T @ TARGETS / NOISE**2 / precision
    variance_MD = torch.full((1, FEATURES), 1 / precision, dtype=torch.float64)
    posterior = tb.Gaussian(linear(tb.priors.Normal(SCALE)), mean.unsqueeze(0), Diagonal(variance_MD))
    draws, test = 20_000, normal(5, FEATURES, seed=3)
    prediction = tb.predict(posterior, test, draws=draws, seed=1)
    epistemic = (test**2).sum(1, keepdim=True) / precision
    error = (prediction.mean.squeeze(1) - test @ mean) / (epistemic.squeeze(1) / draws).sqrt()
    assert error.abs().max() < 4
    torch.testing.assert_close(prediction.epistemic, epistemic, rtol=5 * math.sqrt(2 / draws), atol=0)
    torch.testing.assert_close(prediction.aleatoric, torch.full_like(epistemic, NOISE**2), rtol=1e-12, atol=0)
    targets = test @ mean + 0.3
    exact = torch.distributions.Normal(test @ mean, (epistemic.squeeze(1) + NOISE**2).sqrt()).log_prob(targets)
    torch.testing.assert_close(prediction.log_prob(targets), exact, rtol=0, atol=0.02)
