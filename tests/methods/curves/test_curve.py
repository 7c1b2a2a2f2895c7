"""Curves between solutions: exact optima, a landscape whose paths are known, and the laws of methods."""

from __future__ import annotations

import json
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
from torchbayes.methods.noise import Purpose, uniforms
from torchbayes.posteriors.curves.curve import coefficients
from torchbayes.randomness.seeds import member_seeds
from torchbayes.selection import length

SMALL: dict[str, Any] = {"epochs": 5, "batch_size": 6, "plan": "loop"}


def ends(name: str, curves: int) -> Tensor:
    model = model_of(name)
    return 0.2 * normal(2 * curves, model.layout.size, seed=9, dtype=model.network.dtype)


def fitted(name: str = "mlp", curves: int = 2, **settings: Any) -> tb.CurvePosterior:
    options = {key: settings.pop(key) for key in ("seed", "directory", "resume", "callbacks") if key in settings}
    method = tb.Curve(**{**SMALL, **settings})
    options = {"seed": 7, "callbacks": (), **options}
    start = options.pop("start", ends(name, curves))
    return tb.fit(model_of(name), rows_of(name), method, start=start, **options)  # type: ignore[return-value]


# --- shapes ---


@pytest.mark.parametrize("shape", ["bezier", "chain"])
@pytest.mark.parametrize("points", [2, 3, 4, 7])
def test_coefficients_sum_to_one_and_meet_the_ends(shape: Any, points: int):
    t_T = torch.linspace(0, 1, 23).double()
    found_TP = coefficients(shape, t_T, points)
    assert_close(found_TP.sum(1), torch.ones(23).double(), rtol=1e-12)
    assert (found_TP >= 0).all()
    assert_close(found_TP[[0, -1]][:, [0, -1]], torch.eye(2).double(), atol=1e-12)


def test_coefficients_are_the_published_ones():
    t = torch.tensor([0.0, 0.2, 0.5, 0.9, 1.0], dtype=torch.float64)
    bezier = torch.stack([(1 - t) ** 2, 2 * t * (1 - t), t**2], 1)
    chain = torch.stack([(1 - 2 * t).clamp_min(0), 1 - (2 * t - 1).abs(), (2 * t - 1).clamp_min(0)], 1)
    assert_close(coefficients("bezier", t, 3), bezier, atol=1e-15)
    assert_close(coefficients("chain", t, 3), chain, atol=1e-15)
    t_T = torch.linspace(0, 1, 100_001).double()
    middle_T = coefficients("bezier", t_T, 3)[:, 1]
    assert_close(torch.trapezoid(middle_T, t_T), torch.tensor(1 / 3).double(), rtol=1e-6)
    assert_close(torch.trapezoid(middle_T**2, t_T), torch.tensor(2 / 15).double(), rtol=1e-6)


def test_a_curve_with_one_bend_lies_in_the_plane_of_its_points():
    model = model_of()
    posterior = tb.CurvePosterior(model, normal(1, 3, model.layout.size, seed=1))
    plane = tb.Subspace.of(posterior, rank=2)
    points_TD = posterior.weights(torch.linspace(0, 1, 9))[:, 0]
    assert_close(plane.lift(plane.coordinates(points_TD)), points_TD, rtol=1e-9, atol=1e-11)
    assert_close(posterior.weights(0.0)[0], posterior.points_MPD[0, 0], rtol=1e-12)
    assert_close(posterior.weights(1.0)[0], posterior.points_MPD[0, -1], rtol=1e-12)


def test_draws_are_uniform_along_a_curve_and_spread_evenly():
    model = model_of()
    line = torch.stack([torch.zeros(model.layout.size), torch.ones(model.layout.size)]).double()
    posterior = tb.CurvePosterior(model, line[None])
    t_S = posterior.sample(200, seed=3)[:, 0].sort().values
    assert (t_S - (torch.arange(200) + 0.5) / 200).abs().max() < 0.02
    firsts = torch.stack([posterior.sample(1, seed=seed)[0, 0] for seed in range(400)])
    assert abs(firsts.mean() - 0.5) < 5 * (1 / 12 / 400) ** 0.5


# --- truth ---


def only_a_prior() -> tuple[tb.Model, tuple[Tensor, Tensor]]:
    """A loss of |w|²/2: the data say nothing."""
    model = tb.Model(nn.Linear(2, 1, bias=False).double(), tb.likelihoods.Gaussian(1.0), tb.priors.Normal(1.0))
    return model, (torch.zeros(1, 2).double(), torch.zeros(1, 1).double())


