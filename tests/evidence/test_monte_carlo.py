import math
from typing import Any

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
from tests.oracles import assert_close, normal
from torchbayes.evidence import FunctionTarget, prior_monte_carlo
from torchbayes.model import Batch, Model, likelihoods, priors


def problems() -> dict[str, tuple[Any, float]]:
    model, data, oracle = linear_problem()
    return {
        "linear": ((model, data), oracle.log_evidence()),
        "tanh": (tanh_problem(), tanh_log_evidence(201)),
        "logistic": (logistic_problem(), logistic_log_evidence(61)),
        "bimodal": (bimodal()[:1], bimodal()[1]),
        "skewed": (skewed()[:1], skewed()[1]),
    }


@pytest.mark.parametrize("name", ["linear", "tanh", "logistic", "bimodal", "skewed"])
def test_evidence_is_the_exact_one(name: str):
    arguments, exact = problems()[name]
    assert_within(prior_monte_carlo(*arguments, draws=40_000, seed=1), exact)


@pytest.mark.filterwarnings("ignore:the evidence rests on")
def test_it_is_the_mean_of_the_likelihood_at_its_draws():
    model, data, _ = linear_problem()
    seen: list[torch.Tensor] = []

    def log_likelihood(weights: torch.Tensor) -> torch.Tensor:
        seen.append(weights.detach())
        return torch.stack([model.log_likelihood(w, Batch(*data)).sum() for w in weights])

    def draw(count: int, seed: int) -> torch.Tensor:
        return model.prior.sample(count, seed=seed)

    actual = prior_monte_carlo(FunctionTarget(model.log_prior, log_likelihood, draw), draws=1050, seed=3)
    assert torch.cat(seen).shape == (1050, 3)
    assert len(torch.cat(seen).unique(dim=0)) == 1050  # the second block of draws is not the first
    log_weights = torch.stack([model.log_likelihood(w, Batch(*data)).sum() for w in torch.cat(seen)])
    assert_close(actual.log_evidence, log_weights.exp().mean().log())
    assert actual.details["draws"] == 1050


def test_errors_are_calibrated():
    target, exact = skewed()
    actual = [prior_monte_carlo(target, draws=2000, seed=seed) for seed in range(300)]
    assert_calibrated([(f.log_evidence - exact) / f.error for f in actual], 0.9, 1.12)


def test_same_seed_same_result(untouched_rng: None):
    target, _ = bimodal()
    first, again, other = (prior_monte_carlo(target, draws=1200, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first.log_evidence != other.log_evidence


def test_data_that_the_prior_does_not_foresee_warn():
    model, (inputs, _), _ = linear_problem()
    with pytest.warns(UserWarning, match=r"effective draws, fewer than 10.*annealed importance sampling"):
        prior_monte_carlo(model, (inputs, 50.0 + normal(10)), draws=500)


def test_what_has_no_evidence():
    _, data, _ = linear_problem()
    network = nn.Linear(2, 1).double()
    with pytest.raises(ValueError, match="flat prior is improper"):
        prior_monte_carlo(Model(network, likelihoods.Gaussian(), priors.Flat()), data)
    with pytest.raises(ValueError, match="`draws` must be a whole number"):
        prior_monte_carlo(bimodal()[0], draws=0)
    impossible = FunctionTarget(
        lambda w: w.sum(-1) * 0, lambda w: w.sum(-1) * 0 - math.inf, lambda count, seed: normal(count, 1, seed=seed)
    )
    with pytest.raises(ValueError, match="not all −inf"):
        prior_monte_carlo(impossible, draws=10)
