"""MC dropout: its objective against the bound of the paper, and what a user meets."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.oracles import assert_close, normal
from torch import nn

import torchbayes as tb


def regression(rows: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = normal(rows, 2, seed=1)
    return inputs, inputs[:, :1].sin() + 0.1 * normal(rows, 1, seed=2)


def net_of(rate: float = 0.2, outputs: int = 1) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        layers = (nn.Linear(2, 8), nn.Tanh(), nn.Dropout(rate), nn.Linear(8, outputs))
        return nn.Sequential(*layers).double()


def divergence(m: float, keep: float, length: float, width: float) -> float:
    """KL(k N(m, w²) + p N(0, w²) ‖ N(0, l⁻²)) of one weight, by quadrature in each of the two components."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()

    def log_ratio(x: np.ndarray) -> np.ndarray:
        kept, dropped = math.log(keep) - 0.5 * ((x - m) / width) ** 2, math.log(1 - keep) - 0.5 * (x / width) ** 2
        return np.logaddexp(kept, dropped) - math.log(width) - math.log(length) + 0.5 * (length * x) ** 2

    total = 0.0
    for share, centre in ((keep, m), (1 - keep, 0.0)):
        x = centre + width * nodes
        total += share * float(weights @ log_ratio(x))
    return total


@pytest.mark.parametrize("keep", [0.9, 0.5])
def test_penalty_of_map_is_the_divergence_from_the_prior_of_the_docstring(keep: float) -> None:
    """With inverted dropout W = k M the prior N(0, s²) of W is KL to N(0, s²/k) for M, up to a constant."""
    scale, width = 1.7, 1e-3
    length = math.sqrt(keep / scale**2)
    layer = nn.Sequential(nn.Dropout(1 - keep), nn.Linear(1, 1, bias=False)).double()
    model = tb.Model(layer, tb.likelihoods.Gaussian(scale=1.0), tb.priors.Normal(scale))
    values = (0.7, 1.1, 2.3)
    actual = [divergence(m, keep, length, width) for m in values]
    penalty = [-float(model.log_prior(torch.tensor([keep * m], dtype=torch.float64))) for m in values]
    for k in (1, 2):
        assert_close(penalty[k] - penalty[0], actual[k] - actual[0], rtol=1e-9, atol=1e-9)
        by_formula = 0.5 * keep * length**2 * (values[k] ** 2 - values[0] ** 2)
        assert_close(penalty[k] - penalty[0], by_formula, rtol=1e-12)


def test_loss_is_the_paper_s_with_its_weight_decay() -> None:
    """(1/N) Σ ½ τ ‖y − f‖² + l²/(2Nk) ‖W‖² + const: λ of section 3 for inverted dropout, with τ in the loss."""
    keep, scale, noise = 0.8, 0.9, 0.4
    net, (x, y) = net_of(1 - keep), regression()
    model = tb.Model(net, tb.likelihoods.Gaussian(scale=noise), tb.priors.Normal(scale))
    density = tb.LogDensity(model, len(x), plan="loop", training=False)
    weights = torch.stack([model.given_weights(), normal(model.layout.size, seed=4)])
    loss_M = density.loss(weights, tb.Batch(x.expand(2, -1, -1), y.expand(2, -1, -1))).log_density
    length_squared, views, own = keep / scale**2, model.layout.split(weights), []
    for m in range(2):
        squares = {name: view[m].square().sum() for name, view in views.items()}
        dropped = squares.pop("3.weight")  # acts on units that are dropped
        data = 0.5 * noise**-2 * (y - model.network(weights[m], x)).square().sum(-1).mean()
        prior = length_squared / (2 * len(x) * keep) * dropped + sum(squares.values()) / (2 * len(x) * scale**2)
        own.append(data + prior)
    assert_close(loss_M[1] - loss_M[0], own[1] - own[0])


def test_it_trains_as_map_does_with_dropout_on() -> None:
    model = tb.Model(net_of(), tb.likelihoods.Gaussian(scale=0.5))
    dropped = tb.fit(model, regression(), tb.MCDropout(2, 20, 20), seed=4, callbacks=())
    plain = tb.fit(model, regression(), tb.MAP(2, 20, 20), seed=4, callbacks=())
    assert_close(dropped.tensors()["weights_MD"], plain.tensors()["weights_MD"])
    assert_close(dropped.tensors()["rates_ML"], torch.full((2, 1), 0.2, dtype=torch.float64))
    assert dropped.default_draws == 30
    inputs = normal(5, 2)
    assert tb.predict(dropped, inputs).mean.shape == (5, 1)
    assert (tb.predict(dropped, inputs).epistemic > tb.predict(plain, inputs).epistemic).all()


def test_a_trained_network_needs_no_fit() -> None:
    net, (x, y) = net_of(), regression()
    model = tb.Model(net, tb.likelihoods.Gaussian(scale=0.3))
    posterior = tb.DropoutPosterior.of(model, net)
    assert_close(posterior.weights_MD[0], model.given_weights())
    metrics = tb.evaluate(posterior, (x, y)).metrics
    assert metrics["nll"] > 0
    several = tb.DropoutPosterior.of(model, [net, net_of(0.2).state_dict()])
    assert several.functions(4).draws == 4


def test_network_without_dropout_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    model = tb.Model(nn.Linear(2, 1).double(), tb.likelihoods.Gaussian("learned"))
    for method in (tb.MCDropout(), tb.MCDropout(epochs=3)):
        with pytest.raises(ValueError, match=r"no dropout in a part with random weights.*Put nn.Dropout"):
            tb.fit(model, regression(), method, directory=tmp_path / "run", callbacks=())
    assert not list((tmp_path / "run").glob("*.safetensors"))


def test_hostile_sizes() -> None:
    one = tb.Model(nn.Sequential(nn.Dropout(0.5), nn.Linear(1, 1, bias=False)), tb.likelihoods.Gaussian("learned"))
    data = torch.ones(1, 1), torch.full((1, 1), 2.0)
    posterior = tb.fit(one, data, tb.MCDropout(epochs=20), callbacks=())
    outputs = posterior.functions(200)(data[0]).flatten()
    weight = posterior.tensors()["weights_MD"][0, 0]
    assert ((outputs == 0) | ((outputs - 2 * weight).abs() < 1e-6)).all()
    assert 0.3 < (outputs == 0).double().mean() < 0.7
    with pytest.raises((ValueError, tb.DivergedError), match=r"not finite|NaN"):
        tb.fit(one, (torch.full((4, 1), math.nan), torch.ones(4, 1)), tb.MCDropout(epochs=2), callbacks=())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_masks_are_the_same_in_every_dtype(dtype: torch.dtype) -> None:
    net = net_of(0.5, outputs=3)
    model = tb.Model(net.to(dtype), tb.likelihoods.Categorical())
    posterior = tb.DropoutPosterior.of(model, net)
    wide = tb.DropoutPosterior.of(tb.Model(net.double(), tb.likelihoods.Categorical()), net)
    actual, expected = posterior.functions(12)(normal(3, 2).to(dtype)), wide.functions(12)(normal(3, 2))
    assert torch.equal(posterior.sample(12) == 0, wide.sample(12) == 0)
    torch.testing.assert_close(actual.double(), expected, rtol=0.1, atol=0.05 if dtype == torch.bfloat16 else 1e-5)
