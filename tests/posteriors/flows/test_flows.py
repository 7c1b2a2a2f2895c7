"""Normalising flows as posteriors: densities against quadrature and autograd, in float64; files; what is refused."""

from __future__ import annotations

import importlib.util
import math
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import torchbayes as tb
from tests.laws.cases import assert_same_tensors, normal
from torchbayes.posteriors.files import read_tensors, write_tensors
from torchbayes.posteriors.flows import neural
from torchbayes.posteriors.flows.multipliers import Coupling
from torchbayes.posteriors.flows.neural import Neural
from torchbayes.posteriors.flows.posterior import Transform, flow_of
from torchbayes.posteriors.flows.simple import Planar, Radial, bounded

needs_zuko = pytest.mark.skipif(find_spec("zuko") is None, reason="zuko is not installed")
ALONE: list[Any] = ["planar", "radial", pytest.param("spline", marks=needs_zuko)]  # one weight is enough
KINDS: list[Any] = [*ALONE, *(pytest.param(kind, marks=needs_zuko) for kind in ("realnvp", "iaf"))]
SETTINGS: dict[str, Any] = {"layers": 3, "hidden": 6, "bins": 5}


def model_of(size: int, dtype: torch.dtype = torch.float64) -> tb.Model:
    return tb.Model(nn.Linear(size, 1, bias=False).to(dtype), tb.likelihoods.Gaussian(1.0))


def posterior_of(
    kind: Transform, size: int, members: int = 1, *, bend: float = 0.7, dtype: torch.dtype = torch.float64
) -> tb.FlowPosterior:
    """A flow with parameters at random, far from the identity."""
    flow = flow_of(kind, size, **SETTINGS)
    start = flow.start(normal(members, flow.layout.size, seed=3))
    flow_MP = start + bend * normal(members, flow.layout.size, seed=4)
    mean_MD, scale_MD = normal(members, size, seed=1), 0.4 + normal(members, size, seed=2).square()
    parts = (part.to(dtype) for part in (mean_MD, scale_MD, flow_MP))
    return tb.FlowPosterior(model_of(size, dtype), *parts, transform=kind, **SETTINGS)


def grid(size: int, reach: float, count: int) -> tuple[Tensor, float]:
    """Points of a grid, (count^size, size), and the volume of one."""
    axis = torch.linspace(-reach, reach, count, dtype=torch.float64)
    return torch.cartesian_prod(*[axis] * size).view(-1, size), float(axis[1] - axis[0]) ** size


# --- densities


