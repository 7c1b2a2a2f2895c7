"""SAM against closed forms on linear and quadratic losses, and against steps by torch.optim, in float64."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from tests.laws.cases import made, model_of, normal, rows_of
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.cli import main
from torchbayes.density.dynamics import Value
from torchbayes.methods.optimise.descent import descend, start
from torchbayes.methods.optimise.sam import risen, split
from torchbayes.selection import length

ROWS = tb.Batch(torch.zeros(1, 4, 1), torch.zeros(1, 4, 1))
PLAIN = tb.SGD(0.1, momentum=0.0)


class Loss:
    """A loss of the weights alone, as a density has it."""

    num_data = 4
    model: Any = None

    def __init__(self, function: Any) -> None:
        self.function, self.calls = function, 0

    def loss(self, weights_MD: Tensor, batch: Any, *, buffers: Any = None, seeds: Any, out: Tensor) -> Value:
        self.calls += 1
        with torch.enable_grad():
            leaf = weights_MD.detach().requires_grad_()
            loss_M = self.function(leaf)
            out.copy_(torch.autograd.grad(loss_M.sum(), leaf)[0])
        return Value(loss_M.detach(), out, -4 * loss_M.detach())


def stepped(optimizer: Any, function: Any, weights_MD: Tensor, steps: int = 1) -> list[Tensor]:
    """Weights before the first step and after each."""
    density: Any = Loss(function)
    now = start(weights_MD, {}, [0], optimizer=optimizer, epochs=steps, steps_per_epoch=1)
    path = [now.weights_MD.clone()]
    for _ in range(steps):
        now, _ = descend(
            optimizer.objective(density), now, ROWS, optimizer=optimizer.rule, lr=optimizer.lr, donate=False
        )
        path.append(now.weights_MD.clone())
    return path


def gradient(optimizer: tb.SAM, function: Any, weights_MD: Tensor) -> Tensor:
    before, after = stepped(optimizer, function, weights_MD)
    return (before - after) / optimizer.lr


def test_a_linear_loss_rises_by_rho_times_its_slope() -> None:
    slope_D, weights_MD = normal(7), normal(2, 7, seed=1)
    there_MD = risen(weights_MD, slope_D.expand(2, -1), 0.3)
    torch.testing.assert_close((there_MD - weights_MD) @ slope_D, (0.3 * slope_D.norm()).expand(2))
    torch.testing.assert_close((there_MD - weights_MD).norm(dim=-1), torch.full((2,), 0.3).double())


def test_the_gradient_of_a_quadratic() -> None:
    root = normal(5, 5, seed=2)
    hessian, weights_MD = root @ root.T, normal(3, 5, seed=3)
    quadratic = lambda w: 0.5 * (w @ hessian * w).sum(-1)  # noqa: E731
    slope_MD = weights_MD @ hessian
    unit_MD = slope_MD / slope_MD.norm(dim=-1, keepdim=True)
    found_MD = gradient(tb.SAM(PLAIN, rho=0.2), quadratic, weights_MD)
    torch.testing.assert_close(found_MD, slope_MD + 0.2 * unit_MD @ hessian, rtol=1e-12, atol=1e-12)
    higher_M = quadratic(risen(weights_MD, slope_MD, 0.2))
    curved_M = (slope_MD @ hessian * slope_MD).sum(-1)
    expected_M = quadratic(weights_MD) + 0.2 * slope_MD.norm(dim=-1)
    expected_M = expected_M + 0.5 * 0.04 * curved_M / slope_MD.square().sum(-1)
    torch.testing.assert_close(higher_M, expected_M, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("lr", "rho"), [(0.1, 0.05), (0.5, 0.2), (1.0, 0.3)])
def test_in_one_dimension_it_ends_in_a_cycle_of_two(lr: float, rho: float) -> None:
    """|w| = lr ρ/(2 − lr) under ½ w²."""
    optimizer = tb.SAM(tb.SGD(lr, momentum=0.0), rho=rho)
    path = stepped(optimizer, lambda w: 0.5 * w.square().sum(-1), torch.ones(1, 1).double(), steps=400)
    expected = lr * rho / (2 - lr)
    assert abs(path[-1].item()) == pytest.approx(expected, rel=1e-9)
    assert path[-1].item() == pytest.approx(-path[-2].item(), rel=1e-9)


def test_adaptive_radius_is_in_units_of_the_weights() -> None:
    weights_MD, slope_MD = normal(3, 9, seed=4), normal(3, 9, seed=5)
    scale_MD = weights_MD.abs() + 0.01
    moved_MD = risen(weights_MD, slope_MD, 0.7, adaptive=True) - weights_MD
    torch.testing.assert_close((moved_MD / scale_MD).norm(dim=-1), torch.full((3,), 0.7).double())
    expected_MD = 0.7 * scale_MD**2 * slope_MD / (scale_MD * slope_MD).norm(dim=-1, keepdim=True)
    torch.testing.assert_close(moved_MD, expected_MD, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_gradient_of_zero_moves_nothing(adaptive: bool) -> None:
    weights_MD = normal(2, 4)
    slope_MD = torch.stack([torch.zeros(4).double(), normal(4, seed=1)])
    there_MD = risen(weights_MD, slope_MD, 0.5, adaptive=adaptive)
    assert torch.equal(there_MD[0], weights_MD[0])
    assert float((there_MD[1] - weights_MD[1]).norm()) > 0.01
    slope_MD[0, 0] = math.nan
    assert not torch.isfinite(risen(weights_MD, slope_MD, 0.5, adaptive=adaptive)[0]).any()


def test_small_gradients_in_bfloat16_keep_their_norm() -> None:
    weights_MD, slope_MD = torch.zeros(1, 4000).bfloat16(), torch.full((1, 4000), 1e-3).bfloat16()
    moved_MD = risen(weights_MD, slope_MD, 1.0).double()
    assert float(moved_MD.norm()) == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("base", [tb.SGD(0.05, momentum=0.9), tb.Adam(0.02)], ids=["sgd", "adam"])
def test_whole_runs_equal_a_loop_of_torch_optim(base: Any, adaptive: bool) -> None:
    """Two forward and backward passes by autograd, and a step of PyTorch's optimiser."""
    module, (inputs, targets) = made("mlp"), rows_of()
    model, parameters = model_of(), list(module.parameters())
    kind = torch.optim.SGD if isinstance(base, tb.SGD) else torch.optim.Adam
    theirs: Any = kind(parameters, lr=base.lr, **({"momentum": 0.9} if kind is torch.optim.SGD else {}))  # type: ignore[arg-type]
    density = tb.LogDensity(model, 24, plan="loop", training=True)
    ours = tb.SAM(base, rho=0.1, adaptive=adaptive)
    weights_MD = torch.cat([p.detach().flatten() for p in parameters]).unsqueeze(0)
    now = start(weights_MD, {}, [0], optimizer=ours, epochs=15, steps_per_epoch=1)

    def loss() -> Tensor:
        prior = sum(-0.5 * p.square().sum() for p in parameters)
        return nn.functional.cross_entropy(module(inputs), targets) - prior / 24

    for _ in range(15):
        batch = tb.Batch(inputs.unsqueeze(0), targets.unsqueeze(0))
        now, info = descend(ours.objective(density), now, batch, optimizer=ours.rule, lr=base.lr, donate=True)
        kept = [p.detach().clone() for p in parameters]
        slopes = torch.autograd.grad(loss(), parameters)
        sizes = [p.abs() + 0.01 if adaptive else torch.ones_like(p) for p in kept]
        norm = torch.cat([(t * g).flatten() for t, g in zip(sizes, slopes, strict=True)]).norm()
        with torch.no_grad():
            for p, t, g in zip(parameters, sizes, slopes, strict=True):
                p.add_(0.1 * t**2 * g / norm)
        theirs.zero_grad()
        loss().backward()
        with torch.no_grad():
            for p, old in zip(parameters, kept, strict=True):
                p.copy_(old)
        constant = 0.5 * math.log(2 * math.pi) * weights_MD.shape[1] / 24
        assert info.loss_M.item() == pytest.approx(loss().item() + constant, rel=1e-10)
        theirs.step()
    found_D = torch.cat([p.detach().flatten() for p in parameters])
    torch.testing.assert_close(now.weights_MD[0], found_D, rtol=1e-9, atol=1e-10)


