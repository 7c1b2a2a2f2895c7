"""Priors matched to Gaussian processes: known scales, exact moments, and what cannot be matched."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from tests.laws.cases import normal
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.posteriors.problems import ProblemWarning
from torchbayes.predictive import matching

GAUSSIAN = tb.likelihoods.Gaussian(0.3)


def linear(prior: tb.priors.Normal | None = None) -> tb.Model:
    return tb.Model(nn.Linear(3, 2).double(), GAUSSIAN, prior)


@pytest.mark.parametrize("start", [1e-3, *(pytest.param(scale, marks=pytest.mark.study) for scale in (1.0, 50.0))])
def test_a_linear_model_is_matched_exactly_from_any_start(start):
    inputs = normal(12, 3)
    actual = tb.match_prior(linear(tb.priors.Normal(start)), inputs, tb.LinearKernel(0.3, 2.0))
    assert actual.priors["weight"].scale == pytest.approx(0.3, rel=0.05)
    assert actual.priors["bias"].scale == pytest.approx(2.0, rel=0.02)
    assert actual.after < 0.06 < actual.before
    assert actual.problems == ()
    assert len(actual.loss) == 400


@pytest.mark.study  # a linear model is matched exactly, above, and moments are unbiased, below
def test_a_matched_prior_has_the_covariance_of_the_process():
    x = torch.linspace(-3, 3, 12, dtype=torch.float64).unsqueeze(1)
    net = nn.Sequential(nn.Linear(1, 60), nn.Tanh(), nn.Linear(60, 1)).double()
    kernel = tb.RBFKernel(lengthscale=2.0, scale=1.5)
    actual = tb.match_prior(tb.Model(net, GAUSSIAN), x, kernel)
    drawn = tb.prior_predictive(tb.Model(net, GAUSSIAN, actual.priors), x, draws=4000).outputs_SBK.squeeze(-1)
    exact = kernel(x)
    error = drawn.T.cov() - exact
    assert float(error.norm() / exact.norm()) < 0.15
    assert actual.after < 0.25 < 1 < actual.before


def test_moments_are_unbiased():
    inputs = normal(4, 3)
    model = linear()
    target = matching._Target(inputs, tb.LinearKernel(0.5, 0.5)(inputs), 6)
    log = torch.tensor([0.2, -0.3], dtype=torch.float64)
    true = log[0].mul(2).exp() * inputs @ inputs.T + log[1].mul(2).exp()
    actual = torch.tensor([
        [
            float(m)
            for m in matching._moments(matching._functions(model.network, log, target, draws=6, seed=(0, s)), target)
        ]
        for s in range(400)
    ])
    expected = torch.stack([true.square().sum(), (true @ target.covariance_BB).trace()])
    assert ((actual.mean(0) - expected).abs() < 4 * actual.std(0) / math.sqrt(400)).all()


def test_the_distance_is_the_closed_form_of_normal_distributions(monkeypatch):
    inputs, covariance = normal(4, 3), tb.RBFKernel()(normal(4, 3, seed=8))
    drawn = normal(300, 4, seed=5)[..., None] + 0.4
    monkeypatch.setattr(matching, "_functions", lambda *_, **__: drawn)
    target = matching._Target(inputs, covariance, 1000)

    def root(matrix: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(matrix)
        return vectors * values.clamp_min(0).sqrt() @ vectors.T

    own = drawn[..., 0].T.cov(correction=0)
    cross = root(root(covariance) @ own @ root(covariance)).trace()
    square = drawn.mean(0).square().sum() + covariance.trace() + own.trace() - 2 * cross
    actual = matching._distance(linear().network, target, torch.zeros(2), seed=0)
    assert actual == pytest.approx(math.sqrt(float(square / covariance.trace())), rel=1e-9)


def test_kernels_are_their_formulas():
    x, y = normal(2, 3)
    inputs = torch.stack([x, y])
    rbf, lin = tb.RBFKernel(0.7, 1.3)(inputs), tb.LinearKernel(0.4, 0.6)(inputs)
    assert float(rbf[0, 1]) == pytest.approx(1.3**2 * math.exp(-0.5 * float((x - y).square().sum()) / 0.7**2))
    assert torch.allclose(rbf.diagonal(), torch.tensor(1.69, dtype=torch.float64))
    assert float(lin[0, 1]) == pytest.approx(0.16 * float(x @ y) + 0.36)


def test_learned_noise_keeps_its_prior_and_a_matrix_is_a_kernel():
    inputs = normal(5, 3)
    model = tb.Model(nn.Linear(3, 1).double(), tb.likelihoods.Gaussian("learned"))
    actual = tb.match_prior(model, inputs, tb.LinearKernel()(inputs), steps=20)
    assert list(actual.priors) == ["weight", "bias"]
    tb.Model(nn.Linear(3, 1).double(), tb.likelihoods.Gaussian("learned"), actual.priors)


def test_what_gets_no_closer_is_a_problem():
    inputs = normal(12, 3)
    with pytest.warns(ProblemWarning, match="this prior should not be trusted: its distance"):
        actual = tb.match_prior(linear(tb.priors.Normal(0.5)), inputs, tb.RBFKernel(0.5), steps=1, draws=2, seed=2)
    assert actual.problems


def test_networks_without_batching_rules_and_with_dropout_are_matched():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.drop = nn.Linear(3, 1), nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            actual = self.drop(self.layer(x))
            return actual if float(actual.detach().sum()) > math.inf else actual + 0.0  # a value, which vmap has not

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        actual = tb.match_prior(tb.Model(Odd(), GAUSSIAN), normal(6, 3).float(), tb.LinearKernel(0.3, 0.3), steps=25)
    assert actual.after < 0.3


def test_what_cannot_be_matched_is_refused():
    inputs = normal(6, 3)
    norm = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double()
    with pytest.raises(ValueError, match="batch norm `1` depend on the other inputs"):
        tb.match_prior(tb.Model(norm, GAUSSIAN), inputs, tb.RBFKernel())
    with pytest.raises(ValueError, match="that of `weight` is not finite"):
        tb.match_prior(tb.Model(nn.Linear(3, 1).double(), GAUSSIAN, tb.priors.Horseshoe()), inputs, tb.RBFKernel())
    with pytest.raises(ValueError, match="not finite at step 0"):
        tb.match_prior(tb.Model(nn.Linear(3, 1), GAUSSIAN, tb.priors.Normal(1e38)), 1e3 * inputs, tb.RBFKernel())
