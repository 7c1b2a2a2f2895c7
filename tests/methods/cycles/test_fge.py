"""Cycles of the learning rate against their formulas, and what FGE and Snapshots keep of a run, in float64."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.covering import with_studies
from tests.laws.cases import assert_same_tensors, everything, made, model_of, rows_of
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.health.ending import Case, NoHistory
from torchbayes.health.kept import alike
from torchbayes.methods.cycles.base import kept
from torchbayes.methods.cycles.fge import triangle
from torchbayes.methods.schedules import Progress
from torchbayes.model.sources.sources import as_source
from torchbayes.selection import length

STEADY = tb.Adam(0.1)


def rates(method: Any, steps: int, per_epoch: int) -> list[float]:
    return [method.rate(Progress(step, steps, per_epoch)) for step in range(steps)]


def test_a_cycle_is_the_published_triangle() -> None:
    actual = [triangle(i, 8, 0.5, low=0.1) for i in range(1, 9)]
    assert actual == pytest.approx([0.4, 0.3, 0.2, 0.1, 0.2, 0.3, 0.4, 0.5], abs=1e-15)
    odd = [triangle(i, 5, 1.0, low=0.0) for i in range(1, 6)]
    assert odd == pytest.approx([0.6, 0.2, 0.2, 0.6, 1.0], abs=1e-15)


def test_fge_rates_of_a_whole_run() -> None:
    """Ten epochs of four steps: four of burn-in, which is constant and falls to α₁, then three cycles of two epochs."""
    method = tb.FGE(epochs=10, optimizer=tb.SGD(0.2), cycle=2, burn_in=0.4, high_lr=0.1, low_lr=0.02)
    actual = rates(method, 40, 4)
    assert actual[:9] == pytest.approx([0.2] * 9, abs=1e-15)
    assert actual[12] == pytest.approx(0.2 - 0.1 * (12 / 16 - 0.5) / 0.4, abs=1e-15)
    for cycle in range(3):
        for i in range(1, 9):
            t = i / 8
            expected = (1 - 2 * t) * 0.1 + 2 * t * 0.02 if t <= 0.5 else (2 - 2 * t) * 0.02 + (2 * t - 1) * 0.1
            assert actual[16 + 8 * cycle + i - 1] == pytest.approx(expected, abs=1e-15)
    assert list(method.ends(40, 4)) == [20, 28, 36]
    assert list(kept(method, 40, 4)) == [20, 28, 36]
    assert [actual[end - 1] for end in method.ends(40, 4)] == pytest.approx([0.02] * 3, abs=1e-15)


@pytest.mark.parametrize(("steps", "per_epoch", "cycle"), [(50, 5, 1), (70, 7, 1), (45, 3, 1), (63, 7, 3), (11, 1, 2)])
def test_networks_are_kept_where_the_rate_is_lowest(steps: int, per_epoch: int, cycle: int) -> None:
    method = tb.FGE(epochs=steps // per_epoch, cycle=cycle, burn_in=0.3)
    before, length, count = method.cycles(steps, per_epoch)
    actual = rates(method, steps, per_epoch)
    assert before + length * count == steps
    assert before >= round(0.3 * steps)
    assert count == (steps - round(0.3 * steps)) // length
    for number, end in enumerate(method.ends(steps, per_epoch)):
        own = actual[before + number * length : before + (number + 1) * length]
        assert actual[end - 1] == pytest.approx(min(own), abs=1e-16)
        assert end == before + number * length + math.ceil(length / 2)


def test_default_cycles_are_ten_and_fit_in_any_run() -> None:
    for steps in range(2, 60):
        method = tb.FGE(epochs=steps)
        before, length, count = method.cycles(steps, 1)
        assert length >= 2
        assert 1 <= count <= 10
        assert before + length * count == steps
        assert max(method.ends(steps, 1)) <= steps
        assert min(rates(method, steps, 1)) > 0
    assert tb.FGE(epochs=200).cycles(200, 1) == (100, 10, 10)


def test_default_rates_are_shares_of_the_optimisers() -> None:
    assert (tb.FGE(optimizer=STEADY).high, tb.FGE(optimizer=STEADY).low) == pytest.approx((0.05, 0.005))
    assert tb.FGE(optimizer=STEADY, high_lr=0.2).low == pytest.approx(0.02)
    assert tb.FGE(optimizer=tb.SAM(STEADY)).high == pytest.approx(0.05)


def test_snapshot_rates_are_the_published_cosine() -> None:
    method = tb.Snapshots(epochs=6, optimizer=tb.SGD(0.2), cycles=3)
    expected = [0.1 * (math.cos(math.pi * ((t - 1) % 8) / 8) + 1) for t in range(1, 25)]
    assert rates(method, 24, 4) == pytest.approx(expected, abs=1e-15)
    assert list(method.ends(24, 4)) == [8, 16, 24]


def test_uneven_snapshot_cycles_end_with_the_run() -> None:
    method = tb.Snapshots(cycles=3)
    assert list(method.ends(20, 4)) == [6, 13, 20]
    actual = rates(method, 20, 4)
    assert [actual[at] for at in (0, 6, 13)] == pytest.approx([3e-3] * 3)
    assert list(method.ends(2, 2)) == [1, 2]  # a run of fewer steps than cycles
    assert method.needs.draws == 3


class Kept:
    """A shelf in memory, and the numbers of the steps after which it was added to."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.draws: list[Tensor] = []

    def weights_MSD(self) -> Tensor:
        return torch.stack(self.draws, 1)


