"""k-hat of posteriors with a density: against known shapes, and what the words say."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.oracles import assert_close, normal
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.linalg import Dense, Diagonal


def linear(size: int = 3, **settings: Any) -> tuple[tb.Model, tuple[Tensor, Tensor], Tensor, Tensor]:
    """A linear model, its rows, and mean and covariance of its posterior."""
    x = normal(30, size, seed=1)
    y = x.sum(1, keepdim=True) + 0.5 * normal(30, 1, seed=2)
    model = tb.Model(nn.Linear(size, 1, bias=False).double(), tb.likelihoods.Gaussian(0.5), **settings)
    precision = x.T @ x / 0.25 + torch.eye(size, dtype=torch.float64)
    return model, (x, y), torch.linalg.solve(precision, x.T @ y[:, 0] / 0.25), precision


def test_the_posterior_itself_has_equal_ratios_which_are_the_log_evidence() -> None:
    model, (x, y), mean, precision = linear()
    actual = tb.diagnose(tb.Gaussian(model, mean[None], Dense.of_precision(precision[None])), x, y)
    marginal = x @ x.T + 0.25 * torch.eye(30, dtype=torch.float64)
    zero = torch.zeros(30, dtype=torch.float64)
    evidence = torch.distributions.MultivariateNormal(zero, marginal).log_prob(y[:, 0])
    assert isinstance(actual, tb.Approximation)
    assert_close(actual.log_ratios_S, evidence.expand(400), rtol=1e-8)
    assert actual.k < 0.5
    assert actual.verdict == "good"
    assert actual.ess == pytest.approx(400, rel=1e-6)


@pytest.mark.parametrize(("factor", "expected"), [(0.5, 0.5), (1 / 3, 2 / 3), (2.0, -1.0)])
def test_k_is_that_of_normal_laws(factor: float, expected: float) -> None:
    """q of variance c times that of p in one dimension has k = 1 − 1/(1/c), bounded ratios for c > 1."""
    model, (x, y), mean, precision = linear(1)
    narrow = tb.Gaussian(model, mean[None], Diagonal(factor / precision.diagonal()[None]))
    actual = tb.diagnose(narrow, x, y, draws=4000)
    assert actual.draws == 4000
    if expected > 0:
        assert actual.k == pytest.approx(expected, abs=0.2)
    else:
        assert actual.k < 0.2
    assert actual.k < tb.diagnose(tb.Gaussian(model, mean[None] + 3, narrow.covariance), x, y).k


def test_mean_field_misses_correlations_and_members_are_a_mixture() -> None:
    model, (x, y), mean, precision = linear(20)
    wrong = tb.Gaussian(model, mean[None], Diagonal(0.05 / precision.diagonal()[None]))
    actual = tb.diagnose(wrong, x, y)
    assert actual.k > 0.7
    assert "not to be trusted" in actual.words
    assert "is to be expected of every approximation" in actual.words
    assert "HMC or NUTS" in tb.diagnose(tb.Gaussian(*_small_and_wrong()[:3]), *_small_and_wrong()[3]).words
    both = tb.Gaussian(model, mean.expand(3, -1), Dense.of_precision(precision.expand(3, -1, -1).clone()))
    several = tb.diagnose(both, x, y, draws=100)
    assert several.draws == 102
    assert several.k < 0.5


def _small_and_wrong() -> tuple[tb.Model, Tensor, Diagonal, tuple[Tensor, Tensor]]:
    model, data, mean, precision = linear(1)
    return model, mean[None] + 1.5, Diagonal(0.2 / precision.diagonal()[None]), data


def test_temperature_laplace_radial_and_learned_noise() -> None:
    model, (x, y), mean, precision = linear(2, temperature=0.5)
    cold = tb.diagnose(tb.Gaussian(model, mean[None], Dense.of_precision(2 * precision[None])), x, y)
    assert float(cold.log_ratios_S.std()) < 1e-8
    model, (x, y), mean, precision = linear(2)
    laplace = tb.fit(model, (x, y), tb.Laplace("dense", prior="model"), start=mean[None], callbacks=())
    assert float(tb.diagnose(laplace, x, y).log_ratios_S.std()) < 1e-6  # type: ignore[arg-type]
    radial = tb.RadialPosterior(model, mean[None], math.sqrt(2) * precision.diagonal().rsqrt()[None])
    assert math.isfinite(tb.diagnose(radial, x, y, chunk_size=7).k)
    learned = tb.Model(nn.Linear(2, 1, bias=False).double(), tb.likelihoods.Gaussian("learned", spread=1.0))
    at = torch.cat([mean, torch.tensor([-0.7], dtype=torch.float64)])[None]
    actual = tb.diagnose(tb.Gaussian(learned, at, Diagonal(torch.full((1, 3), 1e-3).double())), x, y)
    drawn = tb.Gaussian(learned, at, Diagonal(torch.full((1, 3), 1e-3).double()))
    weights = drawn.sample(400)
    direct = torch.stack([learned.log_joint(w, tb.Batch(x, y), 30) for w in weights]) - drawn.log_prob(weights)
    assert_close(actual.log_ratios_S, direct)


def test_refusals_say_what_to_do() -> None:
    model, (x, y), mean, precision = linear()
    posterior = tb.Gaussian(model, mean[None], Dense.of_precision(precision[None]))
    with pytest.raises(ValueError, match=r"must be all rows.*got 30 rows and no targets"):
        tb.diagnose(posterior, x)
    with pytest.raises(ValueError, match=r"got 0 rows and no targets"):
        tb.diagnose(posterior)
    with pytest.raises(ValueError, match=r"got 30 rows and 29 targets"):
        tb.diagnose(posterior, x, y[1:])
    with pytest.raises(ValueError, match="`log` is for the chains of a sampler"):
        tb.diagnose(posterior, x, y, log=[{}])
    with pytest.raises(ValueError, match="`draws` must"):
        tb.diagnose(posterior, x, y, draws=0)
    chains = tb.Draws(model, normal(2, 8, 3))
    with pytest.raises(ValueError, match="`draws` is for a posterior with a density"):
        tb.diagnose(chains, x, y, draws=100)
    last = tb.fit(model, (x, y), tb.VBLL(epochs=2), callbacks=())
    assert isinstance(last, tb.Gaussian)
    tb.diagnose(last, x, y)  # all weights are in the last layer
    still = tb.Gaussian(model, mean[None], Diagonal(torch.tensor([[0.0, 1.0, 1.0]]).double()))
    with pytest.raises(ValueError, match=r"weights that do not vary.*no density"):
        tb.diagnose(still, x, y)
    other, data, *_ = linear(prior=tb.priors.LogUniform())
    with pytest.raises(ValueError, match="the posterior is improper, so that nothing can be close to it"):
        tb.diagnose(tb.Gaussian(other, mean[None], posterior.covariance), *data)
