"""bSAM against a plain transcription of its rule and the fixed points of its scale, in float64."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.laws.cases import made, model_of, normal, rows_of
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.density.dynamics import Value
from torchbayes.methods.variational.bsam import State
from torchbayes.model.layout import Layout
from torchbayes.model.model import Scales
from torchbayes.model.priors.bound import BoundPrior
from torchbayes.native.noise import fill_normal
from torchbayes.randomness.seeds import Purpose, mix

ROWS = tb.Batch(torch.zeros(1, 1), torch.zeros(1, 1))


class Slopes:
    """D separate losses with a gradient that is a function of the weight; the prior is N(0, 1/(N δ))."""

    def __init__(self, size: int, slope: Any, *, rows: int, delta: float) -> None:
        prior = BoundPrior(Layout({"w": torch.Size([size])}), tb.priors.Normal((rows * delta) ** -0.5))
        self.model = SimpleNamespace(prior=prior, scales=lambda *_: Scales(1.0, 1.0), network=None, shared=())
        self.num_data, self.slope, self.calls = rows, slope, 0

    def nll(self, weights_MD: Tensor, batch: Any, *, out: Tensor, **_: Any) -> Value:
        out.copy_(self.slope(weights_MD, self.calls))
        self.calls += 1
        loss_M = torch.zeros(len(weights_MD), dtype=torch.float64)
        return Value(loss_M, out, loss_M)


def run(method: tb.BSAM, density: Any, steps: int, size: int, kept: int = 1) -> tuple[State, Tensor]:
    """The last state, and the mean scale over the last steps."""
    state = method.init(density, torch.full((1, size), 0.3, dtype=torch.float64), {}, seeds=[3], steps_per_epoch=steps)
    scales = []
    for number in range(steps):
        state, _ = method.step(density, state, ROWS, donate=True)
        if number >= steps - kept:
            scales.append(state.precision_MD.clone())
    return state, torch.stack(scales).mean(0)


def test_steps_are_the_published_rule() -> None:
    size, steps, n, delta = 600, 25, 300, 0.05
    curve = np.linspace(0.5, 4.0, size)
    density = Slopes(size, lambda w, _: torch.from_numpy(curve) * (w - 0.7), rows=n, delta=delta)
    about: dict[str, Any] = {"lr": 0.2, "momentum": 0.8, "decay": 0.95, "rho": 0.03, "damping": 0.02}
    state, _ = run(tb.BSAM(**about, initial_scale=0.6, schedule=tb.Constant(), epochs=1), density, steps, size)
    m, s, u = np.full(size, 0.3), np.full(size, 0.6), np.zeros(size)
    for t in range(steps):
        stream = mix(Purpose.FLAT_NOISE, t)
        z = fill_normal(torch.empty(size, dtype=torch.float64), seed=3, stream=stream).numpy()
        g = curve * (m + z / np.sqrt(n * s) - 0.7)
        g_eps = curve * (m + 0.03 * g / s - 0.7)
        u = 0.8 * u + 0.2 * (g_eps + delta * m)
        m = m - 0.2 * u / s
        s = 0.95 * s + 0.05 * (np.sqrt(s) * np.abs(g) + delta + 0.02)
    for actual, expected in ((state.mean_MD, m), (state.precision_MD, s), (state.momentum_MD, u)):
        torch.testing.assert_close(actual[0], torch.from_numpy(expected), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("size", "delta", "damping"), [(0.5, 0.1, 0.1), (2.0, 0.01, 0.3), (0.01, 0.2, 0.05)])
def test_gradients_of_one_size_have_a_known_scale(size: float, delta: float, damping: float) -> None:
    """s* = ((c + √(c² + 4 (δ + damping)))/2)² where |g| = c."""
    density = Slopes(3, lambda w, call: torch.full_like(w, size * (-1) ** (call // 2)), rows=100, delta=delta)
    method = tb.BSAM(lr=1e-6, decay=0.9, damping=damping, rho=1e-6, initial_scale=5.0, epochs=1)
    state, _ = run(method, density, 300, 3)
    expected = ((size + math.sqrt(size**2 + 4 * (delta + damping))) / 2) ** 2
    assert state.precision_MD.flatten().tolist() == pytest.approx([expected] * 3, rel=1e-8)


def test_by_default_the_scale_begins_where_the_gradients_have_it() -> None:
    density = Slopes(3, lambda w, _: torch.full_like(w, 4.0), rows=100, delta=0.1)
    state, _ = run(tb.BSAM(lr=1e-9, rho=1e-9, damping=0.2, epochs=1), density, 1, 3)
    expected = ((4 + math.sqrt(16 + 4 * 0.3)) / 2) ** 2
    assert state.precision_MD.flatten().tolist() == pytest.approx([expected] * 3, rel=1e-12)
    small = Slopes(3, lambda w, _: torch.full_like(w, 1e-3), rows=100, delta=0.1)
    state, _ = run(tb.BSAM(lr=1e-9, decay=0.0, rho=1e-9, damping=0.2, epochs=1), small, 1, 3)
    assert state.precision_MD.flatten().tolist() == pytest.approx([1e-3 + 0.3] * 3, rel=1e-12)


def test_all_rows_and_one_curvature() -> None:
    """s ≈ h √(2/(π N)) + δ, whose posterior is far wider than Laplace's, over 5,000 weights at their mode."""
    size, h, n, delta = 5000, 2.0, 1000, 0.01
    density = Slopes(size, lambda w, _: h * w, rows=n, delta=delta)
    method = tb.BSAM(
        lr=1e-3, momentum=0.9, decay=0.99, rho=1e-9, damping=1e-12, initial_scale=0.06, schedule=tb.Constant(), epochs=1
    )
    target: Any = density
    state = method.init(target, torch.zeros(1, size, dtype=torch.float64), {}, seeds=[3], steps_per_epoch=700)
    for _ in range(700):
        state, _ = method.step(target, state, ROWS, donate=True)
    expected = h * math.sqrt(2 / (math.pi * n)) + delta
    assert float(state.precision_MD.mean()) == pytest.approx(expected, rel=0.02)
    assert expected == pytest.approx(0.0605, abs=1e-4)
    assert expected < 0.05 * (h + delta)


