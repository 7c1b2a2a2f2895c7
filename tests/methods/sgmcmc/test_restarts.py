"""Chains on minibatches at warm starts, and chains that diverge: what each goes back to, and that others do not see."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.covering import with_studies
from tests.laws.cases import assert_same_tensors, losses
from tests.oracles import assert_close, normal
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.health.chains import diverged
from torchbayes.methods.protocol import DivergedError
from torchbayes.methods.sampler import Sampler
from torchbayes.methods.sgmcmc.restarts import MOST, mended
from torchbayes.networks import mlp, small_cnn
from torchbayes.randomness.seeds import member_seeds

Make = Callable[..., Sampler]
makes = pytest.mark.parametrize("make", [tb.SGLD, tb.SGHMC, tb.SGNHT])


def often(one: Make) -> pytest.MarkDecorator:
    """One of the samplers, which share the base that goes back; the others as studies."""
    marks = {make: () if make is one else pytest.mark.study for make in (tb.SGLD, tb.SGHMC, tb.SGNHT)}
    return pytest.mark.parametrize("make", [pytest.param(make, marks=marks[make]) for make in marks])


# --- preconditioners ---


@makes
def test_a_preconditioner_is_the_mean_of_all_squares_seen_so_far(make: Any):
    """With weights λ^(t−i), normalised; the first step, which has seen one minibatch, does not move a weight."""
    model = tb.Model(nn.Linear(3, 1).double(), tb.likelihoods.Gaussian(0.5), tb.priors.Normal(0.2), temperature=0.25)
    method = make(chains=2, steps=6, burn_in=5, thin=1, batch_size=4, decay=0.7)
    data, start = (normal(12, 3), normal(12, 1, seed=1)), normal(2, 4, seed=2)
    density = tb.LogDensity(model, 12, plan="loop")
    state = method.init(density, start, {}, seeds=(1, 2), steps_per_epoch=3)
    assert_close(state.floor_D, torch.full((4,), 1 / 0.2))
    squares, seen = [], [state.weights_MD]
    for number in range(4):
        rows = torch.arange(4 * number, 4 * number + 4) % 12
        batch = tb.Batch(*(t[rows].expand(2, -1, -1) for t in data))
        squares.append((0.25 * density(state.weights_MD, batch).gradient).square())
        state, info = method.step(density, state, batch)
        seen.append(state.weights_MD)
        shares = 0.7 ** torch.arange(number, -1, -1).double()
        mean_MD = (torch.stack(squares) * shares[:, None, None]).sum(0) / shares.sum()
        assert_close(state.squares_MD, mean_MD)
        assert_close(info.step_size_M, [method.step_size_at(number, density) * number / 100] * 2)
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])


@makes
def test_the_floor_is_the_priors_where_it_has_a_spread(make: Any):
    net = nn.Linear(2, 1).double()
    for prior, expected in (
        ({"weight": tb.priors.Normal(0.5), "bias": tb.priors.Flat()}, [2.0, 2.0, make.least_floor]),
        (tb.priors.Normal(1e9), [make.least_floor] * 3),
    ):
        density = tb.LogDensity(tb.Model(net, tb.likelihoods.Gaussian(1.0), prior), 5)
        state = make().init(density, normal(4, 3), {}, seeds=range(4))
        assert_close(state.floor_D, expected)
    fixed = make(floor=0.3).init(tb.LogDensity(tb.Model(net, tb.likelihoods.Gaussian(1.0)), 5), normal(1, 3), seeds=[0])
    assert_close(fixed.floor_D, [0.3] * 3)


def wiggle(count: int, width: int) -> tuple[Tensor, Tensor]:
    inputs = normal(count, width).float()
    return inputs, (inputs[:, :1] * 2).sin() + inputs[:, 1:2] * inputs[:, 2:3] + 0.05 * normal(count, 1, seed=1).float()


def stripes() -> tuple[Tensor, Tensor]:
    inputs = normal(120, 1, 8, 8).float()
    inputs[:60, :, :, ::2] += 1.0
    return inputs, (torch.arange(120) >= 60).long()


WARM: dict[str, Callable[[], tuple[tb.Model, tuple[Tensor, Tensor]]]] = {
    "perceptron": lambda: (
        tb.Model(lambda: mlp(3, 1, hidden=(32,)), tb.likelihoods.Gaussian("learned"), tb.priors.Normal(1.0)),
        wiggle(300, 3),
    ),
    "heteroscedastic": lambda: (
        tb.Model(
            lambda: mlp(3, 2, hidden=(16, 16, 16)), tb.likelihoods.HeteroscedasticGaussian(), tb.priors.Normal(1.0)
        ),
        wiggle(300, 3),
    ),
    "convolutions": lambda: (
        tb.Model(lambda: small_cnn((1, 8, 8), 2), tb.likelihoods.Categorical(), tb.priors.Normal(1.0)),
        stripes(),
    ),
    "classes": lambda: (
        tb.Model(lambda: mlp(64, 2, hidden=(16,)), tb.likelihoods.Categorical(), tb.priors.Normal(1.0)),
        (stripes()[0].flatten(1), stripes()[1]),
    ),
}


@pytest.mark.study  # preconditioners and their floors are exact, above
@pytest.mark.filterwarnings("ignore:.*still on its way down:torchbayes.ProblemWarning")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "make"),
    with_studies(
        [("heteroscedastic", tb.SGNHT)],
        WARM,
        (tb.SGHMC, tb.SGLD, tb.SGNHT),
    ),
)
def test_a_warm_start_is_not_worse_than_a_cold_one(name: str, make: Any):
    model, data = WARM[name]()
    modes = tb.fit(model, data, tb.MAP(members=2, epochs=100, optimizer=tb.Adam(0.01)), callbacks=())
    method = make(chains=2, steps=180, burn_in=120, thin=10, batch_size=50)
    cold, warm = (tb.fit(model, data, method, start=start, callbacks=()) for start in (None, modes))
    losses_of = [float(tb.evaluate(p, data).metrics["nll"]) for p in (cold, warm, modes)]
    assert losses_of[1] < losses_of[0] + 0.02
    assert not warm.problems


# --- chains that diverge ---


class Cubic(nn.Module):
    """f = Σ w³ x: far from zero a density of its weights is too steep for steps that suit it near one; 0 above 50."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2).double())

    def forward(self, inputs: Tensor) -> Tensor:
        cubes = torch.where(self.weight > 50, torch.inf, self.weight**3)
        return (inputs * cubes).sum(-1, keepdim=True)


