"""Targets on another scale than the model are said by every method that fits them."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import torchbayes as tb

SHORT: Any = {"steps": 18, "burn_in": 12, "chains": 2, "trajectory": 0.1, "max_leapfrogs": 16}
METHODS = [
    *(tb.MAP(epochs=8), pytest.param(tb.MAP(members=2, epochs=8), marks=pytest.mark.study), tb.SWAG(epochs=8)),
    *(tb.SGHMC(steps=40, burn_in=20), tb.OnlineLaplace(epochs_of_descent=8), tb.HMC(**SHORT)),
]
LIKELIHOODS = [
    (tb.likelihoods.Gaussian(1.0), 1),
    (tb.likelihoods.Gaussian("learned"), 1),
    (tb.likelihoods.HeteroscedasticGaussian(), 2),
]


def rows(scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, 4, generator=random)
    noise = torch.randn(200, 1, generator=random)
    return inputs, scale * (4 + inputs[:, :1] - inputs[:, 1:2] ** 2 + 0.2 * noise)


def problems(method: Any, likelihood: Any, outputs: int, scale: float) -> list[str]:
    network = nn.Sequential(nn.Linear(4, 20), nn.Tanh(), nn.Linear(20, outputs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior = tb.fit(tb.Model(network, likelihood), rows(scale), method, callbacks=())
    return [problem for problem in posterior.problems if "scale" in problem or "standardise" in problem]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{type(method).__name__}{method.members}")
@pytest.mark.parametrize(("likelihood", "outputs"), LIKELIHOODS, ids=["fixed", "learned", "heteroscedastic"])
@pytest.mark.parametrize("scale", [1e-4, 1e5])
def test_targets_of_another_scale_are_said(method: Any, likelihood: Any, outputs: int, scale: float) -> None:
    actual = problems(method, likelihood, outputs, scale)
    # a noise of 1 is no error in units of such targets, and a network can give such small numbers
    assert actual or (scale < 1 and likelihood != tb.likelihoods.Gaussian("learned"))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{type(method).__name__}{method.members}")
def test_targets_of_unit_scale_are_not(method: Any) -> None:
    assert not [p for p in problems(method, tb.likelihoods.Gaussian(1.0), 1, 1.0) if "one scale" in p]


def test_the_size_of_residuals_is_that_by_hand() -> None:
    """The network is 0 everywhere, so that residuals are the targets."""
    network = nn.Linear(4, 1)
    nn.init.zeros_(network.weight)
    nn.init.zeros_(network.bias)
    model = tb.Model(network, tb.likelihoods.Gaussian(0.5))
    inputs, targets = rows(1000.0)
    from torchbayes.health.residuals import unexplained
    from torchbayes.model.sources.sources import as_source

    actual = unexplained(tb.Point(model, torch.zeros(1, 5)), as_source(model, (inputs, targets), 64))
    size = float((targets / 0.5).square().mean().sqrt())
    assert f"{size:.3g} noise standard deviations" in actual[0]
    assert not unexplained(tb.Point(model, torch.zeros(1, 5)), as_source(model, (inputs, targets / 1000), 64))


def test_a_noise_far_wider_than_targets_is_said_with_a_remedy() -> None:
    from torchbayes.health.residuals import unexplained
    from torchbayes.model.sources.sources import as_source

    inputs, targets = rows(0.02)
    spread = float(targets.std(correction=0))
    for scale, said in ((1.0, True), (2.5 * spread, False), (3.5 * spread, True)):
        model = tb.Model(nn.Linear(4, 1), tb.likelihoods.Gaussian(scale))
        actual = unexplained(tb.Point(model, torch.zeros(1, 5)), as_source(model, (inputs, targets), 64))
        assert bool(actual) == said
        assert not said or f"noise is {scale:.3g}, and that of the targets {spread:.3g}, so" in actual[0]
        assert not said or "likelihoods.Gaussian(" in actual[0]
