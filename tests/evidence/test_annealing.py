import math
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from tests.evidence.helpers import (
    assert_calibrated,
    assert_within,
    bimodal,
    linear_problem,
    logistic_log_evidence,
    logistic_problem,
    skewed,
    tanh_log_evidence,
    tanh_problem,
)
from tests.oracles import assert_close, mass, normal
from torchbayes.evidence import (
    ModelTarget,
    annealed_importance_sampling,
    linear_gaussian_evidence,
    power,
    reverse_annealing,
)
from torchbayes.evidence.annealing import _annealed, _prepared
from torchbayes.model import Model, likelihoods, priors
from torchbayes.posteriors.draws import Draws
from torchbayes.posteriors.problems import ProblemWarning


def posterior_draws(count: int, seed: int = 0) -> torch.Tensor:
    """Exact draws of the linear problem's posterior."""
    mean, covariance = linear_problem()[2].posterior()
    return mean + normal(count, 3, seed=seed) @ torch.linalg.cholesky(covariance).T


def test_linear():
    model, data, oracle = linear_problem()
    assert_within(annealed_importance_sampling(model, data), oracle.log_evidence())


def test_tanh_network():
    assert_within(annealed_importance_sampling(*tanh_problem()), tanh_log_evidence(201))


def test_logistic_regression():
    assert_within(annealed_importance_sampling(*logistic_problem()), logistic_log_evidence(61))


@pytest.mark.parametrize("problem", [bimodal, skewed])
def test_two_modes_and_skewed(problem: Any):
    target, exact = problem()
    assert_within(annealed_importance_sampling(target, particles=512), exact)


@pytest.mark.parametrize(
    "prior", [priors.StudentT(3.0, 0.5), priors.Laplace(0.7), priors.NormalMixture((1.0, 0.1), (0.3, 0.7))]
)
def test_priors_that_are_not_normal(prior: Any):
    inputs, targets = normal(4, 1), normal(4, seed=1)
    model = Model(nn.Linear(1, 1, bias=False).double(), likelihoods.Gaussian(0.7), prior)

    def log_joint(grid: torch.Tensor) -> torch.Tensor:
        squares = ((targets - grid[:, None] * inputs[:, 0]) / 0.7).square().sum(1)
        return prior.log_prob(grid) - 0.5 * squares - 4 * math.log(0.7 * math.sqrt(2 * math.pi))

    exact = math.log(mass(log_joint, -20.0, 20.0, 100_001))
    assert_within(annealed_importance_sampling(model, (inputs, targets)), exact)


def test_learned_noise():
    """Two weights in the flat vector, a slope and a log scale, and a sum over a grid of both."""
    inputs, targets = normal(6, 1), 0.6 * normal(6, seed=1)
    likelihood = likelihoods.Gaussian("learned", prior=priors.Normal(0.5, loc=-0.5))
    model = Model(nn.Linear(1, 1, bias=False).double(), likelihood, priors.Normal(1.0))
    slopes, scales = (torch.linspace(-6, 6, 601, dtype=torch.float64) * s for s in (1.0, 0.5))
    residuals = targets - slopes[:, None, None] * inputs[:, 0]
    log_scale = scales[None, :] - 0.5
    log_joint = -0.5 * (residuals / log_scale.exp()[..., None]).square().sum(-1) - 6 * log_scale
    log_joint = log_joint - 3 * math.log(2 * math.pi)
    log_joint = log_joint - 0.5 * slopes[:, None].square() - 2 * scales.square() - math.log(2 * math.pi * 0.5)
    exact = float(log_joint.logsumexp((0, 1))) + math.log(0.02 * 0.01)
    assert_within(annealed_importance_sampling(model, (inputs, targets)), exact)


def test_float32_network():
    _, data, oracle = linear_problem()
    single = Model(nn.Linear(2, 1), likelihoods.Gaussian(0.5), priors.Normal(0.8))
    actual = annealed_importance_sampling(single, tuple(d.float() for d in data))
    assert_within(actual, oracle.log_evidence())
    assert actual.details["log_weights"].dtype == torch.float64