def cubes() -> tuple[tb.Model, tuple[Tensor, Tensor]]:
    inputs = normal(40, 2)
    model = tb.Model(Cubic(), tb.likelihoods.Gaussian(1.0), tb.priors.Normal(3.0))
    return model, (inputs, inputs.sum(1, keepdim=True) + normal(40, 1, seed=1))


STARTS = torch.tensor([[1.0, 0.9], [2.5, 2.0], [0.8, 1.1]]).double()
LENGTH: dict[str, Any] = {"steps": 90, "burn_in": 40, "thin": 10, "batch_size": 10, "plan": "loop"}


def fitted(make: Any, start: Tensor = STARTS, **options: Any) -> tb.Draws:
    model, data = cubes()
    method = make(chains=len(start), step_size=2e-3 if make is tb.SGLD else 5e-4, **LENGTH)
    posterior = tb.fit(model, data, method, start=start, **{"seed": 3, "callbacks": (), **options})
    assert isinstance(posterior, tb.Draws)
    return posterior


@pytest.mark.filterwarnings("ignore::torchbayes.posteriors.problems.ProblemWarning")
@often(tb.SGHMC)
def test_a_chain_that_diverges_goes_on_and_no_other_chain_sees_it(make: Any):
    together = fitted(make)
    for m, seed in enumerate(member_seeds(3, 3)):
        alone = fitted(make, STARTS[m : m + 1], seed=seed)
        assert_close(alone.weights_MSD[0], together.weights_MSD[m])
        assert ([] if m != 1 else ["diverged"]) == [problem.split()[2] for problem in alone.problems]
    assert [problem.split(" diverged")[0] for problem in together.problems] == ["chain 1"]
    assert (together.weights_MSD.abs() < 3).all()
    assert (together.weights_MSD[1, -1] - together.weights_MSD[1, 0]).abs().max() > 0


