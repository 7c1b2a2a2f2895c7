"""Laplace under priors that are not normal, correlated, flat, or over single weights."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.oracles import assert_close, classes, normal
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.model.priors.joint import Joint

X = normal(40, 3)
Y = X @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + 0.3 + 0.7 * normal(40, seed=1)


class Quartic:
    """A user's own log density, without curvature at 0 and without a scale."""

    def log_prob(self, weights: Tensor) -> Tensor:
        return -(weights**4)


def linear(prior: Any, **settings: Any) -> tb.Model:
    return tb.Model(nn.Linear(3, 1).double(), tb.likelihoods.Gaussian(0.7), prior, **settings)


def laplace(model: tb.Model, start: Any, data: Any = (X, Y), **settings: Any) -> tb.LaplacePosterior:
    settings = {"structure": "dense", "check_mode": False} | settings
    return tb.fit(model, data, tb.Laplace(**{"prior": "model", **settings}), start=start, callbacks=())  # type: ignore[return-value]


SPREAD = torch.tensor([0.9, -1.8, 0.6, 0.3], dtype=torch.float64)


@pytest.mark.parametrize(
    ("prior", "start", "words"),
    [
        (tb.priors.Laplace(0.5), SPREAD, r"prior Laplace\(scale=0.5.* is straight at 3 of the 3 weights of `weight`.*"
         r"`bias`.*is 0\).*Normal\(0.707\)"),
        (tb.priors.Laplace(0.5), 0 * SPREAD, "is straight"),
        (tb.priors.StudentT(df=3.0, scale=0.5), SPREAD, r"StudentT.* curves upwards at 2 of the 3 weights.*HMC"),
        (tb.priors.NormalMixture((3.0, 0.1)), 0.3 + 0 * SPREAD, "NormalMixture.* curves upwards"),
        (tb.priors.Logistic(0.0001), SPREAD, "Logistic.* is straight"),
        (torch.distributions.Laplace(0.0, 2.0), SPREAD, r"Laplace\(.* is straight.*Normal\(2.83\)"),
        (torch.distributions.Cauchy(0.0, 0.1), SPREAD, "Cauchy.* curves upwards.*with the prior a Normal"),
        (Quartic(), 0 * SPREAD, "Quartic.* is straight.*with the prior a Normal"),
        ({"bias": tb.priors.Laplace(), "*": tb.priors.Normal()}, SPREAD, "straight at 1 of the 1 weights of `bias` "),
    ],
)  # fmt: skip
def test_a_prior_without_a_precision_at_the_mode_is_refused(prior: Any, start: Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        laplace(linear(prior), start)


def test_float32_in_the_tail_of_a_logistic() -> None:
    """Its second derivative underflows far out: no precision, not a flat prior."""
    model = tb.Model(nn.Linear(3, 1), tb.likelihoods.Gaussian(0.7), tb.priors.Logistic(0.001))
    with pytest.raises(ValueError, match="is straight"):
        laplace(model, SPREAD.float(), (X.float(), Y.float()))


@pytest.mark.parametrize(
    "prior",
    [
        tb.priors.StudentT(df=2.0, scale=3.0),
        pytest.param(tb.priors.Logistic(1.0), marks=pytest.mark.study),
        tb.priors.NormalMixture((2.0, 1.0)),
        pytest.param(torch.distributions.Normal(0.3, 2.0), marks=pytest.mark.study),
        Quartic(),
    ],
)
def test_the_evidence_under_a_curved_prior_is_that_of_importance_sampling(prior: Any) -> None:
    """A prior that bends little over the posterior: what Laplace leaves out is far below the tolerance."""
    data = (X.repeat(50, 1), Y.repeat(50))
    model = linear(prior)
    actual = tb.fit(model, data, tb.MAP(epochs=150, optimizer=tb.Adam(0.05), batch_size=2000), callbacks=())
    posterior = laplace(model, actual, data)
    draws = posterior.sample(1000)
    features = torch.cat([data[0], torch.ones(2000, 1, dtype=torch.float64)], 1)
    log_likelihood = torch.distributions.Normal(draws @ features.T, 0.7).log_prob(data[1]).sum(1)
    log_weights = log_likelihood + model.log_prior(draws) - posterior.log_prob(draws)
    assert_close(posterior.log_evidence()[0], torch.logsumexp(log_weights, 0) - math.log(1000), rtol=0, atol=0.02)


def test_a_distribution_s_mean_is_where_tuning_centres_the_prior() -> None:
    actual, expected = (
        tb.tune(laplace(linear(prior), SPREAD), prior="scalar")
        for prior in (torch.distributions.Normal(1.5, 0.5), tb.priors.Normal(0.5, loc=1.5))
    )
    assert_close(actual.strength_D, expected.strength_D)
    assert_close(actual.log_evidence(), expected.log_evidence())


class Constant:
    def log_prob(self, weights: Tensor) -> Tensor:
        return torch.full_like(weights, -2.0)


def test_no_gradient_from_a_constant_density() -> None:
    model = linear(Constant())
    gradient = torch.ones(2, 4, dtype=torch.float64)
    model.prior.add_gradient_(gradient, normal(2, 4), 1.0)
    assert_close(gradient, torch.ones(2, 4, dtype=torch.float64))


def test_the_fan_in_of_a_mask_is_that_of_the_whole_parameter() -> None:
    mask = torch.zeros(4, 50, dtype=torch.bool)
    mask[0, :3] = True
    model = tb.Model(nn.Linear(50, 4), tb.likelihoods.Categorical(), tb.priors.FanInNormal(gain=1.0),
                     random={"weight": mask, "bias": torch.ones(4, dtype=torch.bool)})  # fmt: skip
    assert_close(model.prior.stds(), torch.tensor([50**-0.5] * 3 + [1.0] * 4, dtype=torch.float64))


@pytest.mark.parametrize("structure", ["kronecker", "ekfac"])
def test_every_row_of_an_embedding_has_its_own_unit(structure: Any) -> None:
    module = nn.Sequential(nn.Embedding(4, 2), nn.Linear(2, 3)).double()
    inputs, targets = torch.arange(4).repeat(8), classes(32, 3)
    variance_D = torch.ones(17, dtype=torch.float64)
    variance_D[:8] = torch.tensor([1.0, 4.0, 9.0, 0.25]).repeat_interleave(2)
    actual, plain = (
        laplace(
            tb.Model(module, tb.likelihoods.Categorical(), Joint.independent(torch.zeros(17).double(), v)),
            0.5 * normal(17), (inputs, targets), structure=structure,
        )
        for v in (variance_D, torch.ones(17, dtype=torch.float64))
    )  # fmt: skip
    expected = plain.curvature.dense()[0] * torch.outer(variance_D.sqrt(), variance_D.sqrt())
    assert_close(actual.curvature.dense()[0], expected, rtol=1e-9, atol=1e-12)


def carried(structure: Any, outputs: int = 1, **settings: Any) -> tb.LaplacePosterior:
    """Return the second of two tasks, the posterior of the first its prior."""
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double()
    targets = normal(40, outputs, seed=2)
    model = tb.Model(module, tb.likelihoods.Gaussian(0.7), tb.priors.Normal(0.5))
    first = laplace(model, 0.4 * normal(model.layout.size, seed=3), (X, targets), structure=structure)
    again = tb.Model(module, tb.likelihoods.Gaussian(0.7), tb.as_prior(first), **settings)
    return laplace(again, 0.4 * normal(model.layout.size, seed=4), (X[:9], targets[:9]), structure=structure)


@pytest.mark.parametrize("structure", ["dense", "diagonal", "kronecker", "ekfac"])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_effective_parameters_under_a_correlated_prior(structure: Any, temperature: float) -> None:
    """γ = D − tr P₀ Σ with the prior's precision P₀, from dense matrices."""
    actual = carried(structure, outputs=2, temperature=temperature)
    joint = actual.model.prior.joint
    assert joint is not None
    prior = torch.linalg.inv(joint.covariance.dense()[0]) / temperature
    expected = len(prior) - torch.trace(prior @ actual.gaussian.covariance.dense()[0])
    assert_close(actual.effective_parameters()[0], expected, rtol=1e-9)
    assert 0.1 < float(expected) < 0.6 * len(prior)


@pytest.mark.parametrize("tempering", ["joint", "likelihood"])
def test_temperature_reaches_a_correlated_prior(tempering: Any) -> None:
    plain, cold = carried("dense"), carried("dense", temperature=0.25, tempering=tempering)
    joint = plain.model.prior.joint
    assert joint is not None
    prior = torch.linalg.inv(joint.covariance.dense()[0])
    data = torch.linalg.inv(plain.gaussian.covariance.dense()[0]) - prior
    expected = 4 * data + (4 * prior if tempering == "joint" else prior)
    assert_close(torch.linalg.inv(cold.gaussian.covariance.dense()[0]), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("structure", ["dense", "diagonal", "kronecker", "ekfac", "low_rank"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_that_nothing_determines_are_named(structure: Any, dtype: torch.dtype) -> None:
    inputs = X.clone()
    inputs[:, 1] = 0
    data = inputs.to(dtype), Y.unsqueeze(1).to(dtype)
    module = nn.Linear(3, 1).to(dtype)
    flat = tb.Model(module, tb.likelihoods.Gaussian(0.7), tb.priors.Flat())
    many = 3 if structure == "low_rank" else 1  # which leaves all weights but a few directions to the prior
    with pytest.raises(ValueError, match=f"not determine {many} of the 3 weights of `weight`.*a proper prior"):
        laplace(flat, SPREAD.to(dtype), data, structure=structure)
    proper = tb.Model(module, tb.likelihoods.Gaussian(0.7))
    actual = laplace(proper, SPREAD.to(dtype), data, structure=structure)
    assert float(actual.gaussian.covariance.diagonal().max()) < 1.1


@pytest.mark.parametrize("structure", ["dense", "kronecker"])
def test_inputs_that_are_combinations_of_others_are_found_in_any_units(structure: Any) -> None:
    inputs = X * torch.tensor([1e-3, 1.0, 1e2], dtype=torch.float64)
    actual = laplace(linear(tb.priors.Flat()), SPREAD, (inputs, Y), structure=structure)
    assert torch.isfinite(actual.sample(3)).all()
    inputs[:, 1] = 3 * inputs[:, 0]
    with pytest.raises(ValueError, match=r"not determine [23] of the 3 weights"):
        laplace(linear(tb.priors.Flat()), SPREAD, (inputs, Y), structure=structure)