@pytest.mark.slow
@pytest.mark.study  # `test_estimate.py` pins the error of an estimate, and the tests above the estimates
@pytest.mark.parametrize("name", ["linear", "skewed"])
def test_errors_are_calibrated(name: str):
    if name == "linear":
        model, data, oracle = linear_problem()
        arguments: Any = (model, data)
        exact = oracle.log_evidence()
    else:
        target, exact = skewed()
        arguments = (target,)
    actual = [annealed_importance_sampling(*arguments, seed=seed) for seed in range(24)]
    assert_calibrated([(f.log_evidence - exact) / f.error for f in actual])


@pytest.mark.slow
@pytest.mark.study  # `test_weights_have_no_bias_in_either_direction` pins the mean of the weights
@pytest.mark.filterwarnings("ignore:the evidence rests on")
def test_the_evidence_itself_has_no_bias_however_coarse():
    """E[p̂] = p(D), pilot runs included."""
    target, exact = skewed()
    coarse: dict[str, Any] = {"temperatures": [0.0, 0.05, 0.2, 0.5, 1.0], "particles": 48, "leapfrogs": 3}
    runs = [annealed_importance_sampling(target, seed=seed, **coarse) for seed in range(50)]
    ratios = torch.tensor([r.log_evidence - exact for r in runs]).double().exp()
    error = float(ratios.std()) / math.sqrt(50)
    assert error < 0.03
    assert abs(float(ratios.mean()) - 1) < 4 * error


def test_weights_have_no_bias_in_either_direction():
    """One ladder: E[v] = p(D) forwards, 1/p(D) backwards, and log v is on either side by half its variance or more."""
    model, data, oracle = linear_problem()
    exact, count = oracle.log_evidence(), 2000
    target = ModelTarget(model, data)
    ladder, _ = _prepared(target, 100, leapfrogs=3, seed=0)
    starts = (target.draw(count, 5), posterior_draws(count))
    for start, way, sign in zip(starts, (ladder, ladder.reversed()), (-1, 1), strict=True):
        log_ratios = _annealed(target, start, way, seed=1)[0] + sign * exact
        ratios = log_ratios.exp()
        error = float(ratios.std()) / math.sqrt(count)
        assert error < 0.05  # of 2,000 weights; without it the next line would let anything pass
        assert abs(float(ratios.mean()) - 1) < 4 * error
        # log E[v] = 0 is mean + variance/2 + third cumulant/6 + …, which is a tenth here; the error is a twentieth
        assert log_ratios.std() > 0.5
        assert float(log_ratios.mean()) == pytest.approx(-0.5 * float(log_ratios.var()), rel=0.3)


def test_forwards_and_backwards_enclose_the_evidence():
    model, data, oracle = linear_problem()
    low = annealed_importance_sampling(model, data)
    high = reverse_annealing(model, data, draws=posterior_draws(128))
    assert_within(low, oracle.log_evidence())
    assert_within(high, oracle.log_evidence())
    assert high.log_evidence - low.log_evidence > -3 * math.hypot(low.error, high.error)
    assert_close(high.details["temperatures"], low.details["temperatures"].flip(0))
    # the means of the log weights are the bounds of one particle, which are far off
    lows, highs = low.details["log_weights"], -high.details["log_weights"]
    assert lows.mean() + 3 * lows.std() / math.sqrt(128) < oracle.log_evidence()
    assert highs.mean() - 3 * highs.std() / math.sqrt(128) > oracle.log_evidence()


def test_draws_of_a_posterior_are_taken():
    model, data, _ = linear_problem()
    draws = posterior_draws(60)
    posterior = Draws(model, draws.unflatten(0, (3, 20)))
    options: dict[str, Any] = {"temperatures": 60, "seed": 4}
    assert (
        reverse_annealing(model, data, draws=posterior, **options).log_evidence
        == reverse_annealing(model, data, draws=draws, **options).log_evidence
    )
    with pytest.raises(ValueError, match=r"must be weights \(S, 3\); got shape \(60, 2\)"):
        reverse_annealing(model, data, draws=draws[:, :2])


@pytest.mark.slow
@pytest.mark.study  # `test_weights_have_no_bias_in_either_direction` pins the weights
@pytest.mark.parametrize(("few", "many", "least", "most"), [(30, 480, 16, math.inf), (480, 960, 1, 3)])
def test_more_temperatures_make_weights_even(few: int, many: int, least: float, most: float):
    """The variance falls like 1/K in the end, and faster before; over seeds the last ratio is 2.0 ± 0.35."""
    model, data, _ = linear_problem()
    before, after = (
        float(annealed_importance_sampling(model, data, temperatures=count).details["log_weights"].var())
        for count in (few, many)
    )
    assert least < before / after < most


