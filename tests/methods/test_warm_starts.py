"""Fits that begin at a sharp mode: they stay near it, with the spread that the data leave there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.oracles import LinearGaussian, assert_close, normal
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.methods.variational.target import target_of
from torchbayes.model.sources.sources import as_source
from torchbayes.networks import mlp
from torchbayes.selection.spread import borne

ROWS, FEATURES, NOISE = 256, 5, 0.01


def problem(*, open_prior: bool = False) -> tuple[tb.Model, tuple[Tensor, Tensor]]:
    """A regression with little noise, whose features have scales from 0.3 to 3 and are correlated."""
    mixing = torch.diag(torch.logspace(-0.5, 0.5, FEATURES).double()) + 0.2 * normal(FEATURES, FEATURES, seed=2)
    inputs = normal(ROWS, FEATURES) @ mixing
    targets = inputs @ normal(FEATURES, 1, seed=3) + 0.4 + NOISE * normal(ROWS, 1, seed=1)
    net = nn.Linear(FEATURES, 1).double()
    model = tb.Model(net, tb.likelihoods.Gaussian(NOISE), *([] if open_prior else [tb.priors.Normal(1.0)]))
    return model, (inputs, targets)


def posterior(data: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The exact mean, and the standard deviations of the independent normals nearest to the posterior in KL(q ‖ p)."""
    mean_D, covariance_DD = LinearGaussian(data[0], data[1][:, 0], 1.0, NOISE).posterior()
    return mean_D, torch.linalg.inv(covariance_DD).diagonal().rsqrt()


METHODS: dict[str, Any] = {
    "ivon": tb.IVON(members=2, epochs=120, hessian_decay=0.98),
    "ivon-adapted": tb.IVON(members=2, epochs=400, hessian_decay=0.98, draws=2, antithetic=True),
    "bsam": tb.BSAM(members=2, epochs=120, batch_size=ROWS),
    "vi": tb.VI(members=2, epochs=140, kl_weight=1.0, optimizer=tb.Adam(3e-4)),
}


@pytest.mark.parametrize(  # adapted ones begin as others of their class do
    "name", [pytest.param(name, marks=[pytest.mark.study] * (name == "ivon-adapted")) for name in METHODS]
)
def test_a_fit_that_begins_at_the_mode_stays_there_and_finds_its_spread(name: str) -> None:
    """The loss never exceeds that at the mode by more than a few times D/2N, that of draws from the posterior."""
    model, data = problem()
    mean_D, scale_D = posterior(data)
    seen: list[float] = []
    actual = tb.fit(model, data, METHODS[name], start=mean_D, callbacks=[lambda e: seen.append(max(e.record["nll"]))])
    at_mode = -float(tb.LogDensity(model, ROWS, tb.Batch(*data))(mean_D[None]).log_likelihood) / ROWS
    assert max(seen) - at_mode < 4 * len(mean_D) / (2 * ROWS)
    assert ((actual.mean_MD - mean_D).abs() < scale_D).all()
    if name != "bsam":  # whose spread is that of gradients
        ratio_MD = actual.covariance.diagonal().sqrt() / scale_D
        assert ratio_MD.min() > 0.75
        assert ratio_MD.max() < 1.25


def test_what_a_start_bears_are_gradients_of_pairs_of_rows() -> None:
    """At the mode 1/(N σ²) is the Fisher information of a row, E x²/s², here to the noise of 64 pairs."""
    model, data = problem()
    mean_D, _ = posterior(data)
    weights_MD = torch.stack([mean_D, mean_D + 1e-3])
    density = tb.LogDensity(model, ROWS, None, plan="loop")
    found_MD = borne(density, as_source(model, data, 128), (weights_MD, {}), seeds=[1, 2])
    rows = as_source(model, data, 128).some(128)
    assert [batch.size for batch in rows] == [128]
    features = LinearGaussian.features(rows[0].inputs)
    for weights_D, scale_D in zip(weights_MD, found_MD, strict=True):
        slopes = (features @ weights_D - rows[0].targets[:, 0])[:, None] * features / NOISE**2
        pairs = (slopes[:64] + slopes[64:]) / 2
        assert_close(scale_D, (ROWS * 2 * pairs.square().mean(0)).rsqrt())
    exact_D = (LinearGaussian.features(data[0]).square().sum(0) / NOISE**2).rsqrt()
    assert (found_MD[0] / exact_D).log().abs().max() < 0.4
    coupled = tb.Model(nn.Linear(FEATURES, 1).double(), tb.likelihoods.Gaussian(NOISE), temperature=0.5)
    cold_MD = borne(tb.LogDensity(coupled, ROWS), as_source(coupled, data, 128), (weights_MD, {}), seeds=[1, 2])
    assert_close(cold_MD, found_MD * 0.5**0.5)