@pytest.mark.parametrize(
    ("shape", "factor"), [("bezier", -0.75), pytest.param("chain", -0.25, marks=pytest.mark.study)]
)
def test_the_best_bend_under_a_quadratic_loss(shape: Any, factor: float):
    model, rows = only_a_prior()
    first_D, last_D = torch.tensor([1.0, 2.0]).double(), torch.tensor([3.0, -1.0]).double()
    method = tb.Curve(shape=shape, epochs=250, optimizer=tb.SGD(0.4, momentum=0.0))
    density = tb.LogDensity(model, 1, tb.Batch(*rows), training=True)
    start = torch.stack([first_D, last_D]).repeat(100, 1)
    state = method.init(density, start, {}, seeds=range(100), steps_per_epoch=1)
    batch = tb.Batch(*(t.expand(100, *t.shape) for t in rows))
    for _ in range(250):
        state, _ = method.step(density, state, batch, donate=True)
    assert_close(state.trajectory.weights_MD.mean(0), factor * (first_D + last_D), atol=0.03)


def test_a_step_is_the_gradient_at_the_drawn_position():
    """∂/∂θ_j L(φ(t)) = c_j(t) ∇L(φ(t)), of both bends, by autograd through the curve itself."""
    model, rows = model_of(), rows_of()
    density = tb.LogDensity(model, len(rows[0]), plan="loop", training=True)
    batch = tb.Batch(*(t.unsqueeze(0) for t in rows))
    method = tb.Curve(bends=2, optimizer=tb.SGD(0.1, momentum=0.0), schedule=tb.Constant(), epochs=3)
    ends_MD = ends("mlp", 1)
    state = method.init(density, ends_MD, {}, seeds=(5,), steps_per_epoch=1)
    new, info = method.step(density, state, batch)
    bends_JD = torch.stack([torch.lerp(ends_MD[0], ends_MD[1], share) for share in (1 / 3, 2 / 3)]).requires_grad_()
    t = uniforms((5,), Purpose.CURVE_POSITION, 0)
    point_D = torch.einsum("p,pd->d", coefficients("bezier", t, 4)[0], torch.stack([ends_MD[0], *bends_JD, ends_MD[1]]))
    log_prior = torch.distributions.Normal(0.0, 1.0).log_prob(point_D).sum()
    logits = nn.functional.linear(rows[0], *(model.layout.split(point_D)[n] for n in ("0.weight", "0.bias"))).tanh()
    logits = nn.functional.linear(logits, *(model.layout.split(point_D)[n] for n in ("2.weight", "2.bias")))
    loss = nn.functional.cross_entropy(logits, rows[1]) - log_prior / len(rows[0])
    gradient_JD = torch.autograd.grad(loss, bends_JD)[0]
    assert_close(info.loss_M[0], loss.detach(), rtol=1e-9)
    found_JD = new.trajectory.weights_MD.unflatten(1, (2, -1))[0]
    assert_close(found_JD, (bends_JD - 0.1 * gradient_JD).detach(), rtol=1e-9, atol=1e-12)


