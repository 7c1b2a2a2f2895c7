"""HMC and what it shares with NUTS: adaptation, lengths of trajectories, energies, walls, detailed balance."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from tests.covering import some_of, with_studies
from tests.oracles import assert_close, normal
from tests.targets import assert_expectations, mixture25, skewed
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.diagnostics import ess
from torchbayes.driver.sample import run_chains
from torchbayes.methods.mcmc import hamiltonian, metropolis, trees
from torchbayes.methods.mcmc.adaptation import RunningVariance, StepSize, windows
from torchbayes.methods.noise import normals
from torchbayes.methods.sampler import Sampler
from torchbayes.randomness.seeds import Purpose, member_seeds


def gaussian(scales: Tensor | float = 1.0) -> tb.FunctionDensity:
    """Independent normals; scales (M, D) give each chain its own target."""
    return tb.FunctionDensity(lambda w: -0.5 * (w.double() / scales).square().sum(1))


def network(prior: Any = None, **settings: Any) -> tb.LogDensity:
    """A small classifier with 14 rows; its layers have 6, 3, 6 and 2 weights."""
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    model = tb.Model(net, tb.likelihoods.Categorical(), prior or tb.priors.Normal(1.0), **settings)
    inputs = normal(14, 2, seed=3)
    return tb.LogDensity(model, 14, tb.Batch(inputs, (inputs[:, 0] > 0).long()), plan="loop")


def trace(density: Any, method: Any, start_MD: Tensor, steps: int) -> tuple[Any, Tensor, list[Any]]:
    """The state after some steps, the weights after each of them (S, M, D), and what each step saw."""
    state, weights, infos = method.init(density, start_MD, seeds=member_seeds(0, len(start_MD))), [], []
    for _ in range(steps):
        state, info = method.step(density, state)
        weights.append(state.weights_MD)
        infos.append(info.means())
    return state, torch.stack(weights), infos


# --- adaptation ---

SCALES = torch.logspace(-2, 2, 8, dtype=torch.float64)


@pytest.mark.slow
# the equations of `test_dual_averaging_follows_its_equations`
@pytest.mark.study
@pytest.mark.parametrize("target", [0.6, 0.9])
def test_dual_averaging_meets_its_target_in_every_chain(target: float):
    """Chains of a scale from 0.01 to 100, five leapfrog steps each."""
    scales_MD = SCALES[:, None] * torch.linspace(1.0, 2.0, 10, dtype=torch.float64)
    method = tb.HMC(8, 1300, 1000, trajectory=1e9, max_leapfrogs=5, target_acceptance=target)
    chains = run_chains(gaussian(scales_MD), method, scales_MD * normal(8, 10), seed=1)
    assert (chains.numbers["gradients"] == 5).all()
    # it is held while the step size moves; where it no longer does, it is 0.04 more at a target of 0.6, by all chains
    # together: the chains alone scatter by 0.015
    held_MS = chains.numbers["acceptance"][:, 300:1000]
    assert_close(held_MS.mean(1), torch.full((8,), target, dtype=torch.float64), rtol=0, atol=0.02)
    assert_close(chains.numbers["acceptance"][:, 1000:].mean(), held_MS.mean(), rtol=0, atol=0.06)
    # the chains have one problem in different units
    relative_M = chains.numbers["step_size"][:, -1] / SCALES
    assert_close(relative_M / relative_M.mean(), torch.ones(8), rtol=0, atol=0.1)


@pytest.mark.study  # the equations of the next test
@pytest.mark.parametrize("target", [0.7, 0.9])
def test_trees_meet_their_target_after_burn_in(target: float):
    """With the γ = 0.05 of Hoffman and Gelman it was 0.88 to 0.93 for 0.8, with steps too short by a third."""
    method = tb.NUTS(48, 150, 110, target_acceptance=target)
    acceptance_MS = tb.sample(gaussian(), method, normal(48, 5), callbacks=()).numbers["acceptance"]
    assert acceptance_MS[:, 110:].mean() == pytest.approx(target, abs=0.05)


def test_dual_averaging_follows_its_equations():
    """Hoffman and Gelman (2014), equation 6 and algorithm 5, with γ = 0.2 and μ = log ε_1, while no bound is met."""
    noise = torch.rand(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    memory, accepted = StepSize.at(torch.tensor([0.3, 7.0])), []
    for row in noise:
        accepted.append(0.3 * row + 0.7 * (-memory.step_size_M / torch.tensor([0.3, 7.0])).exp())
        memory = memory.adapted(accepted[-1], 0.6)
    for chain, first in enumerate((0.3, 7.0)):
        error, log_average = 0.0, math.log(first)
        log_step = log_average
        for t in range(1, 41):
            error = (1 - 1 / (t + 10)) * error + (0.6 - float(accepted[t - 1][chain])) / (t + 10)
            log_step = math.log(first) - math.sqrt(t) / 0.2 * error
            assert abs(log_step - log_average) < math.log(10)
            log_average = t**-0.75 * log_step + (1 - t**-0.75) * log_average
        assert float(memory.step_size_M[chain]) == pytest.approx(math.exp(log_step), rel=1e-6)
        assert float(memory.settled().step_size_M[chain]) == pytest.approx(math.exp(log_average), rel=1e-6)


@pytest.mark.parametrize("acceptance", [0.0, 1.0])
@pytest.mark.parametrize("longest", [0.5, math.inf])
def test_dual_averaging_does_not_wind_up(acceptance: float, longest: float):
    """Where a step size has no effect for a thousand iterations, it is back after a hundred in which it has."""
    memory = StepSize.at(torch.tensor([0.3]))
    for _ in range(1000):
        before, memory = memory, memory.adapted(torch.tensor([acceptance]), 0.8, longest=longest)
        assert 0.0999 < float(memory.step_size_M / before.average_M.exp()) < 10.001
        assert 3e-7 * 0.999 < float(memory.step_size_M) < min(3e5, longest) * 1.001
    wound = memory.step_size_M
    for _ in range(100):
        memory = memory.adapted(torch.tensor([1 - acceptance]), 0.8, longest=longest)
    turn = memory.step_size_M / wound
    assert turn > 2 if acceptance == 0 else turn < 0.5


@pytest.mark.parametrize("offset", [0.0, 1e8])
def test_the_running_variance_is_that_of_numpy(offset: float):
    """Also far from zero, where the difference of two large squares would have no digit left."""
    weights_SMD = offset + normal(200, 2, 3)
    spread = RunningVariance.empty(weights_SMD[0])
    for weights_MD in weights_SMD:
        spread = spread.collect(weights_MD)
    exact_MD = np.var(weights_SMD.numpy(), axis=0, ddof=1)
    assert spread.count == 200
    assert_close(spread.mean_MD, weights_SMD.numpy().mean(0), rtol=1e-14)
    assert_close(spread.squares_MD / 199, torch.from_numpy(exact_MD), rtol=1e-7)
    shrunk_MD = (200 * exact_MD + 5e-3 * exact_MD.mean(1, keepdims=True)) / 205
    assert_close(spread.inverse_mass(), torch.from_numpy(shrunk_MD), rtol=1e-7)


def test_the_first_step_size_is_where_one_leapfrog_is_accepted_half_the_time():
    """Halving and doubling from 0.1, chain by chain in plain numbers, on N(0, s²): 0.1 is too large or too small."""
    scales = [1e-4, 0.03, 0.05, 1.0, 700.0]
    scales_MD = torch.tensor(scales).double()[:, None].expand(-1, 4)
    start_MD, inverse_mass_MD = scales_MD * normal(5, 4), normal(5, 4, seed=1).exp()
    target, seeds = gaussian(scales_MD), [3, 1, 4, 1, 5]
    found_M = hamiltonian.first_step_size(
        target, start_MD, target(start_MD), inverse_mass_MD=inverse_mass_MD, seeds=seeds
    )
    momentum_MD = normals(seeds, Purpose.FIRST_STEP, 0, like=start_MD) / inverse_mass_MD.sqrt()
    for m, scale in enumerate(scales):
        weights, momentum, mass = (each[m].numpy() for each in (start_MD, momentum_MD, inverse_mass_MD))

        def easy(step: float) -> bool:
            half = momentum - step / 2 * weights / scale**2  # noqa: B023
            end = weights + step * mass * half  # noqa: B023
            last = half - step / 2 * end / scale**2  # noqa: B023
            before, after = (
                -0.5 * ((w / scale) ** 2).sum() - 0.5 * (mass * p**2).sum()  # noqa: B023
                for w, p in ((weights, momentum), (end, last))  # noqa: B023
            )
            return after - before > math.log(0.5)

        step, first = 0.1, easy(0.1)
        while easy(step) == first:
            step *= 2.0 if first else 0.5
        assert float(found_M[m]) == step
    assert found_M.min() < 0.01
    assert found_M.max() > 10


def test_a_first_step_size_is_found_beside_a_wall():
    """A step that leaves the support is too long: it is halved until it stays inside."""
    start_MD = torch.tensor([[1e-3, 0.5], [2.0, 0.5]]).double()
    state = tb.NUTS(2).init(walled("infinite"), start_MD, seeds=[0, 3])
    near, far = state.step_size.step_size_M.tolist()
    assert 0 < near < far < 10


@pytest.mark.parametrize("burn_in", [*range(20, 120), 200, 333, 499, 1000, 12345])
def test_windows_double_between_what_finds_the_bulk_and_what_settles_the_step_size(burn_in: int):
    first, ends = windows(burn_in)
    lengths = [end - begin for begin, end in pairwise((first, *ends))]
    assert (first, burn_in - ends[-1]) == (min(10, 3 * burn_in // 20), min(50, burn_in // 5))
    assert all(length == 15 * 2**number for number, length in enumerate(lengths[:-1]))
    assert len(lengths) == 1 or 1 <= lengths[-1] / (2 * lengths[-2]) < 3
    assert lengths[-1] > burn_in // 3  # most of what is learned comes from the last


def test_windows_of_a_thousand_steps():
    assert windows(1000) == (10, (25, 55, 115, 235, 950))
    assert windows(200) == (10, (25, 55, 160))
    assert windows(20) == (3, (16,))


@pytest.mark.parametrize("make", [tb.HMC, tb.NUTS])
def test_a_step_size_is_found_anew_after_a_window(make: Callable[..., Sampler]):
    """The first mass changes the units of N(0, 0.01²) from 0.01 to 1, and the step size with them."""
    scales_MD = torch.full((2, 3), 1e-2).double()
    method: Any = make(2, 60, 50, **({"trajectory": 0.15, "mass": "diagonal"} if make is tb.HMC else {}))
    end = windows(50)[1][0]
    state, _, infos = trace(gaussian(1e-2), method, scales_MD * normal(2, 3), end + 1)
    assert infos[end - 1]["step_size"].max() < 0.05
    assert infos[end]["step_size"].min() > 0.1
    assert state.step_size.count == 1


def test_a_burn_in_too_short_for_windows_has_none():
    assert all(windows(burn_in) == (burn_in, ()) for burn_in in range(20))


@pytest.mark.slow
# trees learn by the same windows, as `test_a_step_size_is_found_anew_after_a_window` sees
@pytest.mark.parametrize("make", [tb.HMC, pytest.param(tb.NUTS, marks=pytest.mark.study)])
def test_the_diagonal_mass_is_the_shrunk_variance_of_the_last_window(make: Callable[..., Sampler]):
    """(n s² + 5 · 0.001 · mean of s²)/(n + 5) with n and s² of the window's weights."""
    scales_D = torch.tensor([0.3, 1.0, 3.0]).double()
    settings = {"trajectory": 1.5, "jitter": 0.3} if make is tb.HMC else {"max_doublings": 5}
    state, weights_SMD, infos = trace(
        gaussian(scales_D), make(4, 201, 200, mass="diagonal", **settings), scales_D * normal(4, 3), 201
    )
    begin, end = windows(200)[1][-2:]
    variance_MD, count = weights_SMD[begin:end].var(0), end - begin
    assert_close(
        state.inverse_mass_MD, (count * variance_MD + 5e-3 * variance_MD.mean(1, True)) / (count + 5), rtol=1e-8
    )
    assert_close(state.inverse_mass_MD / scales_D**2, torch.ones(4, 3), rtol=0, atol=0.5)
    assert (state.inverse_mass_MD / scales_D**2).mean() == pytest.approx(1.0, abs=0.15)
    assert infos[-1]["step_size"].min() > 0.5  # that of N(0, 1), not of N(0, 0.09)


