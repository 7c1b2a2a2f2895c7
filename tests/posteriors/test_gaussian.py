"""Gaussian posteriors against dense torch distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

import torchbayes as tb
from tests.laws.cases import POSTERIORS, model_of, normal
from torchbayes.linalg import Diagonal, LowRankPlusDiagonal, Structure
from torchbayes.posteriors.laplace import as_prior
from torchbayes.posteriors.posterior import normals

SIZE = 5  # four weights and a bias


def small() -> tb.Model:
    return tb.Model(nn.Linear(SIZE - 1, 1).double(), tb.likelihoods.Gaussian(1.0))


def structure(kind: str, members: int) -> Structure:
    variance_MD = normal(members, SIZE, seed=1) ** 2 + 0.2
    if kind == "diagonal":
        return Diagonal(variance_MD)
    return LowRankPlusDiagonal(variance_MD, normal(members, 3, SIZE, seed=2))


def mixture(posterior: tb.Gaussian) -> MixtureSameFamily:
    parts = MultivariateNormal(posterior.mean_MD, posterior.covariance.dense())
    return MixtureSameFamily(Categorical(torch.ones(posterior.members, dtype=torch.float64)), parts)


def gaussian(kind: str, members: int) -> tb.Gaussian:
    return tb.Gaussian(small(), normal(members, SIZE), structure(kind, members))


@pytest.mark.parametrize("kind", ["diagonal", "low_rank"])
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("lead", [(), (7,), (2, 3)])
def test_log_prob_is_that_of_the_dense_mixture(kind: str, members: int, lead: tuple[int, ...]) -> None:
    posterior = gaussian(kind, members)
    weights = normal(*lead, SIZE, seed=5)
    actual = posterior.log_prob(weights)
    assert actual.shape == lead
    torch.testing.assert_close(actual, mixture(posterior).log_prob(weights), rtol=1e-11, atol=1e-11)


def test_log_prob_in_single_precision_sums_in_double() -> None:
    """Two million weights: terms of a few nats each, whose sums in float32 are off by tenths of one."""
    size = 2_000_000
    variance = 0.1 + normal(1, size).abs().float()
    model = tb.Model(nn.Linear(size - 1, 1), tb.likelihoods.Gaussian(1.0))
    posterior = tb.Gaussian(model, torch.zeros(1, size), Diagonal(variance))
    weights = normal(size, seed=1).float()
    exact = variance.double()[0]
    expected = -0.5 * (weights.double() ** 2 / exact + exact.log() + math.log(2 * math.pi)).sum()
    assert abs(float(posterior.log_prob(weights) - expected)) < 1e-2


@pytest.mark.parametrize("kind", ["diagonal", "low_rank"])
def test_log_prob_far_away_does_not_underflow(kind: str) -> None:
    posterior = gaussian(kind, 3)
    weights = 1e4 + normal(SIZE)
    torch.testing.assert_close(posterior.log_prob(weights), mixture(posterior).log_prob(weights), rtol=1e-10, atol=0)


@pytest.mark.parametrize("kind", ["diagonal", "low_rank"])
def test_draws_have_the_mixtures_mean_and_covariance(kind: str) -> None:
    draws, posterior = 30_000, gaussian(kind, 3)
    samples = posterior.sample(draws, seed=3).unflatten(0, (-1, 3))
    count = draws // 3
    for m, sigma in enumerate(posterior.covariance.dense()):
        error = (samples[:, m].mean(0) - posterior.mean_MD[m]) / (sigma.diagonal() / count).sqrt()
        assert error.abs().max() < 4.5
        deviation = ((sigma**2 + torch.outer(sigma.diagonal(), sigma.diagonal())) / count).sqrt()
        assert ((torch.cov(samples[:, m].T) - sigma) / deviation).abs().max() < 4.5


@pytest.mark.parametrize("kind", ["diagonal", "low_rank"])
def test_entropy_by_sampling_is_the_closed_form(kind: str) -> None:
    """−E log q over its own draws equals ½ log det (2πe Σ): sampling and density agree with each other."""
    posterior = gaussian(kind, 1)
    values = -posterior.log_prob(posterior.sample(20_000, seed=4))
    exact = MultivariateNormal(posterior.mean_MD[0], posterior.covariance.dense()[0]).entropy()
    # the variance of −log q of a normal in D dimensions is D/2
    assert float((values.mean() - exact).abs()) < 4 * math.sqrt(SIZE / 2 / 20_000)


@pytest.mark.parametrize(("members", "expected"), [(1, 30), (4, 32), (7, 35), (30, 30), (31, 31)])
def test_default_draws_are_at_least_thirty(members: int, expected: int) -> None:
    assert gaussian("diagonal", members).default_draws == expected


def test_what_takes_a_gaussian_takes_a_laplace_posterior_as_one() -> None:
    laplace = POSTERIORS["laplace"](model_of(), 1)
    assert isinstance(laplace, tb.LaplacePosterior)
    plain = laplace.gaussian
    assert plain.gaussian is plain
    one, other = (as_prior(posterior) for posterior in (laplace, plain))
    torch.testing.assert_close(one.covariance.dense(), other.covariance.dense(), rtol=0, atol=0)
    first, second = (tb.subnetwork(posterior, 9) for posterior in (laplace, plain))
    assert all(torch.equal(mask, second[name]) for name, mask in first.items())


@pytest.mark.parametrize("use", [as_prior, lambda posterior: tb.subnetwork(posterior, 3)])
def test_what_takes_a_gaussian_refuses_draws(use: Callable[[Any], Any]) -> None:
    with pytest.raises(
        TypeError, match=r"a Laplace posterior or a Gaussian one; got .*Draws.*\. Fit by Laplace or SWAG"
    ):
        use(POSTERIORS["draws"](model_of(), 1))


def test_normals_are_standard_and_independent_between_rows_and_seeds() -> None:
    like = torch.empty(0, dtype=torch.float64)
    noise = normals(3, 400, 200, like=like)
    count = noise.numel()
    assert abs(float(noise.mean())) < 4 / math.sqrt(count)
    assert abs(float((noise**2).mean()) - 1) < 4 * math.sqrt(2 / count)
    rows = torch.corrcoef(noise) - torch.eye(400, dtype=torch.float64)
    assert float(rows.abs().max()) < 6 / math.sqrt(200)
    other = normals(4, 400, 200, like=like)
    assert float((noise * other).mean().abs()) < 4 / math.sqrt(count)
    assert torch.equal(normals(3, 7, 200, like=like), noise[:7])


class TestDraws:
    """The empirical posterior of kept states."""

    weights_MSD: Tensor = torch.arange(2 * 4 * SIZE, dtype=torch.float64).view(2, 4, SIZE)

    def test_all_kept_draws_come_once(self) -> None:
        posterior = tb.Draws(small(), self.weights_MSD)
        actual = posterior.sample(posterior.default_draws)
        # chains take turns, in the order visited
        torch.testing.assert_close(actual[::2], self.weights_MSD[0], rtol=0, atol=0)
        torch.testing.assert_close(actual[1::2], self.weights_MSD[1], rtol=0, atol=0)

    @pytest.mark.parametrize("per_chain", [1, 3])
    def test_fewer_are_chosen_without_replacement(self, per_chain: int) -> None:
        posterior = tb.Draws(small(), self.weights_MSD)
        for seed in range(20):
            actual = posterior.sample(2 * per_chain, seed=seed)
            assert len(actual.unique(dim=0)) == 2 * per_chain

    def test_more_repeat_the_chain_evenly(self) -> None:
        actual = tb.Draws(small(), self.weights_MSD).sample(2 * 8, seed=1)
        _, counts = actual.unique(dim=0, return_counts=True)
        assert counts.tolist() == [2] * 8

    def test_choice_is_uniform(self) -> None:
        posterior = tb.Draws(small(), self.weights_MSD)
        first = torch.stack([posterior.sample(2, seed=seed)[0, 0] for seed in range(800)])
        _, counts = first.unique(return_counts=True)
        assert float(((counts - 200.0) ** 2 / 200).sum()) < 16.3  # 99.9 % point of chi-squared, 3 degrees of freedom