def test_parts_average_the_gradients_of_their_rows() -> None:
    """A loss Σ_i ½ a_i w², whose rows have slopes of their own, by parts and by hand."""
    model = tb.Model(nn.Linear(2, 1, bias=False).double(), tb.likelihoods.Gaussian(1.0), tb.priors.Flat())
    inputs, targets, weights_MD = normal(1, 7, 2), normal(1, 7, 1, seed=1), normal(1, 2, seed=2)
    density = tb.LogDensity(model, 7, plan="loop", training=True)
    batch, expected = tb.Batch(inputs, targets), torch.zeros(2).double()
    for part in range(3):
        x, y = inputs[0, part::3], targets[0, part::3, 0]
        slope = x.T @ (x @ weights_MD[0] - y) / len(y)
        moved = weights_MD[0] + 0.4 * slope / slope.norm()
        expected += len(y) / 7 * x.T @ (x @ moved - y) / len(y)
    objective = tb.SAM(PLAIN, rho=0.4, parts=3).objective(density)
    out = torch.empty_like(weights_MD)
    seen = objective.loss(weights_MD, batch, seeds=[0], out=out)
    torch.testing.assert_close(out[0], expected, rtol=1e-12, atol=1e-12)
    plain = density.loss(weights_MD, batch, seeds=[0])
    torch.testing.assert_close(seen.log_density, plain.log_density, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(seen.log_likelihood, plain.log_likelihood, rtol=1e-12, atol=1e-12)


def test_parts_have_two_rows_or_more_and_seeds_of_their_own() -> None:
    batch, model = tb.Batch(normal(2, 5, 4), torch.zeros(2, 5).long()), model_of()
    pieces = split(batch, 8, seeds=[3, 4], model=model)
    assert [piece.rows.size for piece in pieces] == [2, 2]
    assert [piece.rows.inputs.shape[1] for piece in pieces] == [3, 2]
    assert [piece.share for piece in pieces] == [0.6, 0.4]
    assert torch.equal(pieces[1].rows.inputs, batch.inputs[:, 1::2])
    assert len({seed for piece in pieces for seed in piece.seeds}) == 4
    (whole,) = split(batch, 1, seeds=[3, 4], model=model)
    assert (whole.share, list(whole.seeds)) == (1.0, [3, 4])
    (single,) = split(tb.Batch(normal(1, 1, 4), torch.zeros(1, 1).long()), 4, seeds=[3], model=model)
    assert single.share == 1.0


def test_both_passes_have_the_same_masks() -> None:
    """Under dropout with ρ near zero the gradient is that of the first pass."""
    model, (inputs, targets) = model_of("dropout"), rows_of("dropout")
    density = tb.LogDensity(model, 24, plan="loop", training=True)
    weights_MD, batch = model.starting_weights([0])[0], tb.Batch(inputs.unsqueeze(0), targets.unsqueeze(0))
    plain = density.loss(weights_MD, batch, seeds=[11]).gradient
    out = torch.empty_like(weights_MD)
    tb.SAM(PLAIN, rho=1e-9).objective(density).loss(weights_MD, batch, seeds=[11], out=out)
    torch.testing.assert_close(out, plain, rtol=1e-6, atol=1e-8)
    assert float((density.loss(weights_MD, batch, seeds=[12]).gradient - plain).norm()) > 1e-2


def test_statistics_of_batch_norm_are_those_at_the_weights() -> None:
    model, (inputs, targets) = model_of("conv_batch_norm"), rows_of("conv_batch_norm")
    batch = tb.Batch(inputs.unsqueeze(0), targets.unsqueeze(0))
    actual = []
    for optimizer in (PLAIN, tb.SAM(PLAIN, rho=1.0)):
        density = tb.LogDensity(model, 24, plan="loop", training=True)
        weights_MD, buffers = model.starting_weights([0])
        objective, out = optimizer.objective(density), torch.empty_like(weights_MD)
        before_MD = weights_MD.clone()
        objective.loss(weights_MD, batch, buffers=buffers, seeds=[0], out=out)
        assert torch.equal(weights_MD, before_MD)
        actual.append((buffers, out))
    (plain, slope), (sam, other) = actual
    assert int(sam["1.num_batches_tracked"]) == 1
    torch.testing.assert_close(sam["1.running_mean"], plain["1.running_mean"], rtol=0, atol=0)
    torch.testing.assert_close(sam["1.running_var"], plain["1.running_var"], rtol=0, atol=0)
    assert float((slope - other).norm()) > 1e-3


METHODS = {
    "map": lambda optimizer, **about: tb.MAP(optimizer=optimizer, **about),
    "swa": lambda optimizer, **about: tb.SWA(optimizer=optimizer, **about),
    "swag": lambda optimizer, **about: tb.SWAG(optimizer=optimizer, rank=2, **about),
    "fge": lambda optimizer, **about: tb.FGE(optimizer=optimizer, **about),
    "snapshots": lambda optimizer, **about: tb.Snapshots(optimizer=optimizer, **about),
}


@pytest.mark.usefixtures("unjudged_fits")
@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS.keys())
def test_every_descent_takes_it(make: Any) -> None:
    data, about = rows_of(), {"members": 2, "epochs": 6, "batch_size": 6}
    base = tb.SGD(0.2)
    plain, tiny, wide = (
        tb.fit(model_of(), data, make(optimizer, **about), seed=2, callbacks=()).sample(2)
        for optimizer in (base, tb.SAM(base, rho=1e-9), tb.SAM(base, rho=0.3, parts=2))
    )
    torch.testing.assert_close(tiny, plain, rtol=1e-4, atol=1e-5)
    assert float((wide - plain).norm()) > 1e-2
    assert torch.isfinite(wide).all()