def test_the_mass_of_a_layer_is_the_mean_variance_of_its_weights():
    density = network()
    method = tb.HMC(2, 60, 50, trajectory=1.0, mass="layer")
    first, (end,) = windows(50)
    state, weights_SMD, _ = trace(density, method, normal(2, 17), 50)
    variance_MD, count = weights_SMD[first:end].var(0), end - first
    for where in density.model.layout.slices.values():
        variance_MD[:, where] = variance_MD[:, where].mean(1, True)
    expected_MD = (count * variance_MD + 5e-3 * variance_MD.mean(1, True)) / (count + 5)
    assert_close(state.inverse_mass_MD, expected_MD, rtol=1e-8)
    assert [len(state.inverse_mass_MD[0, where].unique()) for where in density.model.layout.slices.values()] == [1] * 4


@pytest.mark.parametrize(
    ("make", "tempering"), some_of([tb.HMC, tb.NUTS, tb.MALA, tb.RandomWalk], ["joint", "likelihood"], one_in=2)
)
def test_the_mass_of_the_prior_is_its_tempered_precision(make: Callable[..., Sampler], tempering: str):
    prior = {"0.*": tb.priors.Normal(0.5), "*": tb.priors.Normal(2.0)}
    density = network(prior, temperature=0.25, tempering=tempering)
    state, _, _ = trace(density, make(2, 6, 5, mass="prior"), 0.1 * normal(2, 17), 6)
    expected_D = torch.tensor([0.5**2] * 9 + [2.0**2] * 8).double() * (0.25 if tempering == "joint" else 1.0)
    assert_close(state.inverse_mass_MD, expected_D.expand(2, -1))