def test_a_network_step_by_step_against_autograd() -> None:
    """Two passes by autograd of the module itself, with the noise of the library."""
    module, (inputs, targets) = made("mlp"), rows_of()
    model, size = model_of(), sum(p.numel() for p in module.parameters())
    density = tb.LogDensity(model, 24, plan="loop", training=True)
    method = tb.BSAM(lr=0.2, decay=0.9, rho=0.05, initial_scale=1.5, schedule=tb.Constant(), epochs=8)
    m = torch.cat([p.detach().flatten() for p in module.parameters()])
    state = method.init(density, m.unsqueeze(0), {}, seeds=[9], steps_per_epoch=1)
    s, u = torch.full((size,), 1.5, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)

    def slope(at: Tensor) -> Tensor:
        nn.utils.vector_to_parameters(at, module.parameters())
        loss = nn.functional.cross_entropy(module(inputs), targets)
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))])

    for t in range(8):
        z = fill_normal(torch.empty(size, dtype=torch.float64), seed=9, stream=mix(Purpose.FLAT_NOISE, t))
        g = slope(m + z / (24 * s).sqrt())
        u = 0.9 * u + 0.1 * (slope(m + 0.05 * g / s) + m / 24)
        m = m - 0.2 * u / s
        s = 0.9 * s + 0.1 * (s.sqrt() * g.abs() + 1 / 24 + 0.1)
        state, info = method.step(density, state, tb.Batch(inputs.unsqueeze(0), targets.unsqueeze(0)))
        torch.testing.assert_close(state.mean_MD[0], m, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(state.precision_MD[0], s, rtol=1e-9, atol=1e-10)
        assert torch.isfinite(info.loss_M).all()
    posterior: Any = method.posterior(density, state)
    torch.testing.assert_close(posterior.covariance.variance_MD[0], 1 / (24 * s), rtol=1e-9, atol=1e-12)


def test_parts_have_draws_of_their_own_and_average() -> None:
    """A linear model, part by part."""
    model = tb.Model(nn.Linear(2, 1, bias=False).double(), tb.likelihoods.Gaussian(1.0), tb.priors.Normal(1.0))
    inputs, targets, m = normal(7, 2), normal(7, 1, seed=1), normal(2, seed=2)
    density = tb.LogDensity(model, 7, plan="loop", training=True)
    method = tb.BSAM(lr=0.2, decay=0.9, rho=0.3, initial_scale=1.2, parts=3, schedule=tb.Constant(), epochs=1)
    state = method.init(density, m.unsqueeze(0), {}, seeds=[9], steps_per_epoch=1)
    actual, _ = method.step(density, state, tb.Batch(inputs.unsqueeze(0), targets.unsqueeze(0)))
    s, slope, size = (
        torch.full((2,), 1.2, dtype=torch.float64),
        torch.zeros(2, dtype=torch.float64),
        torch.zeros(2, dtype=torch.float64),
    )
    for part in range(3):
        x, y = inputs[part::3], targets[part::3, 0]
        own = mix(Purpose.PART, 9, part)
        z = fill_normal(torch.empty(2, dtype=torch.float64), seed=own, stream=mix(Purpose.FLAT_NOISE, 0))
        g = x.T @ (x @ (m + z / (7 * s).sqrt()) - y) / len(y)
        slope += len(y) / 7 * x.T @ (x @ (m + 0.3 * g / s) - y) / len(y)
        size += len(y) / 7 * g.abs()
    u = 0.1 * (slope + m / 7)
    torch.testing.assert_close(actual.mean_MD[0], m - 0.2 * u / s, rtol=1e-11, atol=1e-12)
    expected = 0.9 * s + 0.1 * (s.sqrt() * size + 1 / 7 + 0.1)
    torch.testing.assert_close(actual.precision_MD[0], expected, rtol=1e-11, atol=1e-12)


@pytest.mark.study  # steps are the published rule, and those of a network step by step, above
def test_means_of_a_linear_model_reach_the_mode() -> None:
    inputs, weights = normal(200, 3), torch.tensor([[1.0, -2.0, 0.5]]).double()
    targets = inputs @ weights.T + 0.3 * normal(200, 1, seed=3)
    model = tb.Model(nn.Linear(3, 1, bias=False).double(), tb.likelihoods.Gaussian(0.3), tb.priors.Normal(1.0))
    posterior: Any = tb.fit(model, (inputs, targets), tb.BSAM(epochs=1500, batch_size=200, rho=1e-6), callbacks=())
    precision = inputs.T @ inputs / 0.09 + torch.eye(3).double()
    mode = torch.linalg.solve(precision, inputs.T @ targets / 0.09)[:, 0]
    torch.testing.assert_close(posterior.mean_MD[0], mode, rtol=5e-3, atol=5e-3)


def test_temperature_widens_and_other_priors_are_part_of_the_loss() -> None:
    data = rows_of()
    about: dict[str, Any] = {"epochs": 5, "batch_size": 24, "decay": 1 - 1e-12, "initial_scale": 2.0}
    spread = []
    for temperature in (1.0, 0.25):
        posterior: Any = tb.fit(model_of(temperature=temperature), data, tb.BSAM(**about), callbacks=())
        spread.append(float(posterior.covariance.variance_MD.mean()))
    assert spread == pytest.approx([1 / 48, 0.25 / 48], rel=1e-6)
    laplace = tb.Model(made("mlp"), tb.likelihoods.Categorical(), tb.priors.Laplace(0.05))
    flat = tb.Model(made("mlp"), tb.likelihoods.Categorical(), tb.priors.Flat())
    actual: list[Any] = [tb.fit(m, data, tb.BSAM(epochs=25, batch_size=6), callbacks=()) for m in (laplace, flat)]
    sizes = [float(posterior.mean_MD.norm()) for posterior in actual]
    assert sizes[0] < 0.7 * sizes[1]


@pytest.mark.study  # steps are the published rule, and the scale begins where gradients have it, above
@pytest.mark.parametrize(
    ("rows", "noise", "epochs"),
    [
        *((1, 0.1, 1200), (100, "learned", 500)),
        *((*one, None) for one in ((1, 0.1), (100, 0.1), (100, "learned"))),
    ],
)
def test_defaults_work_on_tiny_tables(rows: int, noise: Any, epochs: int | None) -> None:
    inputs = normal(rows, 3, dtype=torch.float32)
    targets = inputs[:, :1] + 0.1 * normal(rows, 1, seed=1, dtype=torch.float32)
    net = nn.Sequential(nn.Linear(3, 20), nn.ReLU(), nn.Linear(20, 1))
    posterior = tb.fit(
        tb.Model(net, tb.likelihoods.Gaussian(noise)), (inputs, targets), tb.BSAM(epochs=epochs), callbacks=()
    )
    residual = tb.predict(posterior, inputs).mean - targets
    assert float(residual.square().mean()) < 0.15 * float(targets.square().mean())


def test_data_that_are_not_finite_and_runs_that_diverge() -> None:
    inputs, targets = rows_of()
    broken = inputs.clone()
    broken[3, 0] = math.nan
    with pytest.raises(ValueError, match="NaN"):
        tb.fit(model_of(), (broken, targets), tb.BSAM(epochs=2), callbacks=())
    linear, inputs = tb.Model(nn.Linear(4, 1).double(), tb.likelihoods.Gaussian(1.0)), 1e200 * inputs
    with pytest.raises(tb.DivergedError, match=r"diverged at step 0 .* raise `initial_scale`"):
        tb.fit(linear, (inputs, inputs[:, :1]), tb.BSAM(epochs=20), callbacks=())


def test_batch_norm_weights_of_rows_and_bfloat16() -> None:
    data = rows_of("conv_batch_norm")
    normed = tb.fit(model_of("conv_batch_norm"), data, tb.BSAM(epochs=10, batch_size=8, parts=2), callbacks=())
    assert tb.evaluate(normed, data).metrics["accuracy"] > 0.6
    inputs, targets = rows_of()
    actual = []
    for likelihood, own in (
        (tb.likelihoods.Categorical(), targets),
        (tb.likelihoods.Weighted(tb.likelihoods.Categorical()), (targets, torch.ones(24).double())),
    ):
        model = tb.Model(made("mlp"), likelihood, tb.priors.Normal(1.0))
        posterior: Any = tb.fit(model, (inputs, own), tb.BSAM(epochs=4, batch_size=6), seed=1, callbacks=())
        actual.append(posterior.mean_MD)
    torch.testing.assert_close(*actual, rtol=1e-8, atol=1e-10)
    half = tb.fit(
        model_of(dtype=torch.bfloat16), (inputs.bfloat16(), targets), tb.BSAM(epochs=25, batch_size=6), callbacks=()
    )
    assert tb.evaluate(half, (inputs.bfloat16(), targets)).metrics["accuracy"] > 0.7