def test_details():
    model, data, oracle = linear_problem()
    actual = annealed_importance_sampling(model, data, temperatures=power(100, 4.0), particles=60)
    details = actual.details
    assert_close(details["temperatures"], power(100, 4.0))
    assert details["log_weights"].shape == (60,)
    assert details["acceptance"].shape == (98,)
    assert details["log_likelihoods"].shape == (99,)
    assert ((details["acceptance"] > 0.5) & (details["acceptance"] <= 1)).all()
    assert_close(actual.log_evidence, details["log_weights"].exp().mean().log())
    assert 1 <= details["ess"] <= 60
    # ½ χ² of three weights and the noise of ten rows: the last mean log likelihood is the posterior's
    mean, covariance = oracle.posterior()
    residual = data[1] - oracle.features(data[0]) @ mean
    spread = (oracle.features(data[0]) @ covariance @ oracle.features(data[0]).T).trace()
    expected = -2 * (residual @ residual + spread) - 10 * math.log(0.5 * math.sqrt(2 * math.pi))
    assert_close(details["log_likelihoods"][-1], expected, rtol=0, atol=1.5)


def test_same_seed_same_result(untouched_rng: None):
    target, _ = bimodal()
    first, again, other = (annealed_importance_sampling(target, temperatures=10, seed=seed) for seed in (3, 3, 4))
    assert first.log_evidence == again.log_evidence
    assert torch.equal(first.details["log_weights"], again.details["log_weights"])
    assert first.log_evidence != other.log_evidence


def test_few_effective_particles_warn():
    inputs, targets = normal(40, 2), 5.0 + normal(40, seed=1)
    model = Model(nn.Linear(2, 1).double(), likelihoods.Gaussian(0.1), priors.Normal(1.0))
    with pytest.warns(UserWarning, match=r"effective particles, fewer than 10.*Use more temperatures"):
        actual = annealed_importance_sampling(model, (inputs, targets), temperatures=5, particles=20)
    exact = linear_gaussian_evidence(model, (inputs, targets)).log_evidence
    assert actual.log_evidence < exact - 3


def test_few_effective_draws_warn_of_the_other_side():
    """An upper bound by few weights is too high: here by tens of nats."""
    model, data, oracle = linear_problem()
    draws = posterior_draws(12)
    with pytest.warns(UserWarning, match=r"effective draws, fewer than 10: it is probably too high, and its error bar"):
        actual = reverse_annealing(model, data, draws=draws, temperatures=2)
    assert actual.log_evidence > oracle.log_evidence()


def test_draws_that_are_known_to_be_worthless_are_said_to_be():
    model, data, _ = linear_problem()
    draws = Draws(model, posterior_draws(60).unflatten(0, (3, 20))).with_problems(["chain 0 never moved"])
    with pytest.warns(ProblemWarning, match="`draws` should not be trusted: chain 0 never moved"):
        reverse_annealing(model, data, draws=draws, temperatures=60)


def test_a_number_of_temperatures_may_be_one_of_numpy():
    target, _ = bimodal()
    ours, its = (annealed_importance_sampling(target, temperatures=count) for count in (12, cast("int", np.int64(12))))
    assert ours.log_evidence == its.log_evidence


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"particles": 0}, "`particles` must be a whole number"),
        ({"leapfrogs": 0}, "`leapfrogs` must be a whole number"),
        ({"temperatures": 1}, "`temperatures` must be at least 2"),
        ({"temperatures": 0}, "`temperatures` must be a whole number"),
        ({"temperatures": [0.0, 0.5]}, "rise from 0 to 1"),
        ({"particles": 1}, "at least 2 weights; got 1"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        annealed_importance_sampling(bimodal()[0], **settings)


def test_models_without_an_evidence():
    _, data, _ = linear_problem()
    with pytest.raises(ValueError, match="flat prior is improper"):
        annealed_importance_sampling(Model(nn.Linear(2, 1).double(), likelihoods.Gaussian(), priors.Flat()), data)