@pytest.mark.slow
# trees learn by the same code, and each chain has those of a recursive NUTS, draw by draw
@pytest.mark.parametrize("make", [tb.HMC, pytest.param(tb.NUTS, marks=pytest.mark.study)])
def test_chains_share_nothing_of_what_they_learn(make: Callable[..., Sampler]):
    scales_MD = torch.tensor([[0.1, 1.0], [1.0, 1.0], [50.0, 3.0]]).double()
    if make is tb.NUTS:  # which asks for some of the chains at a time: the target is a function of the weights alone
        scales_MD = torch.tensor([0.5, 3.0]).double().expand(3, -1)
    method = make(3, 40, 25, mass="diagonal", **({"trajectory": 1.5} if make is tb.HMC else {}))
    together, _, _ = trace(gaussian(scales_MD[:1] if make is tb.NUTS else scales_MD), method, scales_MD, 32)
    for m, seed in enumerate(member_seeds(0, 3)):
        density = gaussian(scales_MD[m : m + 1])
        state = method.init(density, scales_MD[m : m + 1], seeds=[seed])
        for _ in range(32):
            state, _ = method.step(density, state)
        assert_close(state.inverse_mass_MD[0], together.inverse_mass_MD[m], rtol=1e-8)
        assert_close(state.step_size.step_size_M[0], together.step_size.step_size_M[m], rtol=1e-8)


