"""The bounds of variational methods under a temperature: it divides what p_T says, and never the entropy of q."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.oracles import assert_close, normal
from torch import nn

import torchbayes as tb
from torchbayes.density.density import LogDensity
from torchbayes.methods.variational.vbll import Bounded

ROWS, DATA, SCALE = 6, 20, 1e-5
TEMPERINGS = [(1.0, "joint"), (0.2, "joint"), (5.0, "joint"), (0.2, "likelihood"), (5.0, "likelihood")]
tempered = pytest.mark.parametrize(("temperature", "tempering"), TEMPERINGS)
BATCH = tb.Batch(normal(1, ROWS, 3, seed=1), normal(1, ROWS, 2, seed=2))


def model_of(temperature: float, tempering: Any) -> tb.Model:
    about: dict[str, Any] = {"temperature": temperature, "tempering": tempering}
    return tb.Model(nn.Linear(3, 2).double(), tb.likelihoods.Gaussian(0.5), tb.priors.Normal(0.7), **about)


def divergence(model: tb.Model, expected: float, entropy: float) -> float:
    """T KL(q ‖ p_T)/N without the likelihood, of E log p(w) and the entropy."""
    tempered = expected / (model.temperature if model.tempering == "joint" else 1)
    return -(tempered + entropy) * model.temperature / DATA


@tempered
@pytest.mark.parametrize(
    "method",
    [
        tb.VI(estimator="weights", initial_scale=SCALE, kl_weight=1.0),
        tb.VI(estimator="auto", initial_scale=SCALE, kl_weight=1.0),
        tb.VI(structure="low_rank", rank=1, initial_scale=SCALE, kl_weight=1.0),
        tb.VI(structure="radial", initial_scale=SCALE, kl_weight=1.0),
        tb.NormalizingFlow(initial_scale=SCALE, kl_weight=1.0),
        tb.MNF(initial_scale=SCALE, multiplier_scale=SCALE, kl_weight=1.0),
    ],
    ids=["weights", "layers", "low rank", "radial", "flow", "multiplicative flow"],
)
def test_bounds_of_draws(method: Any, temperature: float, tempering: str) -> None:
    """A narrow q has E log p(w) = log p(m), and its entropy is what is left of the divergence of q from p."""
    model = model_of(temperature, tempering)
    density, mean_MD = LogDensity(model, DATA, training=True), normal(1, model.layout.size, seed=3)
    state = method.init(density, mean_MD, {}, seeds=[3], steps_per_epoch=4)
    _, info = method.step(density, state, BATCH)
    expected = float(model.log_prior(mean_MD))
    entropy = -float(info.kl_M) - expected
    assert_close(info.loss_M - info.nll_M, [divergence(model, expected, entropy)], rtol=1e-3)
    assert abs(entropy) > 10  # of eight weights, so that a temperature in a wrong place shows


@tempered
def test_the_bound_of_a_last_layer(temperature: float, tempering: str) -> None:
    model, scale = model_of(temperature, tempering), 0.3
    layer, size = tb.VBLL(covariance="diagonal").layer(model), model.layout.size
    mean_MD = normal(1, size, seed=3)
    both = torch.cat([mean_MD, layer.start(scale, normal(1, size, seed=4))], 1)
    out = torch.empty_like(both)
    actual = Bounded(model, DATA, layer).loss(both, BATCH, buffers={}, seeds=[5], out=out)
    fit = actual.log_likelihood / DATA / (temperature if tempering == "likelihood" else 1)
    expected = float(model.log_prior(mean_MD)) - 0.5 * size * (scale / 0.7) ** 2
    entropy = size * (math.log(scale) + 0.5 * math.log(2 * math.pi * math.e))
    wanted = divergence(model, expected, entropy) / (temperature if tempering == "likelihood" else 1)
    assert_close(actual.log_density + fit, [wanted])
