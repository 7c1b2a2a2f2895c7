"""Simplexes of low loss: volumes in closed form, a landscape whose flat directions are known, the laws of methods."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.covering import with_studies
from tests.laws.cases import NETWORKS, assert_same_tensors, everything, model_of, normal, rows_of
from tests.oracles import assert_close
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.health.curves import worse_inside
from torchbayes.health.kept import changes
from torchbayes.methods.curves.simplex import Simplex
from torchbayes.methods.noise import Purpose, uniforms
from torchbayes.model.sources.sources import as_source
from torchbayes.posteriors.curves.simplex import barycentric, in_complex, spread_evenly
from torchbayes.posteriors.curves.volumes import add_slopes, altitudes, grams, inverses, log_volumes
from torchbayes.randomness.seeds import member_seeds

SMALL: dict[str, Any] = {"epochs": 5, "batch_size": 6, "plan": "loop", "vertices": 2}


def starts(name: str, count: int) -> Tensor:
    model = model_of(name)
    return 0.2 * normal(count, model.layout.size, seed=9, dtype=model.network.dtype)


def fitted(name: str = "mlp", count: int = 2, **settings: Any) -> tb.SimplexPosterior:
    options = {key: settings.pop(key) for key in ("seed", "directory", "resume", "callbacks") if key in settings}
    method = Simplex(**{**SMALL, **settings})
    options = {"seed": 7, "callbacks": (), **options}
    start = options.pop("start", starts(name, count))
    return tb.fit(model_of(name), rows_of(name), method, start=start, **options)  # type: ignore[return-value]


def volume_of(vertices: Tensor) -> Tensor:
    """log V of one simplex, (R + 1, D), the apex first."""
    return log_volumes(grams(vertices[None, :1], vertices[None, 1:]))[0, 0]


# --- volumes ---


@pytest.mark.parametrize("size", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("side", [1e-6, 1.0, 1e4])
def test_the_volume_of_a_regular_simplex(size: int, side: float):
    corners = side / math.sqrt(2) * torch.eye(size + 1, dtype=torch.float64)
    expected = 0.5 * math.log(size + 1) - math.lgamma(size + 1) - size / 2 * math.log(2) + size * math.log(side)
    assert float(volume_of(corners)) == pytest.approx(expected, rel=1e-11, abs=1e-11)


def test_the_volume_is_the_determinant_of_cayley_and_menger_and_does_not_depend_on_the_apex():
    corners, size = normal(4, 11, seed=1), 3
    squares = torch.cdist(corners, corners).square()
    bordered = torch.ones(5, 5, dtype=torch.float64)
    bordered[0, 0], bordered[1:, 1:] = 0.0, squares
    factor = (-1) ** (size + 1) * 2**size * math.factorial(size) ** 2
    expected = 0.5 * torch.log(torch.det(bordered) / factor)
    for apex in range(4):
        assert_close(volume_of(corners.roll(apex, 0)), expected, rtol=1e-12)


def test_a_small_simplex_of_large_float32_weights_keeps_its_digits():
    centre, small = 1000 * normal(1, 50, seed=1), normal(4, 50, seed=2)
    rounded = (centre + small).float()
    exact = volume_of(rounded.double())
    assert_close(volume_of(rounded), exact, rtol=1e-12)


def test_a_flat_simplex_has_no_volume_and_altitudes_are_distances():
    flat = torch.tensor([[0.0, 0, 0], [1, 1, 0], [2, 2, 0]]).double()
    gram = grams(flat[None, :1], flat[None, 1:])
    assert float(log_volumes(gram)) == -math.inf
    assert not altitudes(gram).any()
    assert log_volumes(torch.full((1, 1, 2, 2), math.nan).double()).isnan().all()
    right = torch.tensor([[0.0, 0, 0], [3, 0, 0], [0, 4, 0]]).double()
    assert_close(
        altitudes(grams(right[None, :1], right[None, 1:]))[0, 0], torch.tensor([2.4, 3.0, 4.0], dtype=torch.float64)
    )


@pytest.mark.parametrize("modes", [1, 3])
def test_the_slope_of_the_log_volume_is_that_of_autograd(modes: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torchbayes.posteriors.curves.volumes._BLOCK", 30)
    apexes, others = normal(2, modes, 9, seed=1), normal(2, 3, 9, seed=2).requires_grad_()
    edges = others.unsqueeze(1) - apexes.unsqueeze(2)
    total = 0.5 * torch.logdet(edges @ edges.mT).sum()
    expected = torch.autograd.grad(total, others)[0]
    actual, frozen = torch.ones_like(expected), others.detach()
    gram = grams(apexes, frozen)
    assert_close(gram, (edges @ edges.mT).detach(), rtol=1e-12)
    add_slopes(actual, apexes, frozen, inverse_MKRR=inverses(gram), scale=-2.0)
    assert_close(actual, 1 - 2 * expected, rtol=1e-9)


# --- draws ---


def test_gaps_of_uniform_numbers_are_uniform_over_the_simplex():
    """Under Dirichlet(1): E b = 1/n, E b_i b_j = (1 + δ_ij)/(n (n + 1))."""
    uniform = torch.rand(200_000, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    shares = barycentric(uniform)
    assert (shares >= 0).all()
    assert_close(shares.sum(1), torch.ones(200_000).double(), rtol=1e-12)
    assert_close(shares.mean(0), torch.full((4,), 0.25).double(), atol=2e-3)
    expected = (1 + torch.eye(4)).double() / 20
    assert_close(shares.T @ shares / 200_000, expected, atol=2e-3)


@pytest.mark.parametrize("modes", [1, 2])
def test_draws_are_spread_evenly_and_each_simplex_has_as_many(modes: int):
    """Weights that are the coordinates themselves: second moments of 600 draws, closer than chance."""
    model = tb.Model(nn.Linear(modes + 3, 1, bias=False).double(), tb.likelihoods.Gaussian(1.0))
    posterior = tb.SimplexPosterior(model, torch.eye(modes + 3).double()[None], modes)
    shares = posterior.sample(600, seed=4)
    own = shares[:, :modes]
    assert ((own > 0).sum(1) == 1).all()
    assert_close((own > 0).double().mean(0), torch.full((modes,), 1 / modes).double())
    inside = torch.cat([own.sum(1, keepdim=True), shares[:, modes:]], 1)
    expected = (1 + torch.eye(4)).double() / 20
    assert (inside.T @ inside / 600 - expected).abs().max() < 0.004  # by chance the largest is about 0.007
    firsts = torch.stack([posterior.sample(1, seed=seed)[0] for seed in range(600)])
    assert (firsts.mean(0)[modes:] - 0.25).abs().max() < 5 * (0.0375 / 600) ** 0.5
    assert ((firsts[:, :modes] > 0).double().mean(0) - 1 / modes).abs().max() < 0.11
    assert_close(posterior.sample(40, seed=4), shares[:40], rtol=0)


def test_a_simplex_of_two_vertices_is_a_segment():
    """Its draws are those of a straight curve, in steps of the golden section."""
    model = model_of()
    ends = normal(1, 2, model.layout.size, seed=1)
    actual, line = tb.SimplexPosterior(model, ends), tb.CurvePosterior(model, ends)
    assert_close(actual.weights([0.3, 0.7]), line.weights(0.7), rtol=1e-12)
    assert_close(actual.log_volumes()[0, 0], (ends[0, 1] - ends[0, 0]).norm().log(), rtol=1e-12)
    steps = spread_evenly(3, torch.zeros(1, dtype=torch.float64)).flatten()
    assert_close(steps, torch.arange(3).double() * (math.sqrt(5) - 1) / 2 % 1, rtol=1e-12)


# --- truth ---


def quadratic(curvature: list[float]) -> tuple[tb.Model, tuple[Tensor, Tensor]]:
    """A loss of ½ Σ h_i w_i², h > 0, in nats per observation: rows √(n h_i) e_i with targets of 0 and noise 1."""
    count = len(curvature)
    model = tb.Model(nn.Linear(count, 1, bias=False).double(), tb.likelihoods.Gaussian(1.0), tb.priors.Flat())
    inputs = torch.diag((count * torch.tensor(curvature).double()).sqrt())
    return model, (inputs, torch.zeros(count, 1).double())


def stepped(method: Simplex, model: tb.Model, rows: tuple[Tensor, Tensor], start: Tensor) -> Any:
    """The posterior after all steps, each on all rows, unjudged: judging takes far longer than so many complexes."""
    count = len(start) // method.modes
    density = tb.LogDensity(model, len(rows[0]), tb.Batch(*rows), training=True)
    state, batch = (
        method.init(density, start, {}, seeds=range(count), steps_per_epoch=1),
        tb.Batch(*(t.expand(count, *t.shape) for t in rows)),
    )
    while method.visit(state) is not None:
        state, _ = method.step(density, state, batch, donate=True)
    return method.posterior(density, state)


@pytest.mark.study  # a step is the gradient at the drawn point and of the volumes, below
def test_the_mean_loss_of_a_simplex_is_half_its_dimensions_times_the_weight_above_its_mode():
    """As log V grows by R for a simplex scaled by e, E L = λ R/2; E ½ wᵀHw in closed form by Dirichlet moments."""
    weight, size = 0.02, 2
    model, rows = quadratic([1.0, 1.0, 4.0, 9.0])
    method = Simplex(size, volume_weight=weight, epochs=400, optimizer=tb.SGD(0.2, momentum=0.0))
    actual = stepped(method, model, rows, torch.zeros(60, 4).double())
    moment = (1 + torch.eye(size + 1)).double() / ((size + 1) * (size + 2))
    each = actual.vertices_MPD * torch.tensor([1.0, 1.0, 4.0, 9.0]).double().sqrt()
    loss_M = 0.5 * (moment * (each @ each.mT)).sum((1, 2))
    assert float(loss_M.mean()) == pytest.approx(weight * size / 2, rel=0.05)
    # h = 1, 1 are the directions that cost least: V is largest there
    assert (actual.vertices_MPD[:, :, 2:].abs().amax((1, 2)) < 0.05).double().mean() > 0.9


def test_a_simplex_grows_in_flat_directions_alone():
    """Of six directions two have no curvature to speak of."""
    model, rows = quadratic([1e-6, 1e-6, 1.0, 1.0, 1.0, 1.0])
    method = Simplex(2, volume_weight=0.01, epochs=150, optimizer=tb.Adam(0.3))
    start = normal(1, 6, seed=2)
    start[:, 2:] = 0.0
    actual: Any = tb.fit(model, rows, method, start=start, callbacks=())
    assert not actual.problems
    flat, steep = actual.vertices_MPD[0, :, :2], actual.vertices_MPD[0, :, 2:]
    assert steep.abs().max() < 0.05
    assert (flat[1:] - flat[0]).norm(dim=1).min() > 2
    assert float(actual.log_volumes()) > 1.0


@pytest.mark.study  # a step is the gradient, by the next test, and chains have their best bend
def test_without_a_volume_a_star_of_two_segments_is_the_best_chain():
    """L = |w|²/2: the best bend of a chain between w₁ and w₂ is −¼ (w₁ + w₂)."""
    model = tb.Model(nn.Linear(2, 1, bias=False).double(), tb.likelihoods.Gaussian(1.0), tb.priors.Normal(1.0))
    rows = torch.zeros(1, 2).double(), torch.zeros(1, 1).double()
    first, last = torch.tensor([1.0, 2.0]).double(), torch.tensor([3.0, -1.0]).double()
    settings: dict[str, Any] = {"epochs": 350, "optimizer": tb.SGD(0.25, momentum=0.0), "volume_weight": 0.0}
    actual = stepped(Simplex(1, 2, **settings), model, rows, torch.stack([first, last]).repeat(60, 1))
    assert_close(actual.vertices_MPD[:, 2].mean(0), -0.25 * (first + last), atol=0.03)


@pytest.mark.parametrize("modes", [1, 2])
def test_a_step_is_the_gradient_at_the_drawn_point_and_of_the_volumes(modes: int):
    model, rows = model_of(), rows_of()
    density = tb.LogDensity(model, len(rows[0]), plan="loop", training=True)
    batch = tb.Batch(*(t.unsqueeze(0) for t in rows))
    settings: dict[str, Any] = {"optimizer": tb.SGD(0.1, momentum=0.0), "schedule": tb.Constant(), "epochs": 3}
    method = Simplex(2, modes, volume_weight=0.3, **settings)
    modes_KD = starts("mlp", modes)
    state = method.init(density, modes_KD, {}, seeds=(5,), steps_per_epoch=1)
    new, info = method.step(density, state, batch)
    moving_RD = state.trajectory.weights_MD.unflatten(1, (2, -1))[0].clone().requires_grad_()
    uniform = uniforms((5,), Purpose.SIMPLEX_POSITION, 0, count=3)
    shares = in_complex(barycentric(uniform[:, 1:]), (uniform[:, 0] * modes).long(), modes)[0]
    point_D = shares @ torch.cat([modes_KD, moving_RD])
    views = model.layout.split(point_D)
    hidden = nn.functional.linear(rows[0], views["0.weight"], views["0.bias"]).tanh()
    logits = nn.functional.linear(hidden, views["2.weight"], views["2.bias"])
    log_prior = torch.distributions.Normal(0.0, 1.0).log_prob(point_D).sum()
    edges = moving_RD - modes_KD.unsqueeze(1)
    log_volume = 0.5 * torch.logdet(edges @ edges.mT).mean() - math.log(2)
    loss = nn.functional.cross_entropy(logits, rows[1]) - log_prior / len(rows[0]) - 0.3 * log_volume
    gradient_RD = torch.autograd.grad(loss, moving_RD)[0]
    assert_close(info.loss_M[0], loss.detach(), rtol=1e-9)
    found_RD = new.trajectory.weights_MD.unflatten(1, (2, -1))[0]
    assert_close(found_RD, (moving_RD - 0.1 * gradient_RD).detach(), rtol=1e-9, atol=1e-12)


class Radius(nn.Module):
    """A network whose only output is |w|²: its solutions of target 1 are a circle."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2).double())

    def forward(self, inputs: Tensor) -> Tensor:
        return self.weight.square().sum() * inputs