@pytest.mark.filterwarnings("ignore::torchbayes.posteriors.problems.ProblemWarning")
@often(tb.SGNHT)
def test_a_run_whose_chain_has_diverged_resumes_exactly(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    expected = fitted(make, directory=tmp_path / "whole")
    step, taken = make.step, itertools.count()

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if next(taken) == 50:
            raise KeyboardInterrupt
        return step(*args, **kwargs)

    with monkeypatch.context() as inside:
        inside.setattr("torchbayes.driver.run._EVERY", -1.0)
        inside.setattr("torchbayes.driver.run._SPARE", 0.0)
        inside.setattr(make, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fitted(make, directory=tmp_path / "cut")
    resumed = fitted(make, directory=tmp_path / "cut", resume=True)
    assert_same_tensors(resumed.tensors(), expected.tensors())
    assert resumed.problems == expected.problems
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")


@pytest.mark.filterwarnings("ignore::torchbayes.posteriors.problems.ProblemWarning")
@often(tb.SGLD)
def test_chains_of_sample_go_back_too_and_are_continued_exactly(make: Any):
    density = tb.FunctionDensity(lambda w: -(w.double() ** 4).sum(-1) / 4)
    start = torch.tensor([[0.5, 0.1], [60.0, 0.0]]).double()
    settings: dict[str, Any] = {"chains": 2, "burn_in": 0, "step_size": 0.01, "batch_size": None}
    whole = tb.sample(density, make(steps=240, **settings), start, seed=1, callbacks=())
    first = tb.sample(density, make(steps=100, **settings), start, seed=1, callbacks=())
    both = tb.sample(density, make(steps=240, **settings), resume=first, callbacks=())
    assert torch.equal(both.weights_MSD, whole.weights_MSD)
    assert both.problems == whole.problems
    assert "chain 1 diverged" in whole.problems[0]
    alone = tb.sample(density, make(steps=240, **{**settings, "chains": 1}), start[:1], seed=member_seeds(1, 2)[0])
    assert_close(alone.weights_MSD[0], whole.weights_MSD[0])
    assert whole["w"][1].abs().max() < 100


@often(tb.SGHMC)
def test_a_chain_that_finds_no_step_ends_alone(make: Any):
    """The density is infinite at the start of the last chain, and stays so."""
    start = torch.cat([STARTS[:1], torch.tensor([[60.0, 0.0]]).double()])
    with pytest.warns(tb.ProblemWarning, match="chain 1 diverged 8 times and ended at step 7"):
        both = fitted(make, start)
    first = fitted(make, start[:1], seed=member_seeds(3, 2)[0])
    assert_close(both.weights_MSD[0], first.weights_MSD[0])
    with pytest.raises(DivergedError, match=r"diverged at step 7 of 90.*each has gone back 7 times"):
        fitted(make, start[1:])


@makes
def test_a_chain_that_goes_back_begins_anew(make: Any):
    """At the sound weights, with neither momentum nor squares nor a friction that it had adapted, and a step of 0."""
    density = tb.FunctionDensity(lambda w: -(w.double() ** 4).sum(-1) / 4)
    method = make(chains=2, steps=20, burn_in=1, thin=1, step_size=0.05, batch_size=None, preconditioned=True)
    state: Any = method.init(density, start := normal(2, 3), seeds=(1, 2), steps_per_epoch=1)
    for _ in range(5):
        state, _ = method.step(density, state)
    lost = dataclasses.replace(state.track, strayed_M=torch.tensor([False, True]))
    back, info = method.step(density, dataclasses.replace(state, track=lost))
    assert info.divergent_M.tolist() == [0.0, 1.0]
    assert (back.track.begun, back.track.times) == ((0, 6), (0, 1))
    assert torch.equal(back.weights_MD[1], start[1])
    assert not back.momentum_MD[1:].any()
    assert not back.squares_MD[1].any()
    if make is tb.SGNHT:
        assert back.friction_M[1] == method.friction(density) != back.friction_M[0]
    again, info = method.step(density, back)
    assert_close(info.step_size_M, [0.05 * 6 / 100, 0.0])
    assert torch.equal(again.weights_MD[1], start[1])
    assert_close(again.squares_MD[1], start[1].double() ** 6)


def test_a_chain_has_diverged_a_thousand_nats_per_row_and_weight_below_its_start():
    """Over min(T, 1): a hot chain does not come back from where a cold one would not go."""
    rows, start_MD = (normal(12, 3), normal(12, 1, seed=1)), normal(2, 4, seed=2)
    batch = tb.Batch(*(part.expand(2, -1, -1) for part in rows))
    method: Any = tb.SGLD(chains=2, steps=6, burn_in=5, thin=1, step_size=1e-4, batch_size=12)
    for temperature, coldness in ((0.25, 4.0), (1.0, 1.0), (5.0, 1.0)):
        model = tb.Model(nn.Linear(3, 1).double(), tb.likelihoods.Gaussian(0.5), temperature=temperature)
        density = tb.LogDensity(model, 12, plan="loop")
        first_M = density(start_MD, batch).log_density
        state, _ = method.step(density, method.init(density, start_MD, {}, seeds=(1, 2)), batch)
        assert_close(state.track.bound_M, first_M - 1000 * (12 + 4) * coldness - 10 * first_M.abs())


def test_draws_of_a_chain_that_was_diverging_are_its_nearest_others():
    weights_MSD, steps = normal(2, 60, 3), [10 * s for s in range(1, 61)]
    actual = mended(weights_MSD, steps, [[], [305, 590]])
    assert torch.equal(actual[0], weights_MSD[0])
    for s, step in enumerate(steps):
        sound = [i for i, at in enumerate(steps) if not (105 < at <= 305 or 390 < at <= 590)]
        nearest = min(sound, key=lambda i: (abs(i - s), i))
        assert torch.equal(actual[1, s], weights_MSD[1, nearest]), step
    assert mended(weights_MSD, steps, [[], []]) is weights_MSD
    assert torch.equal(mended(weights_MSD[:, :5], steps[:5], [[50], []]), weights_MSD[:, :5])  # there are no others


def test_what_is_told_of_chains_that_diverged():
    end = "from where it was sound with {} the step size (take smaller steps)"
    assert diverged([[], [3004], [1, 5, 1200], list(range(8))], MOST) == [
        f"chain 1 diverged once, at step 3,004, and went on {end.format('half')}",
        f"chain 2 diverged 3 times, first at step 1, and went on {end.format('1/8 of')}",
        "chain 3 diverged 8 times and ended at step 7 (take smaller steps)",
    ]
