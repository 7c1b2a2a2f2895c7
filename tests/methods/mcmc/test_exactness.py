"""Samplers against exact answers: moments, quantiles and stationary laws, within Monte-Carlo error."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from tests.covering import with_studies
from tests.oracles import assert_close, normal
from tests.targets import (
    NoisyGradient,
    Target,
    assert_moments,
    assert_quantiles,
    correlated_gaussian,
    funnel,
    linear_regression,
    logistic_regression,
    mixture25,
    mode_shares,
    skewed,
)
from torch import Tensor

import torchbayes as tb
from torchbayes.methods.sampler import Sampler, retained_steps

Make = Callable[..., Sampler]


def dispersed(target: Target, chains: int) -> Tensor:
    """Starts twice as wide as the target."""
    factor = torch.linalg.cholesky(target.covariance_DD)
    return target.mean_D + 2 * normal(chains, target.size, seed=9) @ factor.T


# --- Metropolis methods ---

# (sampler, target, settings): enough draws for the checks to see a bias of a tenth of a standard deviation. Chains move
# together, so that many more take little longer, while each iteration costs its time: their number is what gives draws
# enough; their length is what burn-in from a dispersed start and the memory of the steps need
MIXING: dict[str, tuple[Make, Target, dict[str, Any]]] = {
    "hmc, correlated": (
        tb.HMC,
        correlated_gaussian(condition=1e2),
        {"chains": 512, "steps": 95, "burn_in": 35, "trajectory": 1.5},
    ),
    "hmc, skewed": (tb.HMC, skewed(), {"chains": 96, "steps": 1300, "burn_in": 200, "trajectory": 2.0}),
    "hmc, linear": (
        tb.HMC,
        linear_regression(0.5),
        {"chains": 256, "steps": 120, "burn_in": 60, "trajectory": 0.3},
    ),
    "hmc, logistic": (tb.HMC, logistic_regression(), {"chains": 512, "steps": 110, "burn_in": 70, "trajectory": 2.0}),
    "hmc, diagonal mass": (
        tb.HMC,
        linear_regression(),
        {"chains": 512, "steps": 120, "burn_in": 85, "mass": "diagonal"},
    ),
    "nuts, correlated": (
        tb.NUTS,
        correlated_gaussian(condition=1e2),
        {"chains": 384, "steps": 52, "burn_in": 26, "mass": "unit"},
    ),
    # steps at their target acceptance make shorter trees, and more draws for the same work
    "nuts, skewed": (tb.NUTS, skewed(), {"chains": 768, "steps": 110, "burn_in": 50}),
    "nuts, linear": (tb.NUTS, linear_regression(2.0), {"chains": 512, "steps": 70, "burn_in": 55}),
    "nuts, logistic": (tb.NUTS, logistic_regression(), {"chains": 512, "steps": 70, "burn_in": 55}),
    "mala, skewed": (tb.MALA, skewed(), {"chains": 1024, "steps": 350, "burn_in": 250}),
    "mala, linear": (tb.MALA, linear_regression(), {"chains": 1024, "steps": 300, "burn_in": 200}),
    "mala, logistic": (tb.MALA, logistic_regression(), {"chains": 1024, "steps": 180, "burn_in": 130}),
    "elliptical slice, skewed": (
        tb.EllipticalSlice,
        skewed(),
        {"chains": 4096, "steps": 110, "burn_in": 45, "scale": 4.0},
    ),
    "elliptical slice, linear": (
        tb.EllipticalSlice,
        linear_regression(),
        {"chains": 2048, "steps": 85, "burn_in": 50, "scale": 1.0},
    ),
    "elliptical slice, logistic": (
        tb.EllipticalSlice,
        logistic_regression(),
        {"chains": 2048, "steps": 100, "burn_in": 65, "scale": 1.5},
    ),
    "random walk, skewed": (tb.RandomWalk, skewed(), {"chains": 1024, "steps": 400, "burn_in": 250}),
    "random walk, linear": (tb.RandomWalk, linear_regression(), {"chains": 1024, "steps": 400, "burn_in": 250}),
    "random walk, logistic": (tb.RandomWalk, logistic_regression(), {"chains": 1024, "steps": 350, "burn_in": 250}),
}


# The same law as on the target that is left of HMC. What makes it, NUTS, MALA and the random walk right is detailed
# balance on the skewed one, and trees draw by draw; elliptical slices have posteriors in closed form of their own.
STUDIES = {
    "random walk, skewed",
    "hmc, diagonal mass",
    "nuts, logistic",
    "mala, skewed",
    "hmc, correlated",
    "elliptical slice, logistic",
    "hmc, linear",
    "hmc, skewed",
    "nuts, skewed",
    "elliptical slice, skewed",
    "nuts, correlated",
    "nuts, linear",
    "mala, linear",
    "elliptical slice, linear",
    "random walk, linear",
    "random walk, logistic",
    "mala, logistic",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "target", "settings"),
    [pytest.param(*case, id=name, marks=[pytest.mark.study] * (name in STUDIES)) for name, case in MIXING.items()],
)
def test_moments_from_a_dispersed_start(make: Make, target: Target, settings: dict[str, Any]):
    jitter = {"jitter": 0.3} if make is tb.HMC else {}
    method = make(**settings, **jitter)
    chains = tb.sample(target.density(), method, dispersed(target, method.chains), seed=1)
    # single small steps take long through the heavy tail of log Gamma(1/2), so less can be seen there
    walks = make in {tb.MALA, tb.RandomWalk} and target.name == skewed().name
    assert_moments(chains.weights_MSD, target, variance_within=0.3 if walks else 0.15)
    if target.cdf is not None:
        assert_quantiles(chains.weights_MSD, target)


# Methods that would take a million steps from one end of this target to the other: they must at least stay in it
STAYING: dict[str, tuple[Make, dict[str, Any]]] = {
    "random walk": (tb.RandomWalk, {"step_size": 0.025}),
    "mala": (tb.MALA, {"step_size": 0.045}),
    "hmc": (tb.HMC, {"step_size": 0.045, "trajectory": 0.2}),
}


@pytest.mark.slow
@pytest.mark.study  # `test_detailed_balance` has all three
@pytest.mark.parametrize(("make", "settings"), STAYING.values(), ids=STAYING)
def test_a_chain_that_starts_in_the_target_stays_in_it(make: Make, settings: dict[str, Any]):
    target, count = correlated_gaussian(), 3000
    assert target.sample is not None
    steps = {tb.RandomWalk: 150, tb.MALA: 80, tb.HMC: 30}[make]
    method = make(chains=count, steps=steps, burn_in=steps - 1, **settings)
    chains = tb.sample(target.density(), method, target.sample(count, 3), seed=2)
    assert 0.1 < chains.numbers["acceptance"].mean() < 0.95
    moved = (chains.weights_MSD[:, 0] - target.sample(count, 3)).square().mean(0) / target.variance_D
    assert moved.min() > 0.05
    assert_moments(chains.weights_MSD, target)


@pytest.mark.slow
@pytest.mark.study  # not centred it is a normal law, as those of other tests of NUTS
def test_the_funnel_is_met_where_it_is_not_centred():
    target = funnel(centred=False)
    # many short chains: all of them together take as long as one
    chains = tb.sample(target.density(), tb.NUTS(256, 130, 50, mass="unit"), dispersed(target, 256), seed=1)
    assert_moments(chains.weights_MSD, target)
    assert target.transform is not None
    assert_quantiles(target.transform(chains.weights_MSD), funnel(centred=True))


# --- stationary laws of discretisations ---


def gaussian(variance: float = 1.0) -> tb.FunctionDensity:
    return tb.FunctionDensity(lambda w: -0.5 * w.double().square().sum(1) / variance)


def second_moment(chains: tb.Chains, skip: int = 0) -> Tensor:
    """Mean square of all draws, and its standard error from the spread between coordinates, which are independent."""
    squares = chains.weights_MSD[:, skip:].double().square().mean(dim=(0, 1))
    return torch.stack([squares.mean(), squares.std() / len(squares) ** 0.5])


def assert_second_moment(chains: tb.Chains, expected: float, *, precise: float = 0.01, alpha: float = 5.0):
    mean, error = second_moment(chains).tolist()
    assert error < precise * expected, "the check could not see a bias of this size"
    assert abs(mean - expected) < alpha * error


def stationary(transition: Tensor, noise: Tensor) -> Tensor:
    """Covariance P = A P Aᵀ + N of x ← A x + noise of covariance N."""
    size = len(transition)
    flat = torch.linalg.solve(torch.eye(size**2).double() - torch.kron(transition, transition), noise.reshape(-1))
    return flat.reshape(size, size)


WIDE = 2000  # coordinates of a product density: as many independent chains


@pytest.mark.parametrize("step_size", [0.1, pytest.param(0.5, marks=pytest.mark.study), 1.5])
def test_sgld_with_exact_gradients_has_variance_one_over_one_minus_a_quarter_of_the_step(step_size: float):
    method = tb.SGLD(1, steps=360, burn_in=110, thin=5, step_size=step_size, batch_size=None)
    chains = tb.sample(gaussian(), method, normal(1, WIDE), seed=4)
    assert_second_moment(chains, 1 / (1 - step_size / 4))


FORMS, STEPS = ("momentum", "friction"), ((0.05, 0.9), (0.3, 0.5), (0.5, 0.0))


@pytest.mark.parametrize(
    ("form", "step"), with_studies([(FORMS[0], STEPS[0]), (FORMS[0], STEPS[2]), (FORMS[1], STEPS[1])], FORMS, STEPS)
)
def test_sghmc_with_exact_gradients_has_the_covariance_of_its_recursion(form: Any, step: tuple[float, float]):
    step_size, momentum = step
    variance, friction, h = 2.0, 1 - momentum, step_size**0.5
    if form == "momentum":  # (m, w) ← [[β, −h/σ²], [h β, 1 − h²/σ²]] (m, w) + (1, h) noise
        transition = [[momentum, -h / variance], [h * momentum, 1 - h**2 / variance]]
        into, noise = torch.tensor([1.0, h]).double(), 2 * friction
    else:
        transition = [[momentum, -step_size / variance], [momentum, 1 - step_size / variance]]
        into, noise = torch.tensor([1.0, 1.0]).double(), 2 * friction * step_size
    law = stationary(torch.tensor(transition).double(), noise * torch.outer(into, into))
    method = tb.SGHMC(
        1, steps=260, burn_in=110, thin=5, step_size=step_size, batch_size=None, momentum=momentum, form=form
    )
    assert_second_moment(tb.sample(gaussian(variance), method, normal(1, WIDE), seed=4), float(law[1, 1]))


def test_both_forms_of_sghmc_are_one_chain_while_the_step_size_is_constant():
    settings: dict[str, Any] = {"steps": 50, "burn_in": 0, "thin": 1, "step_size": 0.2, "batch_size": None}
    start = normal(2, 5)
    chains = [tb.sample(gaussian(), tb.SGHMC(2, form=form, **settings), start) for form in ("momentum", "friction")]
    assert_close(chains[0].weights_MSD, chains[1].weights_MSD)


def test_an_estimate_of_the_gradient_noise_takes_it_out_of_the_friction_form():
    """With gradient noise of variance s² the friction form injects 2(α − b)ε, b = εs²/2: the law is that without."""
    step_size, momentum, noise = 0.02, 0.8, 2.0
    estimate = step_size * noise**2 / 2
    settings: dict[str, Any] = {"steps": 260, "burn_in": 110, "thin": 5, "step_size": step_size, "batch_size": None}
    transition = torch.tensor([[momentum, -step_size], [momentum, 1 - step_size]]).double()
    clean = 2 * (1 - momentum) * step_size
    for b, injected in ((estimate, clean), (0.0, clean + step_size**2 * noise**2)):
        method = tb.SGHMC(1, momentum=momentum, form="friction", noise_estimate=b, **settings)
        chains = tb.sample(NoisyGradient(gaussian(), scale=noise), method, normal(1, WIDE), seed=4)  # type: ignore[arg-type]
        law = stationary(transition, injected * torch.ones(2, 2).double())
        assert_second_moment(chains, float(law[1, 1]))


def test_noise_of_minibatches_adds_what_their_variance_says():
    """SGLD with gradient noise of variance s²: the stationary variance is (1 + ε s²/4)/(1 − ε/4)."""
    step_size, noise = 0.1, 3.0
    method = tb.SGLD(1, steps=360, burn_in=110, thin=5, step_size=step_size, batch_size=None)
    chains = tb.sample(NoisyGradient(gaussian(), scale=noise), method, normal(1, WIDE), seed=4)  # type: ignore[arg-type]
    assert_second_moment(chains, (1 + step_size * noise**2 / 4) / (1 - step_size / 4))


@cache
def thermostat(step_size: float, noise: float = 0.0) -> float:
    """Mean square of the weights under SGNHT, whose law is N(0, 1) up to an error of order √ε."""
    steps = int(40 / step_size**0.5)
    method = tb.SGNHT(1, steps=steps, burn_in=steps // 2, thin=5, step_size=step_size, batch_size=None)
    density: Any = NoisyGradient(gaussian(), scale=noise) if noise else gaussian()
    return float(second_moment(tb.sample(density, method, normal(1, WIDE), seed=1))[0])


def test_the_thermostat_is_right_to_first_order_in_the_root_of_its_step_size():
    errors = [1 - thermostat(step_size) for step_size in (0.04, 0.01)]
    assert 0 < errors[1] < 0.07
    assert errors[0] / errors[1] == pytest.approx(2.0, rel=0.25)


def test_the_thermostat_does_not_keep_what_the_first_descent_had():
    """A start ten deviations away gives 17 times the kinetic energy of the temperature."""
    scales = torch.tensor([1.0, 0.55, 0.32]).double()
    density = tb.FunctionDensity(lambda w: -0.5 * (w.double() / scales).square().sum(1))
    method = tb.SGNHT(512, 400, 300, 10, step_size=0.01, batch_size=None)
    chains = tb.sample(density, method, normal(512, 3) + 10.0, seed=3)
    shares = chains.weights_MSD.double().flatten(0, 1).std(0) / scales
    assert ((shares - 1).abs() < 0.1).all()


def test_the_thermostat_absorbs_gradient_noise_of_unknown_size():
    assert thermostat(0.01, noise=2.0) == pytest.approx(thermostat(0.01), abs=0.03)
    method = tb.SGHMC(1, 300, 150, 5, step_size=0.01, batch_size=None)
    hot = tb.sample(NoisyGradient(gaussian(), scale=2.0), method, normal(1, WIDE))  # type: ignore[arg-type]
    assert second_moment(hot)[0] > 1.1


def test_a_thermostat_begins_with_the_momentum_of_its_temperature():
    """Which is 1 where the likelihood alone is tempered."""
    begun = {}
    for temperature, tempering in ((1.0, "joint"), (4.0, "joint"), (4.0, "likelihood")):
        network = torch.nn.Linear(3, 1).double()
        settings: dict[str, Any] = {"temperature": temperature, "tempering": tempering}
        density = tb.LogDensity(tb.Model(network, tb.likelihoods.Gaussian(1.0), **settings), 12)
        method: Any = tb.SGNHT(chains=2, steps=6, burn_in=5, thin=1, step_size=1e-3)
        begun[temperature, tempering] = method.init(density, normal(2, 4), {}, seeds=(1, 2)).momentum_MD
    assert begun[1.0, "joint"].all()
    assert_close(begun[4.0, "joint"], 2 * begun[1.0, "joint"])
    assert_close(begun[4.0, "likelihood"], begun[1.0, "joint"])


@pytest.mark.parametrize(
    ("make", "temperature"),
    with_studies([(tb.SGHMC, 4.0), (tb.SGNHT, 0.05)], (tb.SGLD, tb.SGHMC, tb.SGNHT), (0.05, 4.0)),
)
def test_temperature_scales_the_spread_of_stochastic_samplers(make: Make, temperature: float):
    """A normal prior without data that matter: the spread is σ √T, whatever the method."""
    network = torch.nn.Linear(2000, 1, bias=False).double()
    model = tb.Model(network, tb.likelihoods.Gaussian(1e3), tb.priors.Normal(1.0), temperature=temperature)
    rows = (torch.zeros(4, 2000).double(), torch.zeros(4, 1).double())
    step_size = 1e-3 if make is tb.SGNHT else 0.05
    settings = {"chains": 1, "steps": 400, "burn_in": 150, "thin": 5, "step_size": step_size, "batch_size": 2}
    posterior = tb.fit(model, rows, make(**settings), start=normal(1, 2000) * temperature**0.5, callbacks=())
    assert isinstance(posterior, tb.Draws)
    assert posterior.weights_MSD.square().mean() / temperature == pytest.approx(1.0, abs=0.06)


# --- preconditioners, schedules, cycles ---


@pytest.mark.filterwarnings("ignore:.*the halves of chain 0 disagree")  # on one of 1,200 weights, in a chain so short
@pytest.mark.parametrize(
    "make", [tb.SGHMC, *(pytest.param(make, marks=pytest.mark.study) for make in (tb.SGLD, tb.SGNHT))]
)
def test_a_preconditioner_equals_a_change_of_units(make: Make):
    """Where gradients have constant size V settles, and coordinates of other units move alike: 400 of each unit."""
    scales = torch.tensor([0.1, 1.0, 10.0]).double().repeat_interleave(400)
    density = tb.FunctionDensity(lambda w: -0.5 * (w.double() / scales).square().sum(1))
    length = {"steps": 2400, "burn_in": 1000} if make is tb.SGLD else {"steps": 700, "burn_in": 300}
    step_size = 0.05 if make is tb.SGLD else 0.02
    method = make(chains=1, step_size=step_size, batch_size=None, preconditioned=True, decay=0.9999, **length)
    chains = tb.sample(density, method, normal(1, 1200) * scales, seed=3)
    squares = (chains.weights_MSD[0] / scales).square().mean(0)
    assert squares.view(3, 400).mean(1).sqrt().tolist() == pytest.approx([1.0] * 3, rel=0.1)


@pytest.mark.parametrize("make", [tb.SGLD, tb.SGHMC, tb.SGNHT])
def test_steps_of_no_given_size_are_preconditioned_and_shrink_on_minibatches_alone(make: Any):
    model = tb.Model(torch.nn.Linear(3, 1), tb.likelihoods.Gaussian(0.1))
    rows = (normal(40, 3).float(), normal(40, 1).float())
    quiet = {"chains": 1, "steps": 3, "burn_in": 0, "thin": 1}

    def seen(**settings: Any) -> tuple[list[float], bool]:
        states: list[Any] = []
        method = make(**quiet, **settings)
        tb.fit(model, rows, method, callbacks=[lambda event: states.append(event.state)])
        density: Any = tb.LogDensity(model, 40, None)
        sizes = [method.step_size_at(t, density) for t in (0, 500)]
        return sizes, states[-1].squares_MD.shape[1] == model.layout.size

    assert seen() == (pytest.approx([make.preconditioned_rate, make.preconditioned_rate / 2]), True)
    assert seen(step_size=1e-4) == (pytest.approx([1e-4, 1e-4]), False)
    assert seen(batch_size=None) == (pytest.approx([make.rate / 40] * 2), False)
    assert seen(preconditioned=False) == (pytest.approx([make.rate / 40, make.rate / 80]), False)
    assert seen(preconditioned=True, step_size=1e-4)[1]
    assert seen(schedule=tb.Steady())[0] == pytest.approx([make.preconditioned_rate] * 2)
    on_a_density = tb.sample(gaussian(), make(**quiet), normal(1, 3)).numbers["step_size"][0]
    assert_close(on_a_density, [make.rate] * 3)


def test_the_friction_form_is_never_preconditioned():
    assert tb.SGHMC(form="friction").preconditioned is False
    with pytest.raises(ValueError, match="preconditioned"):
        tb.SGHMC(form="friction", preconditioned=True)


def test_the_friction_of_a_thermostat_does_not_depend_on_the_number_of_rows():
    """Its share of a step is 0.025 where no step size is given."""
    model = tb.Model(torch.nn.Linear(3, 1), tb.likelihoods.Gaussian(0.1))
    for num_data in (40, 40_000):
        density: Any = tb.LogDensity(model, num_data, None)
        for method in (tb.SGNHT(), tb.SGNHT(preconditioned=False)):
            assert method.friction(density) * method.step_size_at(0, density) ** 0.5 == pytest.approx(0.025)
    assert tb.SGNHT(step_size=0.1).friction(gaussian()) == 1.0


def test_step_sizes_follow_their_schedules():
    decay, cycles = tb.Decay(10.0, 0.5), tb.Cycles(8, exploration=0.5)
    assert [decay.at(t) for t in (0, 30)] == pytest.approx([1.0, 0.5])
    assert [cycles.at(t) for t in (0, 2, 4, 6, 8)] == pytest.approx([
        1.0,
        (1 + math.cos(math.pi / 4)) / 2,
        0.5,
        (1 - math.cos(math.pi / 4)) / 2,
        1.0,
    ])
    assert [cycles.noisy(t) for t in range(9)] == [False] * 4 + [True] * 4 + [False]
    chains = tb.sample(
        gaussian(), tb.SGLD(1, 20, 0, step_size=0.3, batch_size=None, schedule=cycles, thin=1), normal(1, 3)
    )
    assert_close(chains.numbers["step_size"][0], [0.3 * cycles.at(t) for t in range(20)])


def test_the_exploration_of_a_cycle_adds_no_noise():
    method = tb.SGLD(
        2, 8, 0, step_size=0.3, batch_size=None, schedule=(cycles := tb.Cycles(8, exploration=1 - 1e-9)), thin=1
    )
    start = normal(2, 3)
    decays = [1 - 0.3 * cycles.at(t) / 2 for t in range(8)]
    assert_close(tb.sample(gaussian(), method, start).weights_MSD[:, 0], start * math.prod(decays))


@pytest.mark.parametrize("start_of_cycle", [0, 40])
def test_a_thermostat_does_not_heat_the_exploration_of_a_cycle(start_of_cycle: int):
    """(m, w) ← [[1 − h a, −h], [h (1 − h a), 1 − h²]] (m, w) on N(0, I): descent with momentum, also after sampling."""
    cycles = tb.Cycles(40, exploration=0.75)
    method = tb.SGNHT(2, 100, 0, step_size=0.3, batch_size=None, schedule=cycles, diffusion=0.7, thin=1)
    density = gaussian()
    state: Any = method.init(density, normal(2, 500), seeds=[0, 1])
    for _ in range(start_of_cycle):
        state, _ = method.step(density, state)
    momentum_MD, weights_MD = state.momentum_MD, state.weights_MD
    for step in range(30):
        state, _ = method.step(density, state)
        h = (0.3 * cycles.at(step)) ** 0.5
        momentum_MD = (1 - h * 0.7) * momentum_MD - h * weights_MD
        weights_MD = weights_MD + h * momentum_MD
    assert_close(state.weights_MD, weights_MD)
    assert_close(state.momentum_MD, momentum_MD)
    assert_close(state.friction_M, [0.7, 0.7])
    assert state.momentum_MD.square().mean() < 0.02  # it was near 1
    for _ in range(10):
        state, _ = method.step(density, state)
        assert (state.friction_M != 0.7).all()


@pytest.mark.parametrize(("draws", "thin", "kept"), [(1, 1, [10, 20, 30]), (3, 2, [6, 8, 10, 16, 18, 20, 26, 28, 30])])
def test_weights_are_kept_at_the_end_of_each_cycle(draws: int, thin: int, kept: list[int]):
    method = tb.SGHMC(1, 35, 0, thin, schedule=tb.Cycles(10, draws=draws))
    assert [t for t in range(1, 36) if method.retains(t)] == kept
    assert len(retained_steps(method, 35)) == len(kept)
    assert tb.sample(gaussian(), method, normal(1, 2)).weights_MSD.shape[1] == len(kept)


@pytest.mark.slow
@pytest.mark.study  # the tests of schedules, explorations and draws of cycles, above, pin each part of it
def test_a_cyclical_chain_finds_the_modes_that_a_plain_one_does_not():
    """The mixture of Zhang et al. (2020) with their step sizes, cycles of 166 steps and gradient noise N(0, I).

    A twentieth of their 50,000 steps will do, which are cheaper by four chains than by a long one.
    """
    start = 20 * torch.rand(4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 10
    density: Any = NoisyGradient(mixture25().density(), seed=1)
    steps, cycle = 2500, 5000 // 30
    # their ε multiplies the gradient itself, twice ours
    cycles = tb.Cycles(cycle, exploration=0.0, draws=cycle - 5)
    cyclical = tb.SGLD(4, steps, 0, step_size=2 * 0.07, batch_size=None, schedule=cycles, thin=1)
    plain = tb.SGLD(4, steps, 0, step_size=2 * 0.043, batch_size=None, schedule=tb.Decay(100.0, 0.55), thin=1)
    actual = tb.sample(density, cyclical, start, seed=2)
    assert all((mode_shares(chain) > 0).sum() >= 20 for chain in actual.weights_MSD)
    with pytest.warns(tb.ProblemWarning, match="chains disagree on weight"):
        lone = tb.sample(density, plain, start, seed=2)
    assert all((mode_shares(chain) > 0.01).sum() <= 8 for chain in lone.weights_MSD)