@pytest.mark.parametrize("kind", [tb.VI, tb.SVGD, tb.RepulsiveEnsemble, tb.OnlineLaplace, tb.MNF])
def test_methods_that_ask_for_other_gradients_refuse_it(kind: Any) -> None:
    with pytest.raises(
        TypeError,
        match=rf"`optimizer` of {kind.__name__} must take gradients.* got an object of type SAM. Give its `base`",
    ):
        kind(optimizer=tb.SAM())


def test_an_optimiser_within_itself_is_refused() -> None:
    with pytest.raises(TypeError, match=r"`base` must be an object such as SGD\(\)"):
        tb.SAM(tb.SAM())  # type: ignore[arg-type]


@pytest.mark.study  # whole runs are those of a loop of torch.optim, above; `tests/selection` chooses the epochs
def test_held_out_rows_choose_the_epochs_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(length, "_LONGEST", 400)  # steps of the first runs at most
    inputs = torch.linspace(-1, 1, 100).unsqueeze(1)
    net = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))
    model = tb.Model(net, tb.likelihoods.Gaussian(0.1))
    posterior = tb.fit(model, (inputs, inputs**2), tb.MAP(optimizer=tb.SAM(tb.Adam(0.01))), callbacks=())
    residual = tb.predict(posterior, inputs).mean - inputs**2
    assert float(residual.square().mean()) < 0.02