def by_hand(method: Any, network: str = "mlp") -> tuple[Kept, Any, Any]:
    """A run with a loop of one's own, on two members with the same rows."""
    model = model_of(network)
    inputs, targets = rows_of(network)
    density = tb.LogDensity(model, len(targets), plan="loop", training=True)
    state = method.init(density, *model.starting_weights([1, 2]), seeds=[1, 2], steps_per_epoch=4)
    shelf = Kept()
    while (visit := method.visit(state)) is not None:
        rows = slice(visit.number % 4 * 6, visit.number % 4 * 6 + 6)
        batch = tb.Batch(inputs[rows].expand(2, *inputs[rows].shape), targets[rows].expand(2, -1))
        state, info = method.step(density, state, batch)
        assert info.lr == method.rate(Progress(state.step - 1, state.total_steps, 4))
        if (drawn := method.draw(state)) is not None:
            shelf.steps.append(state.step)
            shelf.draws.append(drawn.clone())
    return shelf, method.posterior(density, state, shelf), state


@pytest.mark.parametrize(
    ("method", "steps"),
    [
        (tb.FGE(2, 10, optimizer=STEADY, cycle=2, burn_in=0.4), [20, 28, 36]),
        (tb.FGE(2, 10, optimizer=STEADY, cycle=2, burn_in=0.4, draws=2), [28, 36]),
        (tb.FGE(2, 10, optimizer=STEADY, cycle=3, burn_in=0.0), [10, 22, 34]),
        (tb.Snapshots(2, 6, optimizer=STEADY, cycles=3), [8, 16, 24]),
        (tb.Snapshots(2, 6, optimizer=STEADY, cycles=3, draws=1), [24]),
    ],
)
def test_what_a_run_keeps(method: Any, steps: list[int]) -> None:
    shelf, posterior, state = by_hand(method)
    assert shelf.steps == steps
    assert posterior.weights_MSD.shape == (2, len(steps), state.weights_MD.shape[1])
    assert torch.equal(posterior.weights_MSD, shelf.weights_MSD())
    assert posterior.default_draws == 2 * len(steps)
    assert method.needs.draws >= len(steps)


def test_the_last_snapshot_is_the_end_of_the_run() -> None:
    shelf, _, state = by_hand(tb.Snapshots(2, 6, optimizer=STEADY, cycles=3))
    assert torch.equal(shelf.draws[-1], state.weights_MD)
    assert float((shelf.draws[0] - shelf.draws[1]).norm()) > 0.1


def test_one_snapshot_is_a_run_of_map() -> None:
    data, about = rows_of(), {"epochs": 4, "batch_size": 6, "optimizer": STEADY, "plan": "loop"}
    one: Any = tb.fit(model_of(), data, tb.Snapshots(cycles=1, **about), seed=3, callbacks=())
    point: Any = tb.fit(model_of(), data, tb.MAP(**about), seed=3, callbacks=())
    torch.testing.assert_close(one.weights_MSD[:, 0], point.weights_MD, rtol=1e-12, atol=1e-12)


