import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.evidence.helpers import (
    assert_calibrated,
    assert_within,
    bimodal,
    linear_problem,
    logistic_log_evidence,
    logistic_problem,
    normal_draws,
    skewed,
    tanh_log_evidence,
    tanh_problem,
)
from tests.oracles import assert_close, normal
from torchbayes.evidence import FunctionTarget, power, thermodynamic_integration
from torchbayes.evidence.integration import _integrated, _monte_carlo_error, integrate
from torchbayes.evidence.path import as_target, at_prior
from torchbayes.model import Model, likelihoods, priors


def linear_moments(beta_K: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of log p(D|w) over p_β for the linear problem."""
    _, (inputs, targets), oracle = linear_problem()
    features = oracle.features(inputs)
    means, variances = [], []
    for beta in beta_K:
        covariance = torch.linalg.inv(beta * features.T @ features / 0.25 + torch.eye(3).double() / 0.64)
        residual = targets - features @ (beta * covariance @ features.T @ targets / 0.25)
        spread = features @ covariance @ features.T
        constant = 10 * math.log(0.5 * math.sqrt(2 * math.pi))
        means.append(-2 * (residual @ residual + spread.trace()) - constant)
        variances.append((0.5 * (spread @ spread).trace() + residual @ spread @ residual) * 16)
    return torch.stack(means), torch.stack(variances)


def test_quadrature_of_exact_moments():
    exact = linear_problem()[2].log_evidence()
    actual = integrate(power(40), *linear_moments(power(40)))
    assert_close(actual.value, exact, rtol=0, atol=5e-4)
    assert abs(actual.trapezoid - exact) > 0.02  # the correction is what makes it so
    assert abs(actual.value - exact) < actual.discretisation < 0.1


def test_correction_gains_two_orders():
    exact = linear_problem()[2].log_evidence()
    grids = [power(count) for count in (81, 161)]
    actual = [integrate(grid, *linear_moments(grid)) for grid in grids]
    plain = [abs(f.trapezoid - exact) for f in actual]
    corrected = [abs(f.value - exact) for f in actual]
    assert plain[0] / plain[1] == pytest.approx(4, rel=0.1)
    assert corrected[0] / corrected[1] == pytest.approx(16, rel=0.15)
    for f, error in zip(actual, corrected, strict=True):
        assert error < f.discretisation < 4 * error


@pytest.mark.parametrize("count", [5, 6])
def test_cubics_are_exact_on_even_grids(count: int):
    """∫ (1 + β − β² + 2β³) dβ, at every temperature and, where those are evenly spaced too, at every second."""
    beta = torch.linspace(0, 1, count, dtype=torch.float64)
    actual = integrate(beta, 1 + beta - beta**2 + 2 * beta**3, 1 - 2 * beta + 6 * beta**2)
    assert_close(actual.value, 1 + 1 / 2 - 1 / 3 + 1 / 2)
    if count == 5:
        assert_close(actual.discretisation, 0.0)


def test_monte_carlo_error_of_independent_draws():
    """Normal log likelihoods, drawn exactly: errors in units of error bars have a spread of 1."""
    beta = torch.tensor([0.0, 0.1, 0.4, 1.0], dtype=torch.float64)
    exact = integrate(
        beta, torch.tensor([-9.0, -5.0, -3.0, -2.0]).double(), torch.tensor([9.0, 4.0, 2.0, 1.0]).double()
    )
    scores = []
    for seed in range(200):
        draws = normal(4, 2, 200, seed=seed) * torch.tensor([3.0, 2.0, 2**0.5, 1.0]).double()[:, None, None]
        draws += torch.tensor([-9.0, -5.0, -3.0, -2.0]).double()[:, None, None]
        actual = _integrated(draws, beta, torch.ones(3))
        scores.append((actual.log_evidence - exact.value) / actual.details["monte_carlo"])
    assert_calibrated(scores, 0.88, 1.12)


def test_monte_carlo_error_of_variances():
    """Of independent normal draws of variance v the mean has variance v/n, and the variance about 2 v²/n."""
    beta, v = torch.linspace(0, 1, 3, dtype=torch.float64), 400.0
    means, slopes = torch.tensor([0.25, 0.5, 0.25]), torch.tensor([1.0, 0.0, -1.0]) / 48
    exact = math.sqrt((means.square() * v + slopes.square() * 2 * v**2).sum() / 8000)
    assert _monte_carlo_error(v**0.5 * normal(3, 2, 4000), beta) == pytest.approx(exact, rel=0.1)  # 0.7 without slopes


@pytest.mark.slow
# annealing and draws of the prior take every one of these targets; `test_details` has the linear one, exactly
@pytest.mark.study
@pytest.mark.parametrize("name", ["bimodal", "linear", "tanh", "logistic", "skewed"])
@pytest.mark.filterwarnings("ignore:chains at inverse temperature")
def test_evidence_is_the_exact_one(name: str):
    model, data, oracle = linear_problem()
    arguments, exact = {
        "linear": ((model, data), oracle.log_evidence()),
        "tanh": (tanh_problem(), tanh_log_evidence(201)),
        "logistic": (logistic_problem(), logistic_log_evidence(61)),
        "bimodal": (bimodal()[:1], bimodal()[1]),
        "skewed": (skewed()[:1], skewed()[1]),
    }[name]
    assert_within(thermodynamic_integration(*arguments, chains=16, steps=140), exact)


@pytest.mark.slow
@pytest.mark.study  # `test_monte_carlo_error_of_independent_draws` and `test_details` pin both parts of the error
@pytest.mark.filterwarnings("ignore:chains at inverse temperature")
def test_errors_are_calibrated():
    model, data, oracle = linear_problem()
    actual = [thermodynamic_integration(model, data, chains=4, steps=100, seed=seed) for seed in range(12)]
    assert_calibrated([(f.log_evidence - oracle.log_evidence()) / f.error for f in actual], 0.6, 1.4)


def test_details():
    model, data, oracle = linear_problem()
    actual = thermodynamic_integration(model, data, temperatures=power(9, 4.0), chains=4, steps=240)
    details = actual.details
    assert_close(details["temperatures"], power(9, 4.0))
    assert all(details[name].shape == (9,) for name in ("log_likelihoods", "variances", "ess", "rhat"))
    assert details["acceptance"].shape == (8,)
    means, variances = linear_moments(power(9, 4.0))
    assert ((details["log_likelihoods"] - means).abs() < 5 * (details["variances"] / details["ess"]).sqrt()).all()
    assert_close(details["variances"] / variances, torch.ones(9), rtol=0.6)
    again = integrate(details["temperatures"], details["log_likelihoods"], details["variances"])
    assert_close(actual.log_evidence, again.value)
    assert_close(details["trapezoid"], again.trapezoid)
    assert_close(actual.error, math.hypot(details["monte_carlo"], again.discretisation))
    assert_within(actual, oracle.log_evidence())


def test_no_draw_of_the_prior_is_repeated():
    """They are made in blocks of a thousand."""
    model, data, _ = linear_problem()
    assert len(at_prior(as_target(model, data), 2500, lambda start: start).unique()) == 2500


@pytest.mark.filterwarnings("ignore:chains at inverse temperature")
def test_same_seed_same_result(untouched_rng: None):
    target, _ = skewed()
    options: dict[str, Any] = {"temperatures": 4, "chains": 2, "steps": 40}
    first, again, other = (thermodynamic_integration(target, seed=seed, **options) for seed in (3, 3, 4))
    assert first.log_evidence == again.log_evidence
    assert torch.equal(first.details["log_likelihoods"], again.details["log_likelihoods"])
    assert first.log_evidence != other.log_evidence


def test_chains_that_disagree_warn():
    draws = normal(3, 2, 100)
    draws[2, 1] += 4.0
    with pytest.warns(UserWarning, match=r"at inverse temperature 1 do not agree \(R-hat"):
        _integrated(draws, torch.tensor([0.0, 0.5, 1.0]).double(), torch.ones(2))
    draws[2] = -3.0
    with pytest.warns(UserWarning, match=r"at inverse temperature 1 do not agree \(R-hat inf"):
        _integrated(draws, torch.tensor([0.0, 0.5, 1.0]).double(), torch.tensor([1.0, 0.0]))


def test_a_likelihood_that_says_nothing():
    """It is constant along the path, so its logarithm is the evidence, without an error."""
    target = FunctionTarget(lambda w: -0.5 * w.square().sum(-1), lambda w: 0.0 * w.sum(-1) - 3.0, normal_draws(1.0, 2))
    actual = thermodynamic_integration(target, chains=2, steps=40, temperatures=3)
    assert_close(actual.log_evidence, -3.0)
    assert_close(actual.error, 0.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chains": 0}, "`chains` must be a whole number"),
        ({"steps": 20}, "`steps` must be at least 30"),
        ({"leapfrogs": 0}, "`leapfrogs` must be a whole number"),
        ({"temperatures": 2}, "`temperatures` must be at least 3"),
        ({"temperatures": np.int64(2)}, "`temperatures` must be at least 3"),
        ({"temperatures": [0.0, 1.0]}, "`temperatures` must be at least 3"),
        ({"temperatures": [0.0, 0.5, 0.9]}, "rise from 0 to 1"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        thermodynamic_integration(bimodal()[0], **settings)


def test_models_without_an_evidence():
    _, data, _ = linear_problem()
    network = nn.Linear(2, 1).double()
    with pytest.raises(ValueError, match="flat prior is improper"):
        thermodynamic_integration(Model(network, likelihoods.Gaussian(), priors.Flat()), data)
    with pytest.raises(ValueError, match="its temperature is 2"):
        thermodynamic_integration(Model(network, likelihoods.Gaussian(), temperature=2.0), data)