def test_a_chain_that_stood_still_for_a_window_moves_again():
    """A step size that is too large for the target: nothing is accepted, so the variances cannot be estimated."""
    method = tb.HMC(2, 40, 30, step_size=2.5, trajectory=25.0, mass="diagonal")
    state, _, infos = trace(gaussian(), method, normal(2, 3), 31)
    assert (state.inverse_mass_MD > 0).all()
    assert torch.isfinite(infos[-1]["energy"]).all()


@pytest.mark.parametrize("make", [tb.HMC, tb.NUTS, tb.MALA, tb.RandomWalk])
def test_a_mass_for_each_layer_is_refused_where_there_are_none(make: Callable[..., Sampler]):
    settings = {"trajectory": 1.0} if make is tb.HMC else {}
    with pytest.raises(ValueError, match="layer"):
        make(2, 30, 25, mass="layer", **settings).init(gaussian(), normal(2, 3), seeds=[0, 1])


# --- trajectories ---


@pytest.mark.parametrize(
    ("tempering", "mass", "expected"),
    [("joint", "unit", 2.0 * 0.5), ("likelihood", "unit", 2.0), ("joint", "prior", 1.0), ("joint", "diagonal", 1.0)],
)
def test_a_trajectory_is_a_quarter_of_the_period_of_the_widest_prior(tempering: str, mass: Any, expected: float):
    """(π/2) σ √T with σ = 2 and T = 1/4; with a mass that sets the units, π/2."""
    density = network({"0.*": tb.priors.Normal(0.5), "*": tb.priors.Normal(2.0)}, temperature=0.25, tempering=tempering)
    length, actual = math.pi / 2 * expected, []
    for factor in (1 - 1e-6, 1.0, 1 + 1e-6):
        method = tb.HMC(1, 30, 25, step_size=factor * length / 7, mass=mass)
        actual.append(float(trace(density, method, 0.1 * normal(1, 17), 1)[2][0]["gradients"]))
    assert actual == [8, 7, 7]


@pytest.mark.parametrize(
    ("make", "settings", "advice"),
    [
        (tb.HMC, {}, "Give `trajectory`, or choose another mass"),
        (tb.HMC, {"mass": "prior"}, "Choose another mass"),
        (tb.HMC, {"mass": "prior", "trajectory": 1.0}, "Choose another mass"),
        (tb.NUTS, {"mass": "prior"}, "Choose another mass"),
        (tb.MALA, {"mass": "prior"}, "Choose another mass"),
        (tb.RandomWalk, {"mass": "prior"}, "Choose another mass"),
    ],
)
@pytest.mark.parametrize("density", [gaussian(), network(tb.priors.Flat())], ids=["function", "flat"])
def test_what_is_derived_from_a_prior_needs_one(make: Any, settings: dict[str, Any], advice: str, density: Any):
    size = 17 if isinstance(density, tb.LogDensity) else 3
    said = rf"prior's standard deviation, which is infinite or not known here. {advice}"
    with pytest.raises(ValueError, match=said):
        make(1, step_size=0.1, **settings).init(density, normal(1, size), seeds=[0])


