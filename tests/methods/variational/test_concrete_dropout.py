"""Concrete dropout: the identities of its masks, its bound against the formula, and what it learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.laws.cases import assert_same_tensors, everything, losses
from tests.laws.test_method_laws import break_after, keep_every
from tests.oracles import assert_close, normal
from tests.posteriors.layers.layer_networks import ByFunction
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.methods.schedules import epochs_of
from torchbayes.methods.variational.concrete import Rated, concrete_mask
from torchbayes.randomness.seeds import Purpose, generator, member_seeds
from torchbayes.selection import length


def stacked(rate: float = 0.1) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        layers = (nn.Linear(2, 5), nn.Dropout(0.3), nn.Tanh(), nn.Linear(5, 20), nn.Tanh(), nn.Dropout(rate))
        return nn.Sequential(*layers, nn.Linear(20, 1)).double()


def regression(rows: int) -> tuple[Tensor, Tensor]:
    inputs = normal(rows, 2, seed=1)
    return inputs, inputs[:, :1].sin() + 0.3 * normal(rows, 1, seed=2)


def model_of(scale: float = 1.0, noise: float = 0.3) -> tb.Model:
    return tb.Model(stacked(), tb.likelihoods.Gaussian(scale=noise), tb.priors.Normal(scale))


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_masks_are_kept_with_the_probability_of_the_rate(p: float) -> None:
    """P(z > ½) = 1 − p for every t; E z = 0.8985 for p = 0.1 and t = 0.1."""
    count = 400_000
    source = torch.Generator().manual_seed(3)
    z = concrete_mask(torch.tensor(p, dtype=torch.float64).logit(), (count,), source=source)
    assert abs(float((z > 0.5).double().mean()) - (1 - p)) < 5 * (p * (1 - p) / count) ** 0.5
    expected = {0.1: 0.8985, 0.5: 0.5}[p]
    assert abs(float(z.mean()) - expected) < 5 * float(z.std()) / count**0.5 + 5e-5
    assert ((z > 0.01) & (z < 0.99)).double().mean() < 0.4


@pytest.mark.parametrize(("temperature", "tempering"), [(1.0, "joint"), (0.3, "joint"), (2.5, "likelihood")])
def test_loss_is_the_bound_and_its_gradient_is_exact(temperature: float, tempering: Any) -> None:
    """T divides likelihood and prior of the tempered posterior, or the likelihood alone, and never the entropy."""
    scale, rows = 1.3, 40
    likelihood, (x, y) = tb.likelihoods.Gaussian(scale=0.3), regression(rows)
    model = tb.Model(stacked(), likelihood, tb.priors.Normal(scale), temperature=temperature, tempering=tempering)
    size, names = model.layout.size, model.layout.slices
    both = torch.cat([normal(2, size, seed=3), torch.tensor([[-1.0, 0.4], [0.2, -2.0]], dtype=torch.float64)], 1)
    batch = tb.Batch(x.expand(2, -1, -1), y.expand(2, -1, -1))
    target = Rated(model, rows)

    def loss(weights: Tensor) -> Any:
        return target.loss(weights, batch, buffers={}, seeds=[5, 6], out=torch.empty_like(weights))

    value_M, gradient, log_likelihood_M = loss(both)
    penalty = []
    for m in range(2):
        w, p = both[m, :size], both[m, size:].sigmoid()
        squares = {name: w[where].square().sum() / (2 * scale**2) for name, where in names.items()}
        entropy = -p * p.log() - (1 - p) * (1 - p).log()
        beside = (squares["0.weight"] + squares["0.bias"]) / (1 - p[0]) + squares["6.weight"] / (1 - p[1])
        rest = squares["3.weight"] + squares["3.bias"] + squares["6.bias"]
        masks = 5 * entropy[0] + 20 * entropy[1]
        penalty.append((beside + rest - (temperature if tempering == "joint" else 1) * masks) / rows)
    found_M = value_M + log_likelihood_M / rows / (temperature if tempering == "likelihood" else 1)
    assert_close(found_M[1] - found_M[0], penalty[1] - penalty[0])  # the prior's constant is left
    step = 1e-6
    for at in (0, 7, 12, 30, size - 3, size, size + 1):
        ends = []
        for sign in (1, -1):
            moved = both.clone()
            moved[:, at] += sign * step
            ends.append(loss(moved)[0])
        assert_close(gradient[:, at], (ends[0] - ends[1]) / (2 * step), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("net", "shape", "mask"),
    [
        (lambda: nn.Sequential(nn.Linear(2, 5), nn.Dropout(0.3), nn.Linear(5, 1)), (2,), (5,)),
        (lambda: nn.Sequential(nn.Linear(2, 5), nn.Dropout(0.3), nn.Linear(5, 1)), (4, 2), (1, 5)),
        (lambda: nn.Sequential(nn.Linear(2, 5), nn.Dropout(0.3), nn.Linear(5, 1)), (3, 4, 2), (1, 1, 5)),
        (lambda: nn.Sequential(nn.Conv2d(2, 5, 1), nn.Dropout2d(0.3), nn.Conv2d(5, 1, 1)), (2, 3, 4), (5, 1, 1)),
    ],
    ids=["rows", "sequences", "images with channels last", "images"],
)
def test_units_that_the_posterior_drops_are_those_of_training(net: Any, shape: Any, mask: Any) -> None:
    """In a row a mask is of the units or channels of the layer, whatever axes are in front of or behind these."""
    model = tb.Model(net().double(), tb.likelihoods.Gaussian(1.0), tb.priors.Normal())
    rows, logit = normal(6, *shape, seed=1), torch.tensor([0.4], dtype=torch.float64).logit()
    both = torch.cat([normal(model.layout.size, seed=3), logit])[None]
    targets = torch.zeros_like(model.network(both[0, :-1], rows))
    about: Any = {"buffers": {}, "seeds": [5], "out": torch.empty_like(both)}
    actual = Rated(model, 6).loss(both, tb.Batch(rows[None], targets[None]), **about).log_likelihood
    views = model.layout.split(both[0, :-1])
    first, _, last = model.network.module.children()
    kept = concrete_mask(logit, (6, *mask), source=generator(Purpose.CONCRETE, 5)) / 0.6
    hidden = torch.func.functional_call(first, {n: views[f"0.{n}"] for n in ("weight", "bias")}, (rows,)) * kept
    outputs = torch.func.functional_call(last, {n: views[f"2.{n}"] for n in ("weight", "bias")}, (hidden,))
    assert_close(actual[0], torch.distributions.Normal(outputs, 1.0).log_prob(targets).sum())


@pytest.mark.study  # the loss is the bound, and its gradient exact, by the test above
def test_rates_fall_as_rows_are_added() -> None:
    actual = []
    for rows in (20, 1000):
        epochs, batch_size = min(300, 20_000 // rows), min(rows, 100)
        method = tb.ConcreteDropout(epochs=epochs, batch_size=batch_size, optimizer=tb.Adam(0.02))
        posterior = tb.fit(model_of(), regression(rows), method, callbacks=())
        actual.append(float(posterior.tensors()["rates_ML"][0, 1]))
    assert 0.5 > actual[0] > actual[1] > 0


def test_interrupted_equals_uninterrupted_and_members_are_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = tb.ConcreteDropout(2, epochs=5, batch_size=10)
    model, data = model_of(noise=1.0), regression(30)
    options = {"seed": 7, "callbacks": ()}
    expected = tb.fit(model, data, method, directory=tmp_path / "whole", **options)  # type: ignore[arg-type]
    keep_every(monkeypatch, 10.0)
    with monkeypatch.context() as inside:
        break_after(inside, tb.ConcreteDropout, 8)
        with pytest.raises(KeyboardInterrupt):
            tb.fit(model, data, method, directory=tmp_path / "cut", **options)  # type: ignore[arg-type]
    resumed = tb.fit(model, data, method, directory=tmp_path / "cut", resume=True, **options)  # type: ignore[arg-type]
    assert_same_tensors(everything(resumed), everything(expected))
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    loaded = tb.load(tmp_path / "cut" / "posterior.safetensors", model)
    assert_close(loaded.functions(4)(data[0]), expected.functions(4)(data[0]))
    for m, seed in enumerate(member_seeds(7, 2)):
        alone = tb.fit(model, data, tb.ConcreteDropout(1, epochs=5, batch_size=10), seed=seed, callbacks=())
        for name, tensor in expected.tensors().items():
            assert_close(tensor[m], alone.tensors()[name][0], rtol=1e-8, atol=1e-11)


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")
def test_network_is_untouched_and_learned_noise_and_batch_norm_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default, but for how long the first runs on held-out rows may be."""
    monkeypatch.setattr(length, "_LONGEST", 1)  # step: 50 epochs
    monkeypatch.setattr(epochs_of, "__kwdefaults__", {"steps": 200})  # of the usual length
    layers = (nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
    net = nn.Sequential(*layers).train()
    before, state = {n: t.clone() for n, t in net.state_dict().items()}, torch.get_rng_state()
    model = tb.Model(net, tb.likelihoods.Gaussian("learned"))
    inputs, targets = (part.float() for part in regression(190))
    method, held_out = tb.ConcreteDropout(batch_size=50), (inputs[150:], targets[150:])
    posterior = tb.fit(model, (inputs[:150], targets[:150]), method, validation=held_out, callbacks=())
    assert_same_tensors(net.state_dict(), before)
    assert torch.equal(torch.get_rng_state(), state)
    assert posterior.buffers_M is not None
    assert posterior.buffers_M["1.running_mean"].abs().max() > 0
    assert tb.evaluate(posterior, (inputs, targets)).metrics["rmse"] < 0.5
    assert not any(m._forward_hooks for m in model.network.module.modules())


@pytest.mark.filterwarnings("ignore::torchbayes.driver.checks.UnusedWeightsWarning")  # at a rate of 1
def test_refusals_say_what_to_do() -> None:
    data, method = regression(20), tb.ConcreteDropout(epochs=2)
    noise = tb.likelihoods.Gaussian(scale=1.0)
    with pytest.raises(ValueError, match=r"under a normal prior around 0.*Use priors.Normal"):
        tb.fit(tb.Model(stacked(), noise, tb.priors.Laplace(1.0)), data, method, callbacks=())
    with pytest.raises(ValueError, match="a rate of 1 cannot be learned from"):
        tb.fit(tb.Model(stacked(1.0), noise), data, method, callbacks=())
    with pytest.raises(ValueError, match=r"stand right beside linear layers.*Use MCDropout"):
        tb.fit(tb.Model(ByFunction(), tb.likelihoods.Categorical()), (normal(9, 4), torch.arange(9) % 3), method,
               callbacks=())  # fmt: skip
    with pytest.raises(ValueError, match="no dropout in a part with random weights"):
        tb.fit(tb.Model(nn.Linear(2, 1).double(), noise), data, method, callbacks=())
