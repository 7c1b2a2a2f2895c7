"""Planes and loss surfaces against exact losses, and their pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.laws.cases import model_of, rows_of
from tests.oracles import assert_close, normal
from torchbayes import geometry
from torchbayes.randomness.seeds import Purpose, generator
from torchbayes.report import figures

N = 30
INPUTS = normal(N, 3, seed=1)
TARGETS = INPUTS @ normal(3, 1, seed=2) + 0.3 * normal(N, 1, seed=3)


def linear() -> tb.Model:
    return tb.Model(nn.Linear(3, 1).double(), tb.likelihoods.Gaussian(0.3), tb.priors.Normal(1.0))


def exact(weights_D: Tensor) -> Tensor:
    """Mean negative log likelihood of the linear model."""
    mean = INPUTS @ weights_D[:3, None] + weights_D[3]
    return -torch.distributions.Normal(mean, 0.3).log_prob(TARGETS).mean()


def test_a_plane_meets_the_networks_it_is_laid_through():
    model, weights_3D = linear(), normal(3, 4, seed=4)
    plane = geometry.Plane.through(model, weights_3D)
    assert_close(plane.axes_2D @ plane.axes_2D.T, torch.eye(2).double(), atol=1e-12)
    for mark, weights_D in zip(plane.marks_K2.tolist(), weights_3D, strict=True):
        assert_close(plane.at(*mark), weights_D, rtol=1e-9, atol=1e-11)
    assert_close(
        plane.marks_K2[1], torch.stack([(weights_3D[1] - weights_3D[0]).norm(), torch.zeros(()).double()]), atol=1e-12
    )


def test_a_surface_is_the_loss_at_every_point():
    model = linear()
    plane = geometry.Plane.through(model, normal(3, 4, seed=4))
    actual = geometry.surface(model, (INPUTS, TARGETS), plane, points=5, chunk_size=7)
    for row, y in enumerate(actual.y_Q.tolist()):
        for column, x in enumerate(actual.x_P.tolist()):
            weights_D = plane.at(x, y)
            assert_close(actual.nll_QP[row, column], exact(weights_D), rtol=1e-10)
            rmse = (INPUTS @ weights_D[:3, None] + weights_D[3] - TARGETS).square().mean().sqrt()
            assert actual.error_QP is not None
            assert_close(actual.error_QP[row, column], rmse, rtol=1e-10)
    assert actual.kind == "rmse"


def test_any_measure_and_limits_of_ones_own():
    model, rows = model_of(), rows_of()
    plane = geometry.Plane.random(model, model.network.weights(), seed=3)
    limits = ((-0.5, 0.5), (-0.25, 0.75))
    ece = lambda network: tb.evaluate(network, rows).metrics["ece"]  # noqa: E731
    actual = geometry.surface(model, rows, plane, points=3, limits=limits, measure=ece)
    assert actual.own_QP is not None
    point = tb.Point(model, plane.at(0.0, 0.25)[None])
    assert_close(actual.own_QP[1, 1], torch.tensor(ece(point), dtype=torch.float64), rtol=1e-9)
    nll = torch.tensor(tb.evaluate(point, rows).metrics["nll"], dtype=torch.float64)
    assert_close(actual.nll_QP[1, 1], nll, rtol=1e-9)
    assert actual.x_P.tolist() == [-0.5, 0.0, 0.5]
    assert actual.y_Q.tolist() == [-0.25, 0.25, 0.75]


def scaled(factor: float) -> nn.Module:
    """ReLU layers without biases, of which one is scaled up and the next one down."""
    first, second = nn.Linear(3, 6, bias=False).double(), nn.Linear(6, 1, bias=False).double()
    with torch.no_grad():
        first.weight.copy_(factor * normal(6, 3, seed=1))
        second.weight.copy_(normal(1, 6, seed=2) / factor)
    return nn.Sequential(first, nn.ReLU(), second)


@pytest.mark.parametrize(("shape", "same"), [("filters", True), ("sphere", False)])
def test_directions_by_filters_do_not_see_the_scale_of_layers(shape: Any, same: bool):
    """Li et al. (2018): the same draws give the same surface of the same function."""
    surfaces = []
    for factor in (1.0, 5.0):
        model = tb.Model(scaled(factor), tb.likelihoods.Gaussian(1.0), tb.priors.Normal(1.0))
        plane = geometry.Plane.random(model, model.network.weights(), seed=4, shape=shape)
        surfaces.append(geometry.surface(model, (INPUTS, TARGETS), plane, points=4).nll_QP)
    assert torch.allclose(*surfaces, rtol=1e-9) == same


def test_directions_by_filters_have_the_norms_of_the_network():
    model = model_of("conv_batch_norm")
    plane = geometry.Plane.random(model, model.network.weights(), seed=1)
    own = model.layout.split(plane.origin_D)
    for name, part_2 in model.layout.split(plane.axes_2D).items():
        wanted = own[name].flatten(1).norm(dim=1) if own[name].ndim > 1 else torch.zeros(())
        found_2 = part_2.flatten(2).norm(dim=2) if own[name].ndim > 1 else part_2.abs().sum(-1, keepdim=True)
        assert_close(found_2, wanted.expand_as(found_2).to(found_2), rtol=1e-9, atol=1e-12)


def test_filters_are_those_of_output_channels_and_norms_have_none():
    layers = (nn.ConvTranspose1d(4, 6, 3, groups=2, bias=False), nn.LayerNorm([6, 5]), nn.Embedding(2, 2))
    model = tb.Model(nn.Sequential(*layers).double(), tb.likelihoods.Gaussian(1.0), tb.priors.Normal(1.0))
    plane = geometry.Plane.random(model, normal(model.layout.size, seed=3), seed=1)
    own, actual = model.layout.split(plane.origin_D), model.layout.split(plane.axes_2D)
    by_output = own["0.weight"].view(2, 2, 3, 3)  # group, input, output, position
    assert_close(
        actual["0.weight"].view(2, *by_output.shape).norm(dim=(2, 4)), by_output.norm(dim=(1, 3)).expand(2, 2, 3)
    )
    assert_close(actual["2.weight"].norm(dim=1), own["2.weight"].norm(dim=0).expand(2, 2))
    assert not torch.cat([actual["1.weight"], actual["1.bias"]]).any()


def test_batch_norm_is_recalibrated_at_every_point():
    name = "conv_batch_norm"
    model, rows = model_of(name), rows_of(name)
    plane = geometry.Plane.through(model, 0.4 * normal(3, model.layout.size, seed=6))
    actual = geometry.surface(model, rows, plane, points=2)
    for row, column in ((0, 1), (1, 0)):
        weights_D = plane.at(float(actual.x_P[column]), float(actual.y_Q[row]))
        point = tb.Point(model, weights_D[None]).calibrated(lambda: [rows[0]])
        assert_close(
            actual.nll_QP[row, column],
            torch.tensor(tb.evaluate(point, rows).metrics["nll"], dtype=torch.float64),
            rtol=1e-6,
        )


@pytest.mark.filterwarnings("ignore::torchbayes.posteriors.problems.ProblemWarning")
def test_a_curve_lies_in_the_plane_of_its_points_and_its_loss_is_on_the_surface():
    model, rows = linear(), (INPUTS, TARGETS)
    curve: Any = tb.fit(model, rows, tb.Curve(epochs=5), start=normal(2, 4, seed=8), callbacks=())
    plane = geometry.Plane.through(model, curve.points_MPD[0])
    for t in (0.0, 0.4, 1.0):
        across, up = ((curve.weights(t)[0] - plane.origin_D) @ plane.axes_2D.T).tolist()
        assert_close(plane.at(across, up), curve.weights(t)[0], rtol=1e-9, atol=1e-10)


NO_PLANES: dict[str, tuple[Tensor, str]] = {
    "two": (normal(2, 4), "three"),
    "on a line": (torch.arange(3.0).double()[:, None] * torch.ones(4), "line"),
    "nan": (torch.full((3, 4), torch.nan), "finite"),
}


@pytest.mark.parametrize(("networks", "said"), NO_PLANES.values(), ids=NO_PLANES.keys())
def test_planes_that_are_none_are_refused(networks: Tensor, said: str):
    with pytest.raises(ValueError, match=said):
        geometry.Plane.through(linear(), networks)


@pytest.mark.parametrize("limits", [3, ((1, 0), (0, 1)), ((0, float("nan")), (0, 1)), ((0, 1),), "ab"])
def test_limits_that_are_no_intervals_are_refused(limits: Any):
    model = linear()
    plane = geometry.Plane.through(model, normal(3, 4))
    with pytest.raises(ValueError, match="`limits`"):
        geometry.surface(model, (INPUTS, TARGETS), plane, points=2, limits=limits)


def test_a_plane_of_another_network_is_refused():
    plane = geometry.Plane.through(linear(), normal(3, 4))
    with pytest.raises(ValueError, match="same model"):
        geometry.surface(model_of(), rows_of(), plane, points=2)


@pytest.mark.parametrize("kind", ["contour", "3d"])
def test_pictures_hold_all_panels_and_survive_values_that_are_not_finite(kind: Any):
    x, y = np.linspace(-1, 1, 9), np.linspace(0, 2, 7)
    values = np.add.outer(y**2, x**2)
    values[0, 0], values[3, 3] = np.inf, np.nan
    figure = figures.loss_surfaces(
        {"one": values, "two": 2 * values},
        x,
        y,
        marks={"a": (0, 0), "b": (0.5, 1)},
        curve=[[0, 0], [0.5, 1]],
        kind=kind,
    )
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[:2] == ["one", "two"]
    figure.savefig("/dev/null", format="png")


def test_a_constant_surface_can_be_drawn():
    figures.loss_surfaces({"flat": np.ones((3, 3))}, np.arange(3.0), np.arange(3.0)).savefig("/dev/null", format="png")


def test_a_surface_without_a_finite_value_is_refused():
    with pytest.raises(ValueError, match="no finite value"):
        figures.loss_surfaces({"lost": np.full((3, 3), np.nan)}, np.arange(3.0), np.arange(3.0))


# --- rays ---


def test_rays_are_the_log_posterior_of_a_linear_model():
    """−½ Σ (y − f)²/σ² − ½ |w|², with the constants of both, over T: a parabola along each ray."""
    net, likelihood = nn.Linear(3, 1).double(), tb.likelihoods.Gaussian(0.3)
    model = tb.Model(net, likelihood, tb.priors.Normal(1.0), temperature=0.5)
    weights_D = normal(4, seed=4)
    actual = geometry.rays(model, (INPUTS, TARGETS), weights_D, directions=3, radius=2.0, points=5, seed=1)
    assert actual.radii_P.tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]
    precision_DD = torch.eye(4).double() + _design().T @ _design() / 0.3**2
    joint = -N * exact(weights_D) + torch.distributions.Normal(0.0, 1.0).log_prob(weights_D).sum()
    assert_close(actual.log_density_KP[:, 0], (joint / 0.5).expand(3), rtol=1e-10)
    assert_close(actual.log_likelihood_KP[:, 0], (-N * exact(weights_D)).expand(3), rtol=1e-10)
    unit_KD = normal_directions(3, 4, seed=1)
    second_K = torch.einsum("kd,de,ke->k", unit_KD, precision_DD, unit_KD)
    bent_K = actual.log_density_KP[:, 2] - 2 * actual.log_density_KP[:, 1] + actual.log_density_KP[:, 0]
    assert_close(bent_K, -second_K * 0.25 / 0.5, rtol=1e-8)


def _design() -> Tensor:
    return torch.cat([INPUTS, torch.ones(N, 1).double()], dim=1)


def normal_directions(count: int, size: int, *, seed: int) -> Tensor:
    """The directions of `rays` and `basin`."""
    drawn_KD = torch.randn(count, size, generator=generator(Purpose.BASIN, seed), dtype=torch.float64)
    return drawn_KD / drawn_KD.norm(dim=1, keepdim=True)


def test_rays_along_filters_and_at_the_weights_of_batch_norm():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    model = tb.Model(net, tb.likelihoods.Gaussian(0.3), tb.priors.Normal(1.0))
    weights_D = 1.1 * model.network.weights()
    actual = geometry.rays(model, (INPUTS, TARGETS), weights_D, directions=2, points=3, shape="filters")
    assert actual.radii_P[-1] == 1.0
    same = geometry.barrier(model, (INPUTS, TARGETS), weights_D, second=weights_D, points=2).nll[0]
    assert_close(actual.log_likelihood_KP[:, 0], torch.full((2,), -N * same).double(), rtol=1e-6)


def test_profiles_and_densities_are_drawn_as_they_are():
    radii, values = np.linspace(0, 1, 4), np.array([[0.0, -1, -4, -9], [0, -2, -8, np.nan], [0, -3, -12, -27]])
    figure = figures.ray_profiles({"MAP": values, "HMC": values - 5}, radii)
    assert [axes.get_title() for axes in figure.axes] == ["MAP", "HMC"]
    *thin, thick = figure.axes[0].lines
    assert len(thin) == 3
    np.testing.assert_array_equal(np.asarray(thick.get_ydata()), [0, -2, -8, -18])
    figure.savefig("/dev/null", format="png")
    grid, density = np.linspace(0, 4, 5), np.array([1.0, 0.0, 1e-3, 1e-9, 2.0])
    figure = figures.spectrum_density({"Hessian": density, "prior": density / 2}, grid)
    (axes,) = figure.axes
    assert axes.get_yscale() == "log"
    assert axes.get_ylim() == pytest.approx((2e-7, 6.0))
    drawn = np.ma.filled(np.ma.asarray(axes.lines[0].get_ydata(orig=True)), np.nan)
    np.testing.assert_array_equal(drawn, np.where(density == 0, np.nan, density))
    figure.savefig("/dev/null", format="png")


def test_the_progress_of_a_surface_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("torchbayes.driver.progress.FIRST", 0.0)
    plane = geometry.Plane.through(linear(), normal(3, 4, seed=4))
    geometry.surface(linear(), (INPUTS, TARGETS), plane, points=2, progress=False)
    assert not capsys.readouterr().err
    geometry.surface(linear(), (INPUTS, TARGETS), plane, points=2)
    assert "loss surface, 0:00:00: 1 of 4 points" in capsys.readouterr().err


def test_a_measure_that_is_no_number_is_refused():
    plane = geometry.Plane.through(linear(), normal(3, 4, seed=4))
    with pytest.raises(TypeError, match="must return a number for each network; it gave 'many'"):
        geometry.surface(linear(), (INPUTS, TARGETS), plane, points=2, measure=lambda _: "many")  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("shape", ["filters", "sphere"])
def test_a_plane_of_one_direction_is_refused(shape: Any):
    """One weight, and one filter of one weight beside a bias that stays."""
    model = tb.Model(nn.Linear(1, 1, bias=False).double(), tb.likelihoods.Gaussian(0.3))
    with pytest.raises(ValueError, match="a plane needs two directions; the 1 random weights"):
        geometry.Plane.random(model, model.network.weights(), shape=shape)
    biased = tb.Model(nn.Linear(1, 1).double(), tb.likelihoods.Gaussian(0.3))
    if shape == "filters":
        with pytest.raises(ValueError, match="a plane needs two directions"):
            geometry.Plane.random(biased, biased.network.weights())
    else:
        assert geometry.Plane.random(biased, biased.network.weights(), shape=shape).axes_2D.shape == (2, 2)