def test_where_no_prior_gives_a_length_the_mass_is_adapted():
    """In `sample` of a bare density it is diagonal."""
    scales_D = torch.tensor([0.01, 1.0, 10.0]).double()
    start_MD, density = scales_D * normal(2, 3), gaussian(scales_D)
    unit, adapted = (tb.HMC(2, 27, 25, max_leapfrogs=10, mass=mass) for mass in ("unit", "diagonal"))
    alike = [tb.sample(density, method, start_MD) for method in (unit, adapted)]
    assert torch.equal(alike[0].weights_MSD, alike[1].weights_MSD)


@pytest.mark.study  # the chains above are those of a diagonal mass, which `test_moments_from_a_dispersed_start` has
def test_where_no_prior_gives_a_length_chains_have_their_moments():
    scales_D = torch.tensor([0.01, 1.0, 10.0]).double()
    chains = tb.sample(gaussian(scales_D), tb.HMC(192, 110, 80), scales_D * normal(192, 3), callbacks=())
    values = torch.cat([chains.weights_MSD / scales_D, (chains.weights_MSD / scales_D) ** 2], -1)
    expected_F, within_F = torch.tensor([0.0, 1.0]).double().repeat_interleave(3), torch.full((6,), 0.3).double()
    labels = [f"{name} {number}" for name in ("mean", "square") for number in range(3)]
    assert_expectations(values, expected_F, within_F=within_F, labels=labels)


@pytest.mark.study  # `test_a_quarter_of_a_period_changes_energies` says what a gradient is worth
def test_where_no_prior_gives_a_length_an_effective_draw_costs_at_most_three_times_that_of_trees():
    scales_D = torch.tensor([0.01, 1.0, 10.0]).double()
    start_MD = scales_D * normal(96, 3)
    chains = tb.sample(gaussian(scales_D), tb.HMC(96, 200, 120), start_MD, callbacks=())
    trees = tb.sample(gaussian(scales_D), tb.NUTS(24, 200, 120, max_doublings=5), start_MD[:24], callbacks=())
    worth, other_worth = (ess(c.weights_MSD**2).min() for c in (chains, trees))
    paid, other_paid = (c.numbers["gradients"][:, 120:].sum() for c in (chains, trees))
    assert paid / worth < 3 * other_paid / other_worth


@pytest.mark.parametrize("settings", [{"trajectory": 1.0}, {"mass": "dense"}, {"mass": "diagonal", "trajectory": 1.0}])
def test_settings_that_need_no_prior_are_kept_without_one(settings: dict[str, Any]):
    assert tb.HMC(**settings).without_prior is None


def test_a_mass_is_not_adapted_where_there_is_a_prior():
    chains = tb.sample(network(), tb.HMC(2, 30, 25), normal(2, 17), callbacks=())
    assert (chains.state.inverse_mass_MD == 1).all()


@pytest.mark.parametrize(
    ("trajectory", "step_size", "bound", "leapfrogs", "used"),
    [
        (1.0, 0.3, 99, 4, 0.25),
        (1.0, 0.25, 99, 4, 0.25),
        (0.3, 0.1, 99, 3, 0.1),
        (0.1, 0.3, 99, 1, 0.1),
        (1.0, 0.01, 7, 7, 0.01),
        (1.0, 0.9, 1, 1, 0.9),
    ],
)
def test_as_many_leapfrogs_fill_the_trajectory_as_are_needed(
    trajectory: float, step_size: float, bound: int, leapfrogs: int, used: float
):
    """No longer than ε, and together as long as the trajectory, unless they would be too many."""
    rows: list[int] = []
    density = tb.FunctionDensity(lambda w: rows.append(len(w)) or gaussian()._function(w))  # type: ignore[func-returns-value]
    method = tb.HMC(3, 20, 0, step_size=step_size, trajectory=trajectory, max_leapfrogs=bound)
    chains = tb.sample(density, method, normal(3, 2))
    assert (chains.numbers["gradients"] == leapfrogs).all()
    assert_close(chains.numbers["step_size"], torch.full((3, 20), used, dtype=torch.float64))
    assert rows == [3] * (1 + 20 * leapfrogs)  # what is reported is what was paid


@pytest.mark.parametrize("step_size", [0.9, pytest.param(0.2, marks=pytest.mark.study)])
def test_jitter_stretches_trajectories_uniformly_and_each_chain_by_itself(step_size: float):
    method = tb.HMC(4, 200, 0, step_size=step_size, trajectory=1.0, jitter=0.4)
    numbers = tb.sample(gaussian(), method, normal(4, 1)).numbers
    length_MS = numbers["gradients"] * numbers["step_size"]
    assert numbers["step_size"].max() <= step_size
    assert scipy.stats.kstest((length_MS.flatten() - 0.6) / 0.8, "uniform").pvalue > 1e-4
    assert torch.corrcoef(length_MS).triu(1).abs().max() < 0.3