def test_a_run_that_diverges_says_so_and_adversarial_rows_go_along() -> None:
    data = rows_of()
    method = tb.MAP(epochs=3, batch_size=6, optimizer=tb.SAM(tb.SGD(0.1), parts=2), adversarial=0.05)
    posterior: Any = tb.fit(model_of(), data, method, callbacks=())
    assert torch.isfinite(posterior.weights_MD).all()
    inputs = 1e200 * data[0]
    linear = tb.Model(nn.Linear(4, 1).double(), tb.likelihoods.Gaussian(1.0))
    with pytest.raises(tb.DivergedError, match="diverged at step 0"):
        tb.fit(linear, (inputs, data[0][:, :1]), tb.MAP(epochs=2, optimizer=tb.SAM()), callbacks=())


def test_dropout_that_stays_on_takes_it_too() -> None:
    method = tb.MCDropout(epochs=20, batch_size=6, optimizer=tb.SAM(tb.Adam(0.05)))
    posterior = tb.fit(model_of("dropout"), rows_of("dropout"), method, callbacks=())
    assert tb.evaluate(posterior, rows_of("dropout")).metrics["accuracy"] > 0.5


def test_it_can_be_named_on_the_command_line(tmp_path: Any) -> None:
    options = ["--data", "two_moons", "--method", "MAP", "--method.epochs", "2", "--directory", str(tmp_path / "run")]
    flat = ["--method.optimizer", "SAM", "--method.optimizer.rho", "0.1", "--method.optimizer.base", "Adam"]
    assert main(["fit", *options, *flat]) == 0
    written = json.loads((tmp_path / "run" / "config.json").read_text())
    assert '"SAM"' in json.dumps(written)
    assert '"rho": 0.1' in json.dumps(written)


@pytest.mark.parametrize("method", [tb.MAP, tb.SWAG, tb.FGE, tb.Snapshots, tb.MCDropout])
def test_a_ball_as_large_as_the_weights_is_a_problem(method: Any) -> None:
    name = "dropout" if method is tb.MCDropout else "mlp"
    far = tb.SAM(tb.Adam(0.01), rho=1e3)
    with pytest.warns(tb.ProblemWarning, match=r"rho = 1000, which is more than the norm of the weights of member 0"):
        tb.fit(model_of(name), rows_of(name), method(epochs=10, batch_size=6, optimizer=far), callbacks=())


def test_how_large_the_ball_is_for_the_weights() -> None:
    weights_MD = torch.tensor([[3.0, 4.0], [30.0, 40.0]])
    assert not tb.SAM(rho=4.9).caveats(weights_MD)
    assert "norm of the weights of member 0 themselves, 5," in tb.SAM(rho=5.0).caveats(weights_MD)[0]
    scaled = ((3 / 3.01) ** 2 + (4 / 4.01) ** 2) ** 0.5
    assert not tb.SAM(rho=scaled - 1e-3, adaptive=True).caveats(weights_MD)
    assert "scaled weights of member 0" in tb.SAM(rho=scaled + 1e-3, adaptive=True).caveats(weights_MD)[0]
    assert not tb.SGD().caveats(weights_MD)
