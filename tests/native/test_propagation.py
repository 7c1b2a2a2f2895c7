"""Moments of ReLU networks against Monte Carlo, Gammas against quadrature, and the kernel against tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from tests.laws.cases import normal
from torchbayes.native import propagation
from torchbayes.native.description import Activation, Layer
from torchbayes.native.propagation import Beliefs, Rows, outputs_of, propagate, rectified, refresh, tilted

needs_kernel = pytest.mark.skipif(propagation._library() is None, reason="no compiler")


def network(*widths: int, bias: bool = True) -> tuple[tuple[Layer, ...], int]:
    """Layers with ReLUs between them, and the number of their weights."""
    layers: list[Layer] = []
    at = 0
    for fan_in, fan_out in pairwise(widths):
        bias_at = at + fan_in * fan_out if bias else -1
        last = len(layers) == len(widths) - 2
        layers.append(Layer(at, bias_at, fan_in, fan_out, Activation.IDENTITY if last else Activation.RELU))
        at += fan_in * fan_out + (fan_out if bias else 0)
    return tuple(layers), at


def run(layers: Sequence[Layer], weights_SD: Tensor, inputs: Tensor) -> Tensor:
    """Outputs of drawn networks, (S, B, K)."""
    values = inputs.expand(len(weights_SD), -1, -1)
    for layer in layers:
        size = layer.fan_in * layer.fan_out
        matrix = weights_SD[:, layer.weight_at : layer.weight_at + size].unflatten(1, (layer.fan_out, layer.fan_in))
        values = values @ matrix.mT + weights_SD[:, None, layer.bias_at : layer.bias_at + layer.fan_out]
        values = values.relu() if layer.activation == Activation.RELU else values
    return values


def test_moments_of_a_rectified_normal_are_those_of_quadrature() -> None:
    for mean, variance in ((0.3, 0.5), (-1.2, 0.8), (2.0, 0.1), (-3.0, 0.25)):
        actual = [float(t) for t in rectified(*(torch.tensor(x, dtype=torch.float64) for x in (mean, variance)))]
        about: dict[str, Any] = {"epsabs": 1e-14}

        def density(z: float, mean: float = mean, std: float = math.sqrt(variance)) -> float:
            return float(stats.norm.pdf(z, mean, std))

        first = integrate.quad(lambda z, p=density: z * p(z), 0, 12, **about)[0]
        second = integrate.quad(lambda z, p=density: z * z * p(z), 0, 12, **about)[0]
        assert actual == pytest.approx([first, second - first**2], rel=1e-8, abs=1e-13)


@pytest.mark.parametrize("a", [-40.0, -35.0, -30.0 - 1e-9, -30.0 + 1e-9, 0.0, 40.0])
def test_moments_are_finite_and_smooth_far_from_zero(a: float) -> None:
    """At a = −40 what lies above zero is 1e-350 of the whole; at 40 the normal itself is left."""
    mean, variance = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (2 * a, 4.0))
    actual = rectified(mean, variance)
    slopes = torch.autograd.grad(actual[0] + actual[1], (mean, variance))
    actual = [t.detach() for t in actual]
    assert all(torch.isfinite(t).all() and (t >= 0).all() for t in (*actual, *slopes))
    if a == 40:
        assert [float(t) for t in actual] == pytest.approx([80.0, 4.0], rel=1e-12)
    if a <= -35:
        assert float(actual[0]) < 1e-200
        hazard = -a - 1 / a + 2 / a**3  # of a = −40 φ/Φ = 40.02497
        exact = math.exp(stats.norm.logpdf(a) - stats.norm.logcdf(a))
        assert hazard == pytest.approx(exact, rel=2e-7)


def test_moments_of_one_hidden_layer_are_exact() -> None:
    """Given the inputs the hidden units are independent: mean and variance of the output have no approximation."""
    layers, size = network(3, 20, 2)
    mean_D, variance_D, inputs = 0.5 * normal(size), 0.1 + 0.2 * normal(size, seed=1).square(), normal(4, 3, seed=2)
    mean, variance = outputs_of(layers, mean_D, variance_D, inputs_BI=inputs)
    draws = 40_000
    outputs = run(layers, mean_D + variance_D.sqrt() * normal(draws, size, seed=3), inputs)
    assert ((outputs.mean(0) - mean) / (variance / draws).sqrt()).abs().max() < 4
    assert (outputs.var(0) / variance - 1).abs().max() < 0.03


def test_moments_of_two_hidden_layers_are_near() -> None:
    """Units of the second layer share the first, and are taken as independent."""
    layers, size = network(3, 60, 60, 1)
    mean_D, variance_D, inputs = 0.15 * normal(size), torch.full((size,), 0.01).double(), normal(4, 3, seed=2)
    mean, variance = outputs_of(layers, mean_D, variance_D, inputs_BI=inputs)
    outputs = run(layers, mean_D + variance_D.sqrt() * normal(2000, size, seed=3), inputs)
    assert ((outputs.mean(0) - mean) / outputs.std(0)).abs().max() < 0.1
    assert (outputs.var(0) / variance - 1).abs().max() < 0.25


def test_gamma_of_a_residual_is_the_published_update() -> None:
    """α = β = 6, a residual of 1.5 and v = 0.4: with the Gaussian Z_k these; the exact moments are near."""
    shape, rate = tilted(6.0, 6.0, residual=1.5, variance=0.4)
    assert (shape, rate) == pytest.approx((6.1645, 6.3756), abs=5e-5)
    z = [stats.norm.pdf(1.5, 0, math.sqrt(0.4 + 6 / (5 + k))) for k in range(3)]
    assert shape == pytest.approx(1 / (z[0] * z[2] / z[1] ** 2 * 7 / 6 - 1), rel=1e-12)
    assert rate == pytest.approx(1 / (z[2] / z[1] * 7 / 6 - z[1] / z[0]), rel=1e-12)

    def moment(k: int) -> float:
        return integrate.quad(
            lambda g: g**k * stats.gamma.pdf(g, 6, scale=1 / 6) * stats.norm.pdf(1.5, 0, math.sqrt(0.4 + 1 / g)), 0, 40
        )[0]

    first, second = moment(1) / moment(0), moment(2) / moment(0)
    exact = first**2 / (second - first**2), first / (second - first**2)
    assert exact == pytest.approx((6.1512, 6.3351), abs=5e-5)
    assert (shape, rate) == pytest.approx(exact, rel=0.01)


def test_gamma_of_a_known_mean_gains_half_a_row() -> None:
    """With v = 0 the exact posterior is Gamma(α + ½, β + r²/2); so it is where α is large, and counts are counts."""
    for count in (1.0, 3.0):
        start = 1e6 + 0.5 * (count - 1)
        shape, rate = tilted(start, 2e6, residual=1.3, variance=0.0, count=count)
        assert shape - 1e6 == pytest.approx(0.5 * count, rel=1e-3)
        assert rate - 2e6 == pytest.approx(0.5 * count * 1.69, rel=2e-3)


def exact_linear(noise: float, count: float) -> None:
    """A row of a linear model: mean and diagonal of the posterior under a rank-one likelihood."""
    layers, size = network(5, 1)
    mean, variance = normal(1, size), 0.1 + normal(1, size, seed=1).square()
    inputs, targets = normal(1, 1, 5, seed=2), normal(1, 1, 1, seed=3)
    actual = Beliefs(mean.clone(), variance.clone())
    counts = torch.full((1, 1), count, dtype=torch.float64)
    known = torch.tensor([noise], dtype=torch.float64)
    seen = propagate(layers, actual, known, rows=Rows(inputs, targets, counts))
    row = torch.cat([inputs[0, 0], torch.ones(1).double()])
    precision = torch.diag(1 / variance[0]) + count * torch.outer(row, row) / noise
    exact = torch.linalg.inv(precision)
    expected = exact @ (mean[0] / variance[0] + count * row * targets[0, 0] / noise)
    torch.testing.assert_close(actual.mean_MD[0], expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(actual.variance_MD[0], exact.diagonal(), rtol=1e-12, atol=1e-12)
    spread = float(row @ (variance[0] * row)) + noise / count
    log_z = stats.norm.logpdf(float(targets), float(row @ mean[0]), math.sqrt(spread))
    assert seen[0].tolist() == pytest.approx([log_z, 0, 1], rel=1e-12)


@pytest.mark.parametrize("count", [1.0, 2.5])
@pytest.mark.parametrize("kernel", [True, False])
def test_a_row_of_a_linear_model_is_exact(kernel: bool, count: float, monkeypatch: pytest.MonkeyPatch) -> None:
    if not kernel:
        monkeypatch.setattr(propagation, "_library", lambda: None)
    exact_linear(0.3, count)


CASES: dict[str, dict[str, Any]] = {
    "one hidden layer": {"widths": (4, 7, 1)},
    "deep, several outputs, a noise each": {"widths": (3, 6, 5, 2), "groups": 2},
    "several outputs, one noise, no biases": {"widths": (3, 9, 3), "bias": False},
    "known noise": {"widths": (4, 6, 2), "known": True},
    "rows that count": {"widths": (4, 7, 1), "counts": True},
    "known noise, rows that count": {"widths": (4, 7, 1), "counts": True, "known": True},
    "targets far away": {"widths": (2, 5, 1), "far": 20.0},
    "linear": {"widths": (5, 1)},
}


@needs_kernel
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_kernel_equals_tensors(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two members, twelve rows, and the refresh of the prior after them; to rounding, whatever was undone."""
    layers, size = network(*case["widths"], bias=case.get("bias", True))
    members, rows, outputs = 2, 12, case["widths"][-1]
    inputs = normal(members, rows, case["widths"][0], seed=4)
    targets = case.get("far", 1.0) * (inputs[..., :1].sin() + 0.3 * normal(members, rows, outputs, seed=5))
    counts = normal(members, rows, seed=6).clamp_min(0) if case.get("counts") else None
    loc, scale = 0.1 * normal(size, seed=7), 0.3 + 0.2 * normal(size, seed=8).square()

    def passed() -> tuple[Tensor, ...]:
        beliefs = Beliefs(0.4 * normal(members, size), scale.square().expand(members, -1) * 1.2)
        noise = torch.full((members, case.get("groups", 1), 2), 6.0, dtype=torch.float64)
        noise = torch.tensor([0.2], dtype=torch.float64) if case.get("known") else noise
        sites, factor = torch.zeros(members, 4, size).double(), torch.full((members, 2), 6.0).double()
        sites[:, 0] = 1 / 1.2
        seen = []
        for _ in range(2):
            seen.append(propagate(layers, beliefs, noise, rows=Rows(inputs, targets, counts)))
            refresh(beliefs, sites, factor, loc_D=loc, scale_D=scale)
        return *beliefs, noise, sites, factor, torch.stack(seen)

    actual = passed()
    monkeypatch.setattr(propagation, "_library", lambda: None)
    for one, other in zip(actual, passed(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)
    assert all(torch.isfinite(t).all() for t in actual)
    assert (actual[1] > 0).all()
    assert (actual[5][..., 2] == (rows if counts is None else (counts > 0).sum(1).double())).all()


@pytest.mark.parametrize("kernel", [True, False])
def test_updates_without_a_positive_variance_are_undone(kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of no finite log Z changes nothing, and is counted."""
    if not kernel:
        monkeypatch.setattr(propagation, "_library", lambda: None)
    layers, size = network(2, 3, 1)
    start = Beliefs(normal(1, size), torch.ones(1, size, dtype=torch.float64))
    actual = Beliefs(*(t.clone() for t in start))
    noise = torch.full((1, 1, 2), 6.0, dtype=torch.float64)
    bad = torch.full((1, 1, 2), 1e200, dtype=torch.float64)
    seen = propagate(layers, actual, noise, rows=Rows(bad, torch.zeros(1, 1, 1).double()))
    for one, other in zip(actual, start, strict=True):
        assert torch.equal(one, other)
    assert seen[0, 1] == size + 1
    assert not torch.isfinite(seen[0, 0])
    assert (noise == 6).all()


@pytest.mark.parametrize("kernel", [True, False])
def test_a_refreshed_factor_is_that_of_expectation_propagation(kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one weight: the product of cavity and factor has the moments of N(u; cavity) with the prior's variance."""
    if not kernel:
        monkeypatch.setattr(propagation, "_library", lambda: None)
    loc, scale, cavity_mean, cavity_variance = 0.5, 2.0, 1.7, 0.8
    precision = 1 / cavity_variance + 1 / (scale**2 * 1.2)
    mean = (cavity_mean / cavity_variance + loc / (scale**2 * 1.2)) / precision
    beliefs = Beliefs(*(torch.tensor([[x]], dtype=torch.float64) for x in (mean, 1 / precision)))
    sites, factor = torch.zeros(1, 4, 1).double(), torch.full((1, 2), 6.0).double()
    sites[:, 0] = 1 / 1.2
    own = {n: torch.tensor([x], dtype=torch.float64) for n, x in (("loc_D", loc), ("scale_D", scale))}
    refresh(beliefs, sites, factor, **own)
    wide = scale**2 * 6 / 5  # of the Gamma before: its factor was worth nothing
    both = 1 / (1 / cavity_variance + 1 / wide)
    assert float(beliefs.variance_MD) == pytest.approx(both, rel=1e-12)
    assert float(beliefs.mean_MD) == pytest.approx(both * (cavity_mean / cavity_variance + loc / wide), rel=1e-12)
    in_units = (cavity_mean - loc) / scale, cavity_variance / scale**2
    expected = tilted(6.0, 6.0, residual=in_units[0], variance=in_units[1])
    assert factor[0].tolist() == pytest.approx(expected, rel=1e-12)
    # the factor is replaced, not added to: the cavity is the same the next time
    assert (factor[0] - sites[0, 2:, 0]).tolist() == pytest.approx([6.0, 6.0], rel=1e-12)
    again = Beliefs(*(t.clone() for t in beliefs))
    refresh(again, sites.clone(), factor.clone(), **own)
    torch.testing.assert_close(again.variance_MD, beliefs.variance_MD, rtol=1e-12, atol=0)