def test_steps_are_halved_geometrically_and_each_chain_by_itself():
    method = tb.HMC(16, 125, 0, step_size=0.5, trajectory=1.0, halvings=2)
    numbers = tb.sample(gaussian(), method, normal(16, 1)).numbers
    halvings_MS = (0.5 / numbers["step_size"]).log2()
    assert_close(numbers["gradients"], 2 * 2**halvings_MS)
    counts = torch.bincount(halvings_MS.round().long().flatten(), minlength=3)
    assert scipy.stats.chisquare(counts.numpy(), [1000, 500, 500]).pvalue > 1e-4
    assert torch.corrcoef(halvings_MS).triu(1).abs().max() < 0.4  # of 120 pairs, each with an error of 0.09
    with pytest.raises(ValueError, match="`halvings` must be a whole number of at least 0"):
        tb.HMC(halvings=-1)


@pytest.mark.parametrize(("size", "jitter"), with_studies([(2, 0.2)], (2, 3), (0.0, 0.2)))
def test_a_quarter_of_a_period_changes_energies(size: int, jitter: float):
    """On N(0, I) draws a quarter of a period apart are independent, and their squares too: ESS near the draws.

    Of half a period nothing would be left but the change of sign, and squares would keep their values.
    """
    method = tb.HMC(8, 450, 200, trajectory=math.pi / 2, jitter=jitter)
    chains = tb.sample(gaussian(), method, normal(8, size))
    kept = {name: numbers[:, 200:] for name, numbers in chains.numbers.items()}
    lengths_MS = kept["gradients"] * kept["step_size"]
    assert ((lengths_MS / (math.pi / 2) - 1).abs() <= jitter + 1e-9).all()
    assert kept["acceptance"].mean(1).min() > 0.6 - 0.05
    assert (ess(chains.weights_MSD**2) > 0.5 * 2000).all()


def test_a_burn_in_that_meets_small_steps_does_bounded_work():
    """Chains in the tails of a mixture, whose first proposals are all rejected: none pays ten thousand leapfrogs."""
    start_MD = 10 * (2 * torch.rand(8, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64) - 1)
    method = tb.HMC(8, 11, 10, trajectory=10.0, leapfrogs_in_burn_in=20, max_leapfrogs=100)
    leapfrogs_MS = tb.sample(mixture25().density(), method, start_MD).numbers["gradients"]
    assert leapfrogs_MS[:, :10].max() == 20
    given = tb.HMC(2, 6, 5, trajectory=2.0, step_size=0.05, leapfrogs_in_burn_in=20)
    assert (tb.sample(mixture25().density(), given, start_MD[:2]).numbers["gradients"] == 40).all()
    assert replace(method, max_leapfrogs=10).leapfrogs_in_burn_in == 20  # the smaller of the two counts
    few = tb.sample(mixture25().density(), replace(method, max_leapfrogs=10), start_MD).numbers["gradients"]
    assert few.max() == 10


def test_without_jitter_all_trajectories_are_equal():
    chains = tb.sample(gaussian(), tb.HMC(4, 50, 0, step_size=0.1, trajectory=1.0), normal(4, 1))
    assert (chains.numbers["gradients"] == 10).all()


def test_whatever_comes_in_burn_in_may_be_accepted_unless_it_is_not_finite():
    wall = tb.FunctionDensity(lambda w: torch.where(w[:, 0] < 3.0, -0.5 * w.double().square().sum(1), -torch.inf))
    method = tb.HMC(20, 60, 30, step_size=1.7, trajectory=5.0, accept_in_burn_in=True)
    _, weights_SMD, infos = trace(wall, method, 0.1 * normal(20, 50), 60)
    stayed = (weights_SMD[1:] == weights_SMD[:-1]).all(-1)
    acceptance, divergent = (torch.stack([seen[name] for seen in infos[1:]]) for name in ("acceptance", "divergent"))
    assert acceptance.mean() < 0.5
    assert (weights_SMD[..., 0] < 3.0).all()
    assert divergent[:29].sum() > 0
    assert torch.equal(stayed[:29], divergent[:29] == 1)
    assert stayed[29:].double().mean() == pytest.approx(1 - float(acceptance[29:].mean()), abs=0.08)


# --- energies and walls ---