def test_batch_norm_is_measured_for_each_network() -> None:
    data = rows_of("conv_batch_norm")
    method = tb.FGE(epochs=8, batch_size=12, optimizer=STEADY, cycle=1)
    posterior: Any = tb.fit(model_of("conv_batch_norm"), data, method, callbacks=())
    assert not posterior.statistics_known
    drawn = posterior.functions(posterior.default_draws)
    assert drawn.buffers_S is not None
    means = drawn.buffers_S["1.running_mean"]
    assert means.shape == (4, 3)
    assert float((means[0] - means[1]).abs().max()) > 1e-3
    module = posterior.model.network
    weights = module.layout.split(posterior.weights_MSD[0, 2])
    seen = nn.functional.conv2d(data[0], weights["0.weight"], weights["0.bias"]).mean((0, 2, 3))
    torch.testing.assert_close(means[2], seen, rtol=1e-6, atol=1e-8)


def test_from_a_trained_network_without_burn_in() -> None:
    data = rows_of()
    trained: Any = tb.fit(model_of(), data, tb.MAP(epochs=60, batch_size=6, optimizer=STEADY), callbacks=())
    method = tb.FGE(epochs=6, batch_size=6, optimizer=tb.SGD(0.02), cycle=2, burn_in=0.0)
    posterior: Any = tb.fit(model_of(), data, method, start=trained, callbacks=())
    assert posterior.weights_MSD.shape[:2] == (1, 3)
    moved = (posterior.weights_MSD[0] - trained.weights_MD).norm(dim=-1)
    assert float(moved.max()) < 0.5 * float(trained.weights_MD.norm())
    assert tb.evaluate(posterior, data).metrics["accuracy"] > 0.9


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (tb.FGE(epochs=2, cycle=3), r"`cycle` 3, of 12 steps, does not fit .* of 8 steps: 4. Raise `epochs` to 6 "),
        (tb.FGE(epochs=1, batch_size=24), r"a run of 1 step has no room for a cycle.* lower `batch_size`"),
        (tb.FGE(epochs=4, batch_size=24, cycle=1), r"at least 2 steps.* got `cycle` 1, which is 1 step"),
    ],
)
def test_runs_without_room_for_a_cycle_are_refused(method: tb.FGE, said: str) -> None:
    method = method if method.batch_size == 24 else tb.FGE(epochs=method.epochs, cycle=method.cycle, batch_size=6)
    with pytest.raises(ValueError, match=said):
        tb.fit(model_of(), rows_of(), method, callbacks=())


def test_a_low_rate_above_the_high_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`low_lr` must be at most .* 0.05; got 0.06"):
        tb.FGE(optimizer=STEADY, low_lr=0.06)


@pytest.mark.parametrize(("cycle", "burn_in", "epochs"), [(2, 0.8, 10), (3, 0.5, 6), (1, 0.3, 2), (3, 0.7, 10)])
def test_the_epochs_that_a_message_names_are_the_fewest(cycle: int, burn_in: float, epochs: int) -> None:
    method = tb.FGE(epochs=epochs, cycle=cycle, burn_in=burn_in)
    assert method.bounds.epochs == epochs
    assert method.cycles(epochs * 20, 20)[2] == 1
    with pytest.raises(ValueError, match=f"Raise `epochs` to {epochs} or more"):
        method.cycles((epochs - 1) * 20, 20)


def test_a_length_that_rows_choose_leaves_room_for_a_cycle() -> None:
    assert tb.FGE(cycle=30, burn_in=0.5).bounds.epochs == 60


def test_more_draws_than_cycles_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`draws` must be at most the 5 `cycles`.* got 8"):
        tb.Snapshots(draws=8)
    assert tb.Snapshots(cycles=8, draws=8).draws == 8


@pytest.mark.study  # the test of a length that rows choose, above, has how many are needed
def test_held_out_rows_leave_room_for_a_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(length, "_LONGEST", 60)  # steps of the first runs at most
    inputs = torch.linspace(-1, 1, 100, dtype=torch.float64).unsqueeze(1)
    net = nn.Sequential(nn.Linear(1, 10), nn.Tanh(), nn.Linear(10, 1)).double()  # which could interpolate 100 rows
    model = tb.Model(net, tb.likelihoods.Gaussian(0.1))
    method = tb.FGE(cycle=30, burn_in=0.5, optimizer=tb.Adam(0.1))
    posterior: Any = tb.fit(model, (inputs, 2 * inputs), method, callbacks=())
    assert posterior.weights_MSD.shape[1] >= 1
    assert method.bounds.epochs == 60


