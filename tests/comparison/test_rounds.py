"""Training and choosing the prior in turns, against the exact optimum of a linear model; effective weights."""

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import nn

import torchbayes as tb
from torchbayes import networks
from torchbayes.comparison.evidence import _scales
from torchbayes.comparison.rounds import _next, best_round, train_in_rounds
from torchbayes.evidence import linear_gaussian_evidence

# a few epochs do not train
pytestmark = pytest.mark.filterwarnings("ignore:.*than under a constant:torchbayes.ProblemWarning")

NOISE = 0.3


def regression(rows=40, columns=4):
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows, columns, generator=random, dtype=torch.float64)
    slopes = torch.randn(columns, 1, generator=random, dtype=torch.float64)
    targets = inputs @ slopes + NOISE * torch.randn(rows, 1, generator=random, dtype=torch.float64)
    return inputs, targets


def linear_model(scale, columns=4):
    return tb.Model(networks.linear(columns, 1).double(), tb.likelihoods.Gaussian(NOISE), tb.priors.Normal(scale))


def exact_evidence(scale, data):
    return linear_gaussian_evidence(linear_model(scale), data).log_evidence


@pytest.mark.slow
def test_the_turns_end_at_the_prior_of_the_largest_exact_evidence():
    data = regression()
    options = {"bounds": (-3, 3), "method": "bounded", "options": {"xatol": 1e-6}}
    exact: Any = minimize_scalar(lambda s: -exact_evidence(math.exp(s), data), **options)
    first = tb.MAP(1, 250, 40, tb.SGD(0.02), plan="loop")
    dense = tb.Laplace("dense", prior="model")
    actual = train_in_rounds(linear_model(8.0), data, first, laplace=dense, again=[first] * 4)
    assert len(actual) == 5
    assert all(one.at_mode for one in actual)
    # every round is exact for the prior that it was trained under
    for one in actual:
        scale = float(one.fitted.model.prior.stds()[0])
        assert float(one.fitted.log_evidence()) == pytest.approx(exact_evidence(scale, data), abs=1e-6)
    chosen = best_round(actual)
    assert float(chosen.fitted.log_evidence()) == pytest.approx(-exact.fun, abs=1e-4)
    assert float(chosen.fitted.model.prior.stds()[0]) == pytest.approx(math.exp(exact.x), rel=0.02)
    assert best_round(actual[::-1]) is chosen  # that of the largest evidence, not merely the last


def round_at(log_precision_D, gap_D) -> Any:
    """What a step needs of a round: where it was trained, and how far away its evidence is largest."""

    def moved(factor_D):
        return SimpleNamespace(model=log_precision_D + factor_D.log())

    fitted = SimpleNamespace(model=None, reference_MD=log_precision_D.exp()[None], with_strength=moved)
    return SimpleNamespace(fitted=fitted, tuned=SimpleNamespace(strength_D=gap_D.exp()))


def test_the_third_round_is_where_a_line_through_the_gaps_of_two_ends():
    """With gaps of (ρ − 1)(x − x*) it is x* itself, 1/(1 − ρ) gaps away; four where that is more, or ρ is above 1."""
    rho_D, best = torch.tensor([0.5, 0.2, 0.9, 1.5], dtype=torch.float64), 0.3
    first_D = torch.full((4,), 0.7, dtype=torch.float64)
    gap_D = (rho_D - 1) * (first_D - best)
    second: Any = _next([round_at(first_D, gap_D)])
    torch.testing.assert_close(second, first_D + 1.5 * gap_D)
    later_D = (rho_D - 1) * (second - best)
    third: Any = _next([round_at(first_D, gap_D), round_at(second, later_D)])
    torch.testing.assert_close(third[:2], torch.full((2,), best, dtype=torch.float64))
    torch.testing.assert_close(third[2:], (second + 4 * later_D)[2:])


def test_weights_that_are_no_mode_are_said_so():
    # far from the mode: hardly trained at all
    hardly = tb.MAP(1, 1, 40, tb.SGD(1e-8), plan="loop")
    [one] = train_in_rounds(linear_model(1.0), regression(), hardly, laplace=tb.Laplace("dense", prior="model"))
    assert not one.at_mode


def test_without_a_free_prior_the_model_stays():
    first = tb.MAP(1, 20, 40, tb.SGD(0.02), plan="loop")
    actual = train_in_rounds(
        linear_model(1.0),
        regression(),
        first,
        laplace=tb.Laplace("dense", prior="model"),
        groups="model",
        again=[first],
    )
    assert actual[1].fitted.model is actual[0].fitted.model


def test_effective_parameters_are_those_of_the_explicit_matrices():
    inputs, targets = regression()
    model = linear_model(0.1)
    mode = tb.fit(model, (inputs, targets), tb.MAP(1, 50, 40, tb.SGD(0.02), plan="loop"), callbacks=())
    actual = tb.fit(model, (inputs, targets), tb.Laplace("dense", prior="model"), start=mode, callbacks=())
    design = torch.cat([inputs, torch.ones(len(inputs), 1, dtype=torch.float64)], dim=1)
    values = torch.linalg.eigvalsh(design.T @ design / NOISE**2)
    assert isinstance(actual, tb.LaplacePosterior)
    assert float(actual.effective_parameters()) == pytest.approx(float((values / (values + 100)).sum()), rel=1e-9)
    assert 4 < float(tb.tune(actual).effective_parameters()) <= 5 + 1e-9


def test_scales_that_vary_within_a_parameter_are_given_by_their_ends():
    layout = tb.Model(nn.Linear(2, 1), tb.likelihoods.Gaussian(1.0), tb.priors.Normal(1.0)).layout
    prior = SimpleNamespace(stds=lambda: torch.tensor([0.5, 0.25, 2.0]))
    scales = _scales(cast("Any", SimpleNamespace(model=SimpleNamespace(layout=layout, prior=prior))))
    assert scales == {"weight (smallest)": 0.25, "weight (largest)": 0.5, "bias": 2.0}