@pytest.mark.parametrize("method", [tb.IVON(), tb.BSAM()])
def test_a_start_makes_a_spread_narrower_and_never_wider(method: Any) -> None:
    model, _ = problem()
    density = tb.LogDensity(model, ROWS)
    own = method.init(density, normal(1, 6), {}, seeds=[1], steps_per_epoch=2)
    lam, before_MD = target_of(density, normal(1, 6)).ess, own.precision_MD
    narrow, wide = 1 / (lam * 50.0) ** 0.5, 1.0
    asked_MD = torch.tensor([[narrow, wide, 0.0, torch.inf, torch.nan, narrow / 2]], dtype=torch.float64)
    expected_MD = before_MD.clone()
    expected_MD[0, 0], expected_MD[0, 5] = 50.0, 200.0
    if isinstance(method, tb.BSAM):
        expected_MD[:] = 200.0
    assert_close(method.spread(density, own, asked_MD).precision_MD, expected_MD)
    assert torch.equal(own.precision_MD, before_MD)


def test_runs_that_choose_the_prior_begin_as_the_fit_does(tmp_path: Path) -> None:
    """Without the spread of the start they diverge under every scale, and nothing is chosen."""
    model, data = problem(open_prior=True)
    start = posterior(data)[0]
    tb.fit(model, data, tb.IVON(epochs=60), start=start, directory=tmp_path / "run", callbacks=())
    tried = json.loads((tmp_path / "run" / "config.json").read_text())["chosen"]["tried"]
    assert all(each["nll"] < -2 for each in tried)


def test_each_cycle_of_a_preconditioned_chain_begins_with_short_steps() -> None:
    model, data = problem()
    method = tb.SGHMC(chains=1, steps=8, burn_in=0, thin=1, schedule=tb.Cycles(3))
    density = tb.LogDensity(model, ROWS, plan="loop")
    state, sizes = method.init(density, posterior(data)[0][None], {}, seeds=(1,), steps_per_epoch=2), []
    for _ in range(8):
        state, info = method.step(density, state, tb.Batch(*(t[None, :9] for t in data)))
        sizes.append(float(info.step_size_M))
    assert_close(sizes, [method.step_size_at(t, density) * (t % 3) / 100 for t in range(8)])


LENGTH: dict[str, Any] = {"members": 2, "epochs": 40, "batch_size": 50}
DEEP: dict[str, Any] = {
    "ivon": tb.IVON(**LENGTH),
    "bsam": tb.BSAM(**LENGTH),
    "vi": tb.VI(**LENGTH, kl_weight=1.0),
    "cycles": tb.SGHMC(chains=2, steps=200, burn_in=0, thin=10, batch_size=50, schedule=tb.Cycles(100)),
}


@pytest.fixture(scope="module")
def deep() -> tuple[tb.Model, tuple[Tensor, Tensor], tb.Point, float]:
    """A deep perceptron with a noise for every row, its modes, and their NLL."""
    inputs = normal(300, 3).float()
    means = (inputs[:, :1] * 2).sin() + inputs[:, 1:2] * inputs[:, 2:3]
    data = inputs, means + 0.05 * normal(300, 1, seed=1).float()
    likelihood, prior = tb.likelihoods.HeteroscedasticGaussian(), tb.priors.Normal(1.0)
    model = tb.Model(lambda: mlp(3, 2, hidden=(16, 16, 16)), likelihood, prior)
    modes = tb.fit(model, data, tb.MAP(members=2, epochs=200, optimizer=tb.Adam(0.01)), callbacks=())
    return model, data, modes, tb.evaluate(modes, data).metrics["nll"]


@pytest.mark.slow
@pytest.mark.study  # `test_a_fit_that_begins_at_the_mode_stays_there_and_finds_its_spread` has the same starts
@pytest.mark.parametrize("name", DEEP)
def test_a_deep_network_keeps_what_its_modes_knew(deep: Any, name: str) -> None:
    """A Gaussian with independent weights loses D/2N nats a row, D = 642: about 1.1."""
    model, data, modes, at_modes = deep
    warm = tb.fit(model, data, DEEP[name], start=modes, callbacks=())
    assert tb.evaluate(warm, data).metrics["nll"] < at_modes + 1.1