@pytest.mark.parametrize(
    ("method", "table"),
    [
        pytest.param(
            tb.FGE(epochs=600), (1, 0.1), marks=pytest.mark.study
        ),  # what a run keeps is that of the tests above
        # Snapshots have the same descent, and the usual length is that of any
        *with_studies([], (tb.FGE(), tb.Snapshots()), ((1, 0.1), (100, 0.1), (100, "learned"))),
    ],
)
def test_defaults_work_on_tiny_tables(method: Any, table: tuple[int, Any]) -> None:
    rows, noise = table
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows, 3, generator=generator)
    targets = inputs[:, :1] + 0.1 * torch.randn(rows, 1, generator=generator)
    net = nn.Sequential(nn.Linear(3, 20), nn.ReLU(), nn.Linear(20, 1))
    posterior: Any = tb.fit(tb.Model(net, tb.likelihoods.Gaussian(noise)), (inputs, targets), method, callbacks=())
    residual = tb.predict(posterior, inputs).mean - targets
    assert float(residual.square().mean()) < 0.05
    assert posterior.weights_MSD.shape[1] == method.needs.draws


@pytest.mark.parametrize("kind", [tb.FGE, tb.Snapshots])
def test_data_that_are_not_finite_and_rows_without_weight(kind: Any) -> None:
    inputs, targets = rows_of()
    method = kind(epochs=4, batch_size=6, optimizer=STEADY)
    broken = inputs.clone()
    broken[3, 0] = math.nan
    with pytest.raises(ValueError, match="NaN"):
        tb.fit(model_of(), (broken, targets), method, callbacks=())
    weighted = tb.Model(made("mlp"), tb.likelihoods.Weighted(tb.likelihoods.Categorical()))
    actual: Any = tb.fit(weighted, (inputs, (targets, torch.ones(24).double())), method, seed=1, callbacks=())
    unweighted = tb.Model(made("mlp"), tb.likelihoods.Categorical())
    plain: Any = tb.fit(unweighted, (inputs, targets), method, seed=1, callbacks=())
    torch.testing.assert_close(actual.weights_MSD, plain.weights_MSD, rtol=1e-8, atol=1e-10)


def test_a_stopped_run_keeps_the_same_networks(tmp_path: Path) -> None:
    method = tb.FGE(2, 10, 6, STEADY, cycle=1, burn_in=0.2, plan="loop")

    def stop(event: tb.Event) -> None:
        if event.epoch == 5:
            raise KeyboardInterrupt

    whole: Any = tb.fit(model_of(), rows_of(), method, seed=5, directory=tmp_path / "whole", callbacks=())
    with pytest.raises(KeyboardInterrupt):
        tb.fit(model_of(), rows_of(), method, seed=5, directory=tmp_path / "cut", callbacks=[stop])
    resumed = tb.fit(model_of(), rows_of(), method, seed=5, directory=tmp_path / "cut", resume=True, callbacks=())
    assert_same_tensors(everything(resumed), everything(whole))
    assert whole.weights_MSD.shape[1] == 8


@pytest.mark.parametrize("kind", [tb.FGE, tb.Snapshots])
def test_bfloat16(kind: Any) -> None:
    inputs, targets = rows_of(dtype=torch.float32)
    model = model_of(dtype=torch.bfloat16)
    method = kind(epochs=20, batch_size=6, optimizer=tb.Adam(0.05))
    posterior: Any = tb.fit(model, (inputs.bfloat16(), targets), method, callbacks=())
    assert posterior.weights_MSD.dtype == torch.float32  # the network alone computes in bfloat16
    assert tb.evaluate(posterior, (inputs.bfloat16(), targets)).metrics["accuracy"] > 0.7


@pytest.mark.parametrize("method", [tb.FGE(epochs=40, high_lr=1e-9), tb.Snapshots(epochs=40, optimizer=tb.Adam(1e-9))])
def test_networks_that_are_one_function_are_told(method: Any) -> None:
    with pytest.warns(tb.ProblemWarning, match="member 0 are one function"):
        tb.fit(model_of(), rows_of(), method, callbacks=())


def test_how_much_outputs_change_is_measured_in_their_standard_deviations() -> None:
    model = tb.Model(nn.Linear(1, 1).double(), tb.likelihoods.Gaussian(1.0))
    inputs = torch.linspace(-1, 1, 50).double().unsqueeze(1)
    source = as_source(model, (inputs, inputs), 16)
    for slope, said in ((1.0009, True), (1.0011, False)):
        draws = torch.tensor([[[1.0, 3.0], [slope, 3.0]]]).double()
        assert bool(alike(Case(tb.Draws(model, draws), source, NoHistory()))) is said
    assert not alike(Case(tb.Draws(model, draws[:, :1]), source, NoHistory()))