@pytest.mark.parametrize(
    ("kind", "members"),
    [("planar", 2), ("radial", 1), pytest.param("spline", 1, marks=needs_zuko)],
)
def test_the_density_over_one_weight_integrates_to_one(kind: Transform, members: int) -> None:
    points, step = grid(1, 60.0, 60_001 if kind == "spline" else 12_001)  # whose density has kinks
    assert float(posterior_of(kind, 1, members).log_prob(points).exp().sum()) * step == pytest.approx(1, abs=2e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_density_over_two_weights_integrates_to_one(kind: Transform) -> None:
    points, step = grid(2, 7.0, 281 if kind == "spline" else 161)  # whose density has kinks
    mass = posterior_of(kind, 2, bend=0.3).log_prob(points).exp() * step
    assert float(mass.sum()) == pytest.approx(1, abs=3e-3)
    assert float(mass.max()) < 0.02  # a grid that is finer than the density


@pytest.mark.parametrize("kind", KINDS)
def test_draws_have_that_density(kind: Transform) -> None:
    """Means and squares of draws are those of the density on a grid, within 4.5 standard errors."""
    posterior = posterior_of(kind, 2, bend=0.3)
    points, step = grid(2, 7.0, 187)
    mass = posterior.log_prob(points).exp() * step
    drawn = posterior.sample(10_000, seed=5)
    for power in (1, 2):
        error = drawn.pow(power).std(0) / math.sqrt(len(drawn))
        expected = (mass.unsqueeze(-1) * points.pow(power)).sum(0)
        assert ((drawn.pow(power).mean(0) - expected).abs() < 4.5 * error + 0.02).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_determinant_is_that_of_the_jacobian(kind: Transform) -> None:
    flow = flow_of(kind, 5, **SETTINGS)
    parameters = flow.start(normal(2, flow.layout.size)) + 0.7 * normal(2, flow.layout.size, seed=1)
    base_MSD = 1.5 * normal(2, 2, 5, seed=2)
    _, found_MS = flow.forward(parameters, base_MSD)
    for m in range(2):
        for s in range(2):

            def one(point: Tensor, m: int = m) -> Tensor:
                return flow.forward(parameters[m : m + 1], point[None, None])[0][0, 0]

            jacobian: Any = torch.autograd.functional.jacobian(one, base_MSD[m, s])
            sign, expected = torch.linalg.slogdet(jacobian)
            assert float(sign) == 1
            assert float(found_MS[m, s]) == pytest.approx(float(expected), abs=1e-11)
            if kind == "iaf":
                assert float(jacobian.diagonal().log().sum()) != pytest.approx(float(expected), abs=1e-3)


@needs_zuko
def test_one_inverse_autoregressive_map_is_triangular() -> None:
    flow = Neural(4, 1, "iaf", 8, 5)
    parameters = flow.start(normal(1, flow.layout.size)) + normal(1, flow.layout.size, seed=1)
    jacobian: Any = torch.autograd.functional.jacobian(
        lambda z: flow.forward(parameters, z[None, None])[0][0, 0], normal(4, seed=2)
    )
    torch.testing.assert_close(jacobian.triu(1), torch.zeros(4, 4, dtype=torch.float64), rtol=0, atol=0)
    assert float(jacobian.tril(-1).abs().sum()) > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_the_inverse_undoes_the_map(kind: Transform) -> None:
    flow = flow_of(kind, 6, **SETTINGS)
    parameters = flow.start(normal(3, flow.layout.size)) + normal(3, flow.layout.size, seed=1)
    base_MSD = 3 * normal(3, 50, 6, seed=2)
    points_MSD, log_det_MS = flow.forward(parameters, base_MSD)
    found_MSD, same_MS = flow.inverse(parameters, points_MSD)
    torch.testing.assert_close(found_MSD, base_MSD, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(same_MS, log_det_MS, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_flow_begins_as_the_identity(kind: Transform) -> None:
    flow = flow_of(kind, 4, **SETTINGS)
    base_MSD = 2 * normal(2, 9, 4)
    points_MSD, log_det_MS = flow.forward(flow.start(normal(2, flow.layout.size)), base_MSD)
    torch.testing.assert_close(points_MSD, base_MSD, rtol=0, atol=1e-13)
    torch.testing.assert_close(log_det_MS, torch.zeros(2, 9, dtype=torch.float64), rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whatever_the_parameters_simple_maps_are_invertible(dtype: torch.dtype) -> None:
    """uᵀv of −1000 is far from what a planar map could have as it is; β̂ of −1000 likewise."""
    assert float(bounded(torch.zeros((), dtype=torch.float64))) == pytest.approx(0, abs=1e-15)
    assert float(bounded(torch.tensor(-1e4, dtype=dtype))) == pytest.approx(-0.999, abs=1e-6)
    z = torch.linspace(-8, 8, 801, dtype=dtype).view(1, -1, 1)
    planar = Planar(1, 1)
    steep = planar.layout.join({"u": -200 * torch.ones(1, 1, 1), "v": 5 * torch.ones(1, 1, 1), "b": torch.zeros(1, 1)})
    radial = Radial(1, 1)
    pulled = radial.layout.join({
        "centre": torch.zeros(1, 1, 1), "log_alpha": torch.zeros(1, 1), "beta": -1000 * torch.ones(1, 1)
    })  # fmt: skip
    for flow, parameters in ((planar, steep), (radial, pulled)):
        points, log_det = flow.forward(parameters.to(dtype), z)
        assert bool((points[0].diff(dim=0) > 0).all())
        assert bool(torch.isfinite(log_det).all())


def test_the_slope_of_a_radial_map_at_its_centre_is_finite() -> None:
    flow = Radial(3, 1)
    parameters = flow.layout.join({
        "centre": torch.zeros(1, 1, 3), "log_alpha": torch.zeros(1, 1), "beta": torch.ones(1, 1)
    }).requires_grad_()  # fmt: skip
    points, log_det = flow.forward(parameters, torch.zeros(1, 1, 3))
    (slope,) = torch.autograd.grad(points.sum() + log_det.sum(), parameters)
    assert bool(torch.isfinite(slope).all())
    assert float(points.detach().abs().max()) == pytest.approx(0, abs=0)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_couplings_of_multipliers_have_the_determinant_of_their_jacobian(size: int) -> None:
    flow = Coupling(size, 3, 4)
    parameters = flow.start(normal(1, flow.layout.size)) + 0.6 * normal(1, flow.layout.size, seed=1)
    parts, z = flow.layout.split(parameters), normal(size, seed=2)
    _, actual = flow.forward(parts, z[None, None])
    jacobian: Any = torch.autograd.functional.jacobian(lambda z: flow.forward(parts, z[None, None])[0][0, 0], z)
    assert float(actual) == pytest.approx(float(torch.linalg.slogdet(jacobian).logabsdet), abs=1e-12)
    assert flow.moves.sum() == sum((i + step + 1) % 2 for i in range(size) for step in range(3))


# --- posteriors


@pytest.mark.parametrize("kind", KINDS)
def test_the_density_of_draws_is_that_of_their_noise(kind: Transform) -> None:
    """log q of a draw of the only member is log N(ε) less all logarithms of slopes on its way."""
    posterior = posterior_of(kind, 4)
    weights = posterior.sample(20, seed=2)
    base_MSD, _ = posterior.flow.inverse(posterior.flow_MP, ((weights - posterior.mean_MD) / posterior.scale_MD)[None])
    _, log_det_MS = posterior.flow.forward(posterior.flow_MP, base_MSD)
    expected = torch.distributions.Normal(0.0, 1.0).log_prob(base_MSD[0]).sum(-1) - log_det_MS[0]
    torch.testing.assert_close(posterior.log_prob(weights), expected - posterior.scale_MD.log().sum())
    shaped = posterior.log_prob(weights.view(4, 5, 4))
    torch.testing.assert_close(shaped.flatten(), posterior.log_prob(weights))


@pytest.mark.parametrize("kind", KINDS)
def test_the_density_of_a_mixture_is_the_mean_of_densities(kind: Transform) -> None:
    both = posterior_of(kind, 3, members=2)
    parts = {"mean_MD": both.mean_MD, "scale_MD": both.scale_MD, "flow_MP": both.flow_MP}
    each = [
        tb.FlowPosterior(both.model, **{n: p[m : m + 1] for n, p in parts.items()}, transform=kind, **SETTINGS)
        for m in range(2)
    ]
    weights = both.sample(10, seed=1)
    expected = torch.stack([one.log_prob(weights) for one in each]).logsumexp(0) - math.log(2)
    torch.testing.assert_close(both.log_prob(weights), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_densities_of_float32_draws_are_right(kind: Transform) -> None:
    narrow, wide = posterior_of(kind, 3, dtype=torch.float32), posterior_of(kind, 3)
    weights = narrow.sample(50, seed=3)
    assert narrow.log_prob(weights).dtype == torch.float64
    torch.testing.assert_close(narrow.log_prob(weights), wide.log_prob(weights.double()), rtol=1e-3, atol=1e-3)


def test_no_density_is_given_for_other_than_weights() -> None:
    with pytest.raises(ValueError, match="`weights` must have 3 elements on its last axis"):
        posterior_of("planar", 3).log_prob(torch.zeros(5, 4))


@pytest.mark.parametrize("kind", KINDS)
def test_files_hold_plain_tensors_by_name(kind: Transform, tmp_path: Path) -> None:
    posterior = posterior_of(kind, 3, members=2)
    path = posterior.save(tmp_path / "q.safetensors")
    held = load_file(path)
    assert held.keys() == {"mean_MD", "scale_MD", *(f"flow.{name}" for name in posterior.flow.layout.names)}
    assert all(len(tensor) == 2 for tensor in held.values())
    loaded = tb.load(path, posterior.model)
    assert isinstance(loaded, tb.FlowPosterior)
    assert_same_tensors(loaded.tensors(), posterior.tensors())
    assert torch.equal(loaded.log_prob(held["mean_MD"]), posterior.log_prob(held["mean_MD"]))


@pytest.mark.parametrize(
    ("settings", "tensors", "said"),
    [
        ({"transform": "glow"}, {}, "holds a flow 'glow'; known are planar"),
        ({"transform": "radial"}, {}, "parameters are not those of its flow: `centre` is missing"),
        ({"layers": 2}, {}, r"`u` has shape \(3, 4\), expected \(2, 4\)"),
        ({"layers": None}, {}, "is damaged"),
        ({}, {"flow.b": None}, "`b` is missing"),
        ({}, {"flow.more": torch.zeros(2, 3)}, "`more` is not expected"),
        ({}, {"scale_MD": -torch.ones(2, 4)}, "`scale_MD` must be positive; got -1"),
        ({}, {"scale_MD": None}, "is damaged"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    settings: dict[str, Any], tensors: dict[str, Any], said: str, tmp_path: Path
) -> None:
    posterior = posterior_of("planar", 4, members=2)
    held, header = read_tensors(posterior.save(tmp_path / "q.safetensors"))
    changed = {name: tensor for name, tensor in {**held, **tensors}.items() if tensor is not None}
    header = {n: value for n, value in header.items() if n != "format"}
    header["settings"] = {n: v for n, v in {**header["settings"], **settings}.items() if v is not None}
    path = write_tensors(tmp_path / "other.safetensors", changed, header)
    with pytest.raises(ValueError, match=said):
        tb.load(path, posterior.model)


# --- what there is not


@needs_zuko
@pytest.mark.parametrize("kind", ["realnvp", "iaf"])
def test_one_weight_has_no_other_half(kind: Transform) -> None:
    with pytest.raises(ValueError, match=r"and the model has one random weight\. Use 'spline'"):
        flow_of(kind, 1, **SETTINGS)


@needs_zuko
def test_masks_of_too_many_pairs_are_refused_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neural, "free_memory", lambda: 2e9)
    with pytest.raises(ValueError, match=r"every pair of the 100,000 random weights.*use 'realnvp', which has none"):
        flow_of("iaf", 100_000, **SETTINGS)


@pytest.mark.parametrize("kind", ["realnvp", "iaf", "spline"])
def test_a_missing_package_is_named_with_its_extra(kind: Transform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for call in (lambda: tb.NormalizingFlow(kind), lambda: flow_of(kind, 3, **SETTINGS)):
        with pytest.raises(ValueError, match=r"zuko is not installed; got .*pip install torchbayes.flows."):
            call()
    assert tb.NormalizingFlow("radial").layers == 8


@needs_zuko
def test_making_networks_leaves_random_states_alone() -> None:
    neural._built.cache_clear()
    before = torch.get_rng_state()
    flow = flow_of("spline", 3, **SETTINGS)
    assert torch.equal(before, torch.get_rng_state())
    parameters = [*neural._built("spline", 3, 3, 6, 5, threading.get_ident()).parameters()]
    assert all(parameter.is_meta for parameter in parameters)
    assert flow.layout.size == sum(parameter.numel() for parameter in parameters)


def test_a_seed_is_a_law_of_draws() -> None:
    posterior = posterior_of("planar", 3, members=2)
    assert torch.equal(posterior.sample(8, seed=1), posterior.sample(8, seed=1))
    assert not torch.equal(posterior.sample(8, seed=1), posterior.sample(8, seed=2))