def circle() -> tuple[tb.Model, tuple[Tensor, Tensor]]:
    model = tb.Model(Radius(), tb.likelihoods.Gaussian(0.5), tb.priors.Flat())
    inputs = normal(40, 1, seed=1)
    return model, (inputs, inputs.clone())


@pytest.mark.study  # a step is the gradient at the drawn point, above; a curve does it too
def test_a_shared_vertex_connects_solutions_on_a_circle():
    """Two segments that meet outside of it have a lower loss than the chord."""
    model, rows = circle()
    method = Simplex(1, 2, volume_weight=1e-4, epochs=200, optimizer=tb.Adam(0.06))
    actual: Any = tb.fit(model, rows, method, start=torch.eye(2).double(), callbacks=())
    error = (actual.sample(200).square().sum(-1) - 1).square()
    assert error.max() < 0.06
    assert not actual.problems


# --- laws ---


@pytest.mark.parametrize(("name", "modes"), with_studies([("conv_batch_norm", 2)], NETWORKS, (1, 2)))
def test_complexes_together_equal_complexes_alone(name: str, modes: int):
    settings = {"modes": modes, "plan": "auto" if name == "dropout" else "loop"}
    together = everything(fitted(name, 2 * modes, **settings))
    for m, seed in enumerate(member_seeds(7, 2)):
        rows = slice(modes * m, modes * m + modes)
        one = Simplex(**{**SMALL, "modes": modes})
        start = starts(name, 2 * modes)[rows]
        alone = tb.fit(model_of(name), rows_of(name), one, start=start, seed=seed, callbacks=())
        for key, tensor in everything(alone).items():
            assert_close(together[key][m], tensor[0], rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize(  # curves have batch norms
    "name", [*(pytest.param(n, marks=pytest.mark.study) for n in ("mlp", "conv_batch_norm")), "dropout"]
)
def test_an_interrupted_run_goes_on_exactly(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    expected = fitted(name)
    step, left = Simplex.step, iter([True] * 7)

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if not next(left, False):
            raise KeyboardInterrupt
        return step(*args, **kwargs)

    with monkeypatch.context() as inside:
        inside.setattr(Simplex, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fitted(name, directory=tmp_path)
    assert_same_tensors(everything(fitted(name, directory=tmp_path, resume=True)), everything(expected))


def test_a_step_does_not_change_its_state_unless_donated():
    name = "conv_batch_norm"
    model, rows = model_of(name), rows_of(name)
    density = tb.LogDensity(model, len(rows[0]), plan="loop", training=True)
    batch = tb.Batch(*(torch.stack([t, t]) for t in rows))
    method, buffers = Simplex(epochs=3), model.network.stacked_buffers(2)
    states = [method.init(density, starts(name, 2), buffers, seeds=(1, 2), steps_per_epoch=1) for _ in range(2)]
    before = states[0].trajectory.clone()
    kept, _ = method.step(density, states[0], batch)
    donated, _ = method.step(density, states[1], batch, donate=True)
    assert_close(states[0].trajectory.weights_MD, before.weights_MD, rtol=0)
    assert_close(kept.trajectory.weights_MD, donated.trajectory.weights_MD, rtol=0)


def test_the_modes_stay_and_batch_norm_is_recalibrated_inside():
    name = "conv_batch_norm"
    actual = fitted(name, 2, modes=2)
    assert_close(actual.vertices_MPD[0, :2], starts(name, 2), rtol=0)
    point = actual.at([0.2, 0.0, 0.5, 0.3])
    views = point.model.split(point.weights_MD[0])[0]
    network = point.model.network
    assert point.calibration is not None
    expected = network.recalibrate(views, point.calibration(), dict(network.buffers))
    drawn = point.functions(1)
    assert drawn.buffers_S is not None
    for key, buffer in expected.items():
        if not key.endswith("tracked"):
            assert_close(drawn.buffers_S[key][0].double(), buffer.double(), rtol=1e-5, atol=1e-7)


def test_every_member_of_an_ensemble_has_a_simplex_which_is_saved(tmp_path: Path):
    model, rows = model_of(), rows_of()
    ensemble: Any = tb.fit(model, rows, tb.MAP(4, epochs=5), callbacks=())
    actual: Any = tb.fit(model, rows, Simplex(2, epochs=5), start=ensemble, callbacks=(), directory=tmp_path)
    assert actual.members == 4
    assert_close(actual.at([1.0, 0.0, 0.0]).weights_MD, ensemble.weights_MD, rtol=0)
    again: Any = tb.load(tmp_path / "posterior.safetensors", model)
    assert_close(again.sample(8, seed=3), actual.sample(8, seed=3), rtol=0)
    assert torch.isfinite(tb.predict(actual, rows[0], draws=8).probs).all()
    paired: Any = tb.fit(model, rows, Simplex(2, 2, epochs=5), start=ensemble, callbacks=())
    assert paired.members == 2
    assert paired.log_volumes().shape == (2, 2)


def test_a_simplex_in_a_subspace_stays_in_it_and_spans_one():
    model, rows = model_of(), rows_of()
    space = tb.Subspace.random(model, model.network.weights(), 4, seed=1)
    actual = tb.fit(model, rows, Simplex(epochs=5), space=space, start=starts("mlp", 1), callbacks=())
    assert (actual.sample(4) - space.lift(space.coordinates(actual.sample(4)))).abs().max() < 1e-9
    spanned = tb.Subspace.of(fitted(count=1), rank=2)
    inside = fitted(count=1).sample(10)
    assert_close(spanned.lift(spanned.coordinates(inside)), inside, rtol=1e-9, atol=1e-10)


# --- problems and refusals ---


def test_a_simplex_without_its_loss_in_the_middle_is_not_said_to_be_one():
    """Through the origin of the circle the slope is 0 where it should be 1."""
    model, rows = circle()
    far = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]).double()
    settings: dict[str, Any] = {"epochs": 2, "optimizer": tb.SGD(1e-12)}
    with pytest.warns(tb.ProblemWarning, match="the networks of complex 0 are worse than what they surround"):
        tb.fit(model, rows, Simplex(1, 2, **settings), start=far, callbacks=())


def test_a_shared_vertex_is_compared_with_the_mean_of_the_modes():
    """Of columns of unit square the loss of a row is ½ |w − w*|² above that of the modes, most at the vertex."""
    model = tb.Model(nn.Linear(2, 1, bias=False).double(), tb.likelihoods.Gaussian(1.0))
    inputs = torch.linalg.qr(normal(200, 2)).Q * 200**0.5
    vertices = torch.tensor([[[1.0, 0.001], [1.0, -0.001], [2.3, 0.0]]]).double()
    actual = worse_inside(tb.SimplexPosterior(model, vertices, modes=2), as_source(model, (inputs, inputs[:, :1]), 200))
    constant = 0.5 * math.log(2 * math.pi)
    assert len(actual) == 1
    assert f"(0, 0, 1) than at its modes ({-constant - 0.5 * 1.3**2:.4g} against {-constant:.4g} nats" in actual[0]


def test_a_simplex_that_has_collapsed_says_so():
    model, rows = quadratic([1.0, 1.0, 1.0])
    start = torch.tensor([[1.0, 0.0, 0.0]]).double()
    method = Simplex(2, volume_weight=1e-12, epochs=200, optimizer=tb.Adam(0.08))
    with pytest.warns(tb.ProblemWarning, match="simplex 0 of member 0 has collapsed"):
        tb.fit(model, rows, method, start=start, callbacks=())


def test_a_volume_of_weights_on_which_nothing_depends_says_so():
    """Of four inputs two are always 0; the others' directions cost loss, so that all of the volume is in those two."""
    model, rows = quadratic([1.0, 1.0, 0.0, 0.0])
    rows = rows[0], rows[0].sum(1, keepdim=True)  # of weights (1, 1)
    start = torch.tensor([[1.0, 1.0, 0.0, 0.0]]).double()
    method = Simplex(2, volume_weight=0.01, epochs=300, optimizer=tb.SGD(0.9, momentum=0.0))
    with pytest.warns(tb.ProblemWarning, match="the networks of complex 0 are one function"):
        actual: Any = tb.fit(model, rows, method, start=start, callbacks=())
    assert float(actual.log_volumes()) > 0.0


def test_how_far_functions_change():
    """w x + b with x of mean 0: (Δw² + Δb²/var x)/w² in squares."""
    model = tb.Model(nn.Linear(1, 1).double(), tb.likelihoods.Gaussian(1.0))
    inputs = torch.tensor([[-3.0], [1.0], [2.0]]).double()
    batches = as_source(model, (inputs, inputs), 2).some(3)
    before, after = (
        torch.tensor([[2.0, 5.0], [0.0, 1.0], [0.0, 1.0]]),
        torch.tensor([[2.3, 5.4], [0.0, 1.0], [1.0, 1.0]]),
    )
    actual = changes(tb.Point(model, before.double()), tb.Point(model, after.double()), batches)
    assert actual is not None
    expected = torch.tensor([((0.09 + 0.16 * 3 / 14) / 4) ** 0.5, 0.0, math.inf]).double()
    assert_close(actual, expected, rtol=1e-6)


def test_modes_that_are_one_network_say_so():
    model, rows = circle()
    start = torch.tensor([[1.0, 0.0], [1.0, 0.0]]).double()
    with pytest.warns(tb.ProblemWarning, match="modes 0 and 1 of complex 0 are the same network"):
        tb.fit(model, rows, Simplex(1, 2, epochs=2), start=start, callbacks=())


def test_more_vertices_than_weights_and_odd_numbers_of_modes_are_refused():
    model, rows = circle()
    with pytest.raises(ValueError, match="`vertices` must be at most the 2 random weights"):
        tb.fit(model, rows, Simplex(epochs=2), start=torch.eye(2).double()[:1], callbacks=())
    with pytest.raises(ValueError, match="multiple of 2; got 3"):
        fitted(count=3, modes=2)


@pytest.mark.parametrize(
    ("coordinates", "error", "said"),
    [
        ([0.5, 0.5], ValueError, r"for each of the 4 vertices, \(4,\) or \(T, 4\); got shape \(2,\)"),
        ([0.5, 0.0, 0.6, 0.1], ValueError, "at least 0 and sum to 1"),
        ([1.5, 0.0, -0.5, 0.0], ValueError, "at least 0 and sum to 1"),
        ([math.nan, 0.0, 0.5, 0.5], ValueError, "at least 0 and sum to 1"),
        ([0.2, 0.2, 0.6, 0.0], ValueError, "Between two modes there is no simplex"),
        ("middle", TypeError, "must be numbers"),
    ],
)
def test_places_outside_of_a_complex_are_refused(coordinates: Any, error: type[Exception], said: str):
    posterior = tb.SimplexPosterior(model_of(), normal(1, 4, model_of().layout.size), 2)
    with pytest.raises(error, match=said):
        posterior.at(coordinates)