@pytest.mark.parametrize(
    ("make", "mass"), with_studies([(tb.HMC, "diagonal"), (tb.NUTS, "unit")], (tb.HMC, tb.NUTS), ("unit", "diagonal"))
)
def test_the_energy_is_that_of_the_start_with_its_new_momentum(make: Callable[..., Sampler], mass: str):
    scales, settings = torch.tensor([0.5, 1.0, 2.0]).double(), {"trajectory": 1.0} if make is tb.HMC else {}
    burn_in = 30 if mass == "diagonal" else 4  # a mass is learned in windows
    method: Any = make(200, burn_in + 1, burn_in, mass=mass, **settings)
    state, _, _ = trace(gaussian(scales), method, scales * normal(200, 3), burn_in + 1)
    momentum_MD = hamiltonian.momenta(state, state.inverse_mass_MD)
    _, info = method.step(gaussian(scales), state)
    expected_M = 0.5 * (state.weights_MD / scales).square().sum(1)
    expected_M += 0.5 * (momentum_MD.square() * state.inverse_mass_MD).sum(1)
    assert_close(info.means()["energy"], expected_M)
    standard = (momentum_MD * state.inverse_mass_MD.sqrt()).flatten()  # momenta are N(0, M)
    assert scipy.stats.kstest(standard, "norm").pvalue > 1e-4


def walled(kind: str) -> tb.FunctionDensity:
    """N(0, I) in two dimensions, cut off where the first coordinate is negative."""

    def log_density(weights_MD: Tensor) -> Tensor:
        inside_M = -0.5 * weights_MD.double().square().sum(1)
        if kind == "nan":  # and so is its gradient
            return inside_M + 0.0 * weights_MD[:, 0].double().sqrt()
        return torch.where(weights_MD[:, 0] > 0, inside_M, -torch.inf)

    return tb.FunctionDensity(log_density)


def test_a_wall_does_not_shrink_the_step_size():
    """For a half-normal a good share of proposals leaves the support, whatever the step size."""
    half = tb.FunctionDensity(lambda w: torch.where((w > 0).all(1), -0.5 * w.double().square().sum(1), -torch.inf))
    chains = tb.sample(half, tb.HMC(4, 250, 150, trajectory=1.0), torch.ones(4, 3).double())
    assert chains.numbers["acceptance"].mean() < 0.8  # the target
    assert chains.numbers["gradients"][:, 150:].max() < 10


def test_steps_too_long_for_a_smooth_density_are_no_walls():
    """exp overflows to a density of zero, but the momentum shows a divergence: the step size must fall."""
    steep = tb.FunctionDensity(lambda w: -w.double().exp().sum(1) - (-w.double()).exp().sum(1))
    method = tb.HMC(4, 150, 100, trajectory=20.0)
    density, starts_MD = steep, torch.zeros(4, 2).double()
    state = method.init(density, starts_MD, seeds=[0, 1, 2, 3])
    state = replace(state, step_size=StepSize.at(torch.full((4,), 20.0).double()))
    for _ in range(60):
        state, _ = method.step(density, state)
    assert (state.step_size.step_size_M < 3).all()


# the random walk at a wall is MALA without slopes; trees at one are those of a recursive NUTS
AT_WALLS = [("hmc", "infinite"), ("mala", "nan")]
WALLED: dict[str, Callable[..., Sampler]] = {
    "hmc": lambda steps: tb.HMC(600, steps, 0, step_size=0.5, trajectory=1.2, jitter=0.5),
    "nuts": lambda steps: tb.NUTS(600, steps, 0, step_size=0.5, mass="unit"),
    "mala": lambda steps: tb.MALA(600, 4 * steps, 0, step_size=1.0),
    "random walk": lambda steps: tb.RandomWalk(600, 4 * steps, 0, step_size=1.5),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), with_studies(AT_WALLS, WALLED, ("infinite", "nan")))
def test_a_wall_rejects_is_counted_and_leaves_the_truncated_law(name: str, kind: str):
    make = WALLED[name]
    chains = tb.sample(walled(kind), make(60), normal(600, 2).abs(), seed=1)
    draws_MSD, divergent_MS = chains.weights_MSD, chains.numbers["divergent"]
    assert (draws_MSD[..., 0] > 0).all()
    assert torch.isfinite(chains.numbers["log_density"]).all()
    assert 0.05 < divergent_MS.mean() < 0.9
    if not isinstance(make(60), tb.NUTS):  # of whose trajectories the part before the wall is as good as any
        stayed_MS = (draws_MSD[:, 1:] == draws_MSD[:, :-1]).all(-1)
        assert stayed_MS[divergent_MS[:, 1:] == 1].all()
        assert (chains.numbers["acceptance"][divergent_MS == 1] == 0).all()
    values = torch.cat([draws_MSD, draws_MSD**2], -1)
    expected = torch.tensor([math.sqrt(2 / math.pi), 0.0, 1.0, 1.0]).double()
    within = torch.full((4,), 0.1).double()
    assert_expectations(values, expected, within_F=within, labels=["half-normal", "free", "its square", "square"])