class Radius(nn.Module):
    """A network whose only output is |w|²: its solutions of target 1 are a circle."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2).double())

    def forward(self, inputs: Tensor) -> Tensor:
        return self.weight.square().sum() * inputs


# one bend is that of `test_a_barrier_along_a_curve_is_said_with_its_place`, where it has no problem
CIRCLES = [
    *(pytest.param(*case, marks=pytest.mark.study) for case in (("bezier", 1, 0.02), ("chain", 5, 0.02))),
    ("bezier", 3, 0.002),
]


@pytest.mark.parametrize(("shape", "bends", "worst"), CIRCLES)
def test_solutions_on_a_circle_are_joined_around_it(shape: Any, bends: int, worst: float):
    model = tb.Model(Radius(), tb.likelihoods.Gaussian(0.5), tb.priors.Flat())
    rows = (torch.ones(16, 1).double(), torch.ones(16, 1).double())
    method = tb.Curve(bends, shape, epochs=250, optimizer=tb.Adam(0.05))
    start = torch.eye(2).double()
    actual: Any = tb.fit(model, rows, method, start=start, callbacks=())
    t_T = torch.linspace(0, 1, 51)
    error_T = (actual.weights(t_T)[:, 0].square().sum(-1) - 1).square()
    straight_T = (torch.lerp(start[0], start[1], t_T.double().unsqueeze(1)).square().sum(-1) - 1).square()
    assert straight_T.max() > 0.24
    assert error_T.max() < worst


# --- laws ---


@pytest.mark.parametrize(
    ("name", "shape"),
    with_studies([("conv_batch_norm", "bezier"), ("dropout", "chain")], NETWORKS, ("bezier", "chain")),
)
def test_curves_together_equal_curves_alone(name: str, shape: Any):
    settings = {"shape": shape, "bends": 2}
    plan = "auto" if name == "dropout" else "loop"
    together = everything(fitted(name, 2, **settings, plan=plan))
    for m, seed in enumerate(member_seeds(7, 2)):
        rows = slice(2 * m, 2 * m + 2)
        one = tb.Curve(**SMALL, **settings)
        alone = tb.fit(model_of(name), rows_of(name), one, start=ends(name, 2)[rows], seed=seed, callbacks=())
        for key, tensor in everything(alone).items():
            assert_close(together[key][m], tensor[0], rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize(  # simplices have dropout
    "name", [*(pytest.param(n, marks=pytest.mark.study) for n in ("mlp", "dropout")), "conv_batch_norm"]
)
def test_an_interrupted_run_goes_on_exactly(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    expected = fitted(name)
    step, left = tb.Curve.step, iter([True] * 7)

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if not next(left, False):
            raise KeyboardInterrupt
        return step(*args, **kwargs)

    with monkeypatch.context() as inside:
        inside.setattr(tb.Curve, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fitted(name, directory=tmp_path)
    assert_same_tensors(everything(fitted(name, directory=tmp_path, resume=True)), everything(expected))


def test_a_step_does_not_change_its_state_unless_donated():
    model, rows = model_of("conv_batch_norm"), rows_of("conv_batch_norm")
    density = tb.LogDensity(model, len(rows[0]), plan="loop", training=True)
    batch = tb.Batch(*(torch.stack([t, t]) for t in rows))
    method, buffers = tb.Curve(epochs=3), model.network.stacked_buffers(4)
    states = [
        method.init(density, ends("conv_batch_norm", 2), buffers, seeds=(1, 2), steps_per_epoch=1) for _ in range(2)
    ]
    before = states[0].trajectory.clone()
    kept, _ = method.step(density, states[0], batch)
    donated, _ = method.step(density, states[1], batch, donate=True)
    assert_close(states[0].trajectory.weights_MD, before.weights_MD, rtol=0)
    assert_close(kept.trajectory.weights_MD, donated.trajectory.weights_MD, rtol=0)


def test_the_ends_stay_and_batch_norm_is_recalibrated_along_the_curve():
    name = "conv_batch_norm"
    actual = fitted(name, 1)
    assert_close(actual.points_MPD[0, [0, -1]], ends(name, 1), rtol=0)
    for t in (0.0, 0.37, 1.0):
        point = actual.at(t)
        views = point.model.split(point.weights_MD[0])[0]
        network = point.model.network
        assert point.calibration is not None
        expected = network.recalibrate(views, point.calibration(), dict(network.buffers))
        drawn = point.functions(1)
        assert drawn.buffers_S is not None
        for key, buffer in expected.items():
            if key.endswith("tracked"):
                continue
            assert_close(drawn.buffers_S[key][0].double(), buffer.double(), rtol=1e-5, atol=1e-7)


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # of so short a training
def test_without_a_start_the_ends_are_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tb.MAP, "usual_steps", 20)  # of the ends
    model, rows = model_of(), rows_of(rows=18)  # too few to hold some out for the length of the training
    method = tb.Curve(**{**SMALL, "plan": "auto", "epochs": 5}, members=2)
    actual: Any = tb.fit(model, rows, method, callbacks=(), directory=tmp_path)
    assert actual.points_MPD.shape == (2, 3, model.layout.size)
    again: Any = tb.load(tmp_path / "posterior.safetensors", model)
    assert_close(again.points_MPD, actual.points_MPD, rtol=0)
    ensemble: Any = tb.load(tmp_path / "start" / "posterior.safetensors", model)
    assert_close(actual.points_MPD[:, [0, -1]].flatten(0, 1), ensemble.weights_MD, rtol=0)


@pytest.mark.parametrize(
    "method",
    [*(pytest.param(method, marks=pytest.mark.study) for method in (tb.Curve(), tb.Curve(epochs=7))), tb.Simplex()],
    ids=["curve", "set", "simplex"],
)
def test_what_is_between_trains_as_long_as_the_networks(method: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(length, "_LONGEST", 100)  # steps of the first runs at most
    rows, targets = normal(60, 3), normal(60, 1, seed=1)
    net = nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, 1)).double()
    tb.fit(tb.Model(net, tb.likelihoods.Gaussian(0.5)), (rows, targets), method, callbacks=(), directory=tmp_path)
    about = json.loads((tmp_path / "config.json").read_text())
    chosen = about["chosen"]["mode"]["epochs"]
    assert chosen < 2000  # the usual length of so few rows
    assert about["method"]["epochs"] == (method.epochs or chosen)


def test_an_ensemble_is_joined_and_its_members_are_the_ends():
    model, rows = model_of(), rows_of()
    ensemble: Any = tb.fit(model, rows, tb.MAP(4, epochs=5), callbacks=())
    actual: Any = tb.fit(model, rows, tb.Curve(epochs=5), start=ensemble, callbacks=())
    assert actual.members == 2
    assert_close(actual.at(torch.tensor([0.0, 1.0])).weights_MD, ensemble.weights_MD[[0, 2, 1, 3]], rtol=1e-12)
    prediction = tb.predict(actual, rows[0], draws=8)
    assert torch.isfinite(prediction.probs).all()


def test_a_curve_in_a_subspace_stays_in_it():
    model, rows = model_of(), rows_of()
    space = tb.Subspace.random(model, model.network.weights(), 4, seed=1)
    actual = tb.fit(model, rows, tb.Curve(epochs=5), space=space, start=ends("mlp", 1), callbacks=())
    outside = actual.sample(4) - space.lift(space.coordinates(actual.sample(4)))
    assert outside.abs().max() < 1e-9


# --- refusals ---


def test_an_odd_number_of_ends_is_refused():
    with pytest.raises(ValueError, match="multiple of 2; got 3"):
        tb.fit(model_of(), rows_of(), tb.Curve(epochs=2), start=ends("mlp", 2)[:3], callbacks=())
    with pytest.raises(ValueError, match="multiple of 2; got 1"):
        tb.fit(model_of(), rows_of(), tb.Curve(epochs=2), start=model_of().network.module, callbacks=())


@pytest.mark.parametrize("t", [-0.1, 1.5, float("nan")])
def test_positions_outside_of_a_curve_are_refused(t: float):
    with pytest.raises(ValueError, match=r"must be in \[0, 1\]"):
        fitted(curves=1).at(t)


@pytest.mark.parametrize("t", ["middle", None])
def test_positions_that_are_no_numbers_are_refused(t: Any):
    with pytest.raises(TypeError, match="`t` must be numbers"):
        tb.CurvePosterior(model_of(), ends("mlp", 1)[None]).at(t)


def test_a_curve_that_is_nowhere_near_a_solution_says_so():
    model, rows = model_of(), rows_of()
    far = 100 * normal(1, model.layout.size, seed=3).expand(2, -1)
    with pytest.warns(tb.ProblemWarning):
        tb.fit(model, rows, tb.Curve(epochs=2), start=far, callbacks=())


def line_of(first: Tensor, last: Tensor) -> tuple[tb.Model, tuple[Tensor, Tensor], Tensor]:
    """A network y = |w|² x of two weights, rows with y = x, and two of its weights."""
    model = tb.Model(Radius(), tb.likelihoods.Gaussian(0.5), tb.priors.Flat())
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(40, 1, generator=generator, dtype=torch.float64)
    return model, (inputs, inputs.clone()), torch.stack([first, last])


def test_a_barrier_along_a_curve_is_said_with_its_place():
    """On the chord of the circle |w| = 1 the slope is ½, on the circle 1: the loss rises by (1/2)² E[x²]/(2 · 0.25)."""
    model, (inputs, targets), start = line_of(*torch.eye(2).double())
    method = tb.Curve(epochs=120, optimizer=tb.Adam(0.05))
    good: Any = tb.fit(model, (inputs, targets), method, start=start, callbacks=())
    assert not good.problems
    best = -0.5 * math.log(2 * math.pi * 0.25)
    said = f"({best - 0.5 * float(inputs.square().mean()):.4g} against {best:.4g} and {best:.4g} nats"
    with pytest.warns(tb.ProblemWarning, match=r"a barrier along curve 0.*less likely at t = 0\.5") as seen:
        actual: Any = tb.fit(
            model, (inputs, targets), tb.Curve(epochs=2, optimizer=tb.Adam(1e-12)), start=start, callbacks=()
        )
    assert said in str(seen[0].message)
    with pytest.warns(tb.ProblemWarning, match="a barrier along"):
        actual.at(0.5).functions(1)


def test_a_curve_between_a_network_and_itself_says_so():
    model, rows, start = line_of(torch.tensor([1.0, 0.0]).double(), torch.tensor([1.0, 0.0]).double())
    with pytest.warns(tb.ProblemWarning, match="both ends of curve 0 are the same network"):
        tb.fit(model, rows, tb.Curve(epochs=2), start=start, callbacks=())