@pytest.mark.parametrize("make", WALLED.values(), ids=WALLED.keys())
def test_a_log_density_of_plus_infinity_is_rejected_too(make: Callable[..., Sampler]):
    broken = tb.FunctionDensity(lambda w: torch.where(w[:, 0] < 0, torch.inf, -0.5 * w.double().square().sum(1)))
    chains = tb.sample(broken, make(8), normal(600, 2).abs())
    assert (chains.weights_MSD[..., 0] > 0).all()


@pytest.mark.parametrize("make", WALLED.values(), ids=WALLED.keys())
def test_chains_cannot_start_behind_a_wall(make: Callable[..., Sampler]):
    start = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]).double()
    for kind, seen in (("infinite", "-inf"), ("nan", "nan")):
        with pytest.raises(ValueError, match=rf"not finite where chain 1 starts: {seen}. Look for extreme values"):
            make(10).init(walled(kind), start, seeds=[0, 1])


# --- the law ---


@pytest.mark.parametrize("step_size", [0.1, 0.9])
def test_one_leapfrog_is_mala(step_size: float, monkeypatch: pytest.MonkeyPatch):
    """Given one noise, momentum or proposal, the chains are the same."""
    monkeypatch.setattr(metropolis, "Purpose", SimpleNamespace(LANGEVIN=Purpose.MOMENTUM))
    density, start = skewed().density(), skewed().mean_D + 0.3 * normal(4, 4)
    mala = tb.sample(density, tb.MALA(4, 60, 0, step_size=step_size), start)
    hmc = tb.sample(density, tb.HMC(4, 60, 0, step_size=step_size, trajectory=step_size), start)
    assert_close(hmc.weights_MSD, mala.weights_MSD)
    assert_close(hmc.numbers["acceptance"], mala.numbers["acceptance"])
    assert 0.2 < hmc.numbers["acceptance"].mean() < 0.9999


PAIRS = 12_000
REVERSIBLE: dict[str, Sampler] = {
    "hmc": tb.HMC(PAIRS, 2, 1, step_size=0.9, trajectory=2.0, jitter=0.3),
    "hmc of many steps": tb.HMC(PAIRS, 2, 1, step_size=1.2, trajectory=1.2, halvings=3),
    "nuts": tb.NUTS(PAIRS, 2, 1, step_size=0.9, mass="unit"),
    "mala": tb.MALA(PAIRS, 2, 1, step_size=1.0),
    "random walk": tb.RandomWalk(PAIRS, 2, 1, step_size=0.8),
}


def imbalance(method: Sampler) -> float:
    """Largest |E[f(w) g(w') − f(w') g(w)]| in standard errors, from exact draws w and one step w' of each."""
    target = skewed()
    assert target.sample is not None
    before = target.sample(PAIRS, 5)
    after = tb.sample(target.density(), method, before, seed=3).weights_MSD[:, 0]
    assert ((after != before).all(1)).double().mean() > 0.3
    worst = 0.0
    for f, g in ((torch.ones_like, torch.tanh), (torch.tanh, torch.square), (torch.sign, torch.exp)):
        gap = f(before) * g(after).clamp(max=20) - f(after) * g(before).clamp(max=20)
        worst = max(worst, float((gap.mean(0) / (gap.std(0) / PAIRS**0.5)).abs().max()))
    return worst


@pytest.mark.slow
@pytest.mark.parametrize("method", REVERSIBLE.values(), ids=REVERSIBLE.keys())
def test_detailed_balance(method: Sampler):
    """Two successive states in equilibrium are exchangeable: 12 comparisons, alpha 1e-4 in all."""
    assert imbalance(method) < 4.5


@pytest.mark.parametrize("name", ["hmc", "mala", "random walk"])
def test_detailed_balance_misses_a_metropolis_test_that_is_left_out(name: str, monkeypatch: pytest.MonkeyPatch):
    everywhere = lambda log_ratio_M, *_: (torch.ones_like(log_ratio_M) > 0, torch.ones_like(log_ratio_M))  # noqa: E731
    for where in ("hmc", "metropolis"):
        monkeypatch.setattr(f"torchbayes.methods.mcmc.{where}.metropolis", everywhere)
    assert imbalance(REVERSIBLE[name]) > 4.5


@pytest.mark.slow
def test_detailed_balance_misses_the_turns_of_subtrees(monkeypatch: pytest.MonkeyPatch):
    never = lambda self, _: torch.zeros_like(self.chain_L, dtype=torch.bool)  # noqa: E731
    monkeypatch.setattr(trees._Subtree, "turned", never)
    assert imbalance(REVERSIBLE["nuts"]) > 4.5
