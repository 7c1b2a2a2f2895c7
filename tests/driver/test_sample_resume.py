"""sample with `resume`: chains that go on are those of one run, bit for bit; what does not fit is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from tests.covering import some_of
from tests.laws.cases import assert_same_tensors
from tests.oracles import normal
from torch import Tensor, nn
from torch.distributions import constraints

import torchbayes as tb
from torchbayes.driver.chains import Interrupted
from torchbayes.driver.checkpoint import flatten

PRECISION = torch.tensor([[2.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 1.5]], dtype=torch.float64)
START = normal(2, 3)
METHODS: dict[str, Any] = {  # windows of a mass need a burn-in of 20
    "nuts": tb.NUTS(2, 36, 20, thin=2, max_doublings=2),
    "hmc": tb.HMC(2, 36, 20, jitter=0.2),  # whose mass is adapted, as there is no prior
    "hmc, dense": tb.HMC(2, 36, 20, mass="dense"),
    "mala": tb.MALA(2, 36, 20),
    "mala, given": tb.MALA(2, 36, 20, step_size=0.5),
    "random walk": tb.RandomWalk(2, 36, 20, thin=3),
    "random walk, dense": tb.RandomWalk(2, 36, 20, mass="dense"),
    "mclmc": tb.MCLMC(2, 52, 36, thin=2),
    "mams": tb.MAMS(2, 61, 45, thin=2, mass="dense", max_leapfrogs=4),
    "sghmc": tb.SGHMC(2, 36, 20, thin=2, batch_size=None),
    "sgld": tb.SGLD(2, 36, 20, thin=1, preconditioned=True, batch_size=None),
    "sgnht": tb.SGNHT(2, 36, 20, thin=2, batch_size=None),
    "smile": tb.SMILE(2, 60, 44, thin=2, batch_size=None),
    "cyclical": tb.SGHMC(2, 36, 10, thin=2, batch_size=None, schedule=tb.Cycles(12, draws=3)),
}
# what these do others of their class, or of their mass, do too
VARIANTS = {"hmc", "hmc, dense", "mala", "mala, given", "random walk", "mams", "sghmc", "sgnht"}
methods = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.study if n in VARIANTS else ()) for n in METHODS]
)


def gaussian(w: Tensor) -> Tensor:
    return -0.5 * w @ PRECISION @ w


def eight(mu: Tensor, tau: Tensor) -> Tensor:
    return -0.5 * mu.square().sum() - tau.sum()


def sampled(method: Any, start: Any = None, density: Any = gaussian, **options: Any) -> tb.Chains:
    if start is None and options.get("resume") is None and "parameters" not in options:
        start = START
    return tb.sample(density, method, start, **{"callbacks": (), **options})


@cache
def whole(name: str) -> tb.Chains:
    """Chains that nothing interrupts."""
    return sampled(METHODS[name])


def pressed(after: int) -> Any:
    """A callback during which Ctrl-C is pressed."""

    def press(event: tb.Event) -> None:
        if event.step == after:
            raise KeyboardInterrupt

    return press


def assert_same_chains(actual: tb.Chains, expected: tb.Chains) -> None:
    assert torch.equal(actual.weights_MSD, expected.weights_MSD)
    assert torch.equal(actual.steps_S, expected.steps_S)
    assert_same_tensors(actual.numbers, expected.numbers)
    assert_same_tensors(flatten(actual.state)[0], flatten(expected.state)[0])
    assert flatten(actual.state)[1] == flatten(expected.state)[1]
    assert (actual.problems, actual.fault, actual.burn_in) == (expected.problems, expected.fault, expected.burn_in)
    assert actual.method == expected.method
    assert actual.quantities() == expected.quantities()


@methods
def test_a_finished_run_goes_on_as_if_it_had_been_longer(name: str):
    method = METHODS[name]
    longer = replace(method, steps=method.steps + 9)
    expected = sampled(longer, seed=3)
    short = sampled(method, seed=3)
    before = {name: tensor.clone() for name, tensor in flatten(short.state)[0].items()}
    assert_same_chains(sampled(longer, resume=short), expected)
    assert_same_chains(sampled(longer, resume=short, seed=3), expected)  # what is resumed is intact
    assert_same_tensors(flatten(short.state)[0], before)
    step_by_step = short
    for steps in (method.steps + 1, longer.steps):
        step_by_step = sampled(replace(method, steps=steps), resume=step_by_step)
    assert_same_chains(step_by_step, expected)


# one place each, in turn: the burn-in of every method is interrupted at three in the next test
@pytest.mark.parametrize(
    ("name", "after"),
    [
        pytest.param(*case.values, marks=pytest.mark.study if case.values[0] in VARIANTS else case.marks)
        for case in some_of(METHODS, (1, 11, 43), one_in=3)
    ],
)
def test_an_interrupt_in_burn_in_loses_nothing(name: str, after: int):
    method, expected = METHODS[name], whole(name)
    after = min(after, method.burn_in - 1)
    with pytest.raises(
        KeyboardInterrupt, match=f"after {after} of {method.steps} steps, before the first draw; `resume` its `chains`"
    ) as seen:
        sampled(method, callbacks=[pressed(after)])
    assert isinstance(seen.value, Interrupted)
    chains = seen.value.chains
    assert chains.weights_MSD.shape == (2, 0, 3)
    assert chains.numbers["log_density" if "log_density" in chains.numbers else "step_size"].shape == (2, after)
    assert "interrupted" in repr(chains)
    assert_same_chains(sampled(method, resume=chains), expected)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in {"mclmc", "sgld"} else pytest.mark.study) for n in METHODS]
)
def test_burn_in_may_be_interrupted_again(name: str):
    method, chains = METHODS[name], None
    for after in (3, 4, 8):
        with pytest.raises(Interrupted) as seen:
            sampled(method, START if chains is None else None, resume=chains, callbacks=[pressed(after)])
        chains = seen.value.chains
        assert chains.state.step == after
    assert_same_chains(sampled(method, resume=chains), whole(name))


# `test_burn_in_may_be_interrupted_again` has `mclmc`, and `smile` moves as it does
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.study if n in {*VARIANTS, "mclmc"} else ()) for n in METHODS]
)
def test_an_interrupt_after_burn_in_loses_nothing(name: str):
    method, expected = METHODS[name], whole(name)
    early, late = method.steps - 9, method.steps - 6
    with pytest.warns(tb.ProblemWarning, match=f"interrupted after {early} of {method.steps} steps"):
        chains = sampled(method, callbacks=[pressed(early)])
    assert_same_chains(sampled(method, resume=chains), expected)
    with pytest.warns(tb.ProblemWarning, match=f"interrupted after {late} of {method.steps} steps"):
        later = sampled(method, resume=chains, callbacks=[pressed(late)])
    assert later.problems == (f"interrupted after {late} of {method.steps} steps",)
    assert_same_chains(sampled(method, resume=later), expected)


def test_chains_that_a_callback_stopped_go_on():
    method = METHODS["sgld"]
    stopped = sampled(method, callbacks=[lambda event: event.step == method.steps - 9])
    assert_same_chains(sampled(method, resume=stopped), whole("sgld"))


def test_ctrl_c_before_the_first_further_step_leaves_the_chains():
    chains, method = sampled(METHODS["mala"]), replace(METHODS["mala"], steps=70)

    def slow(w: Tensor) -> Tensor:
        if pressing:
            raise KeyboardInterrupt
        return gaussian(w)

    pressing = True
    with pytest.raises(KeyboardInterrupt):
        sampled(method, density=slow, resume=chains)
    pressing = False
    assert_same_chains(sampled(method, density=slow, resume=chains), sampled(method))


def test_named_parameters_and_what_is_said_of_them_go_on():
    parameters = tb.Parameters(mu=(2,), tau=constraints.positive)
    method, longer = tb.NUTS(2, 24, 20, max_doublings=2), tb.NUTS(2, 30, 20, max_doublings=2)
    short = sampled(method, density=eight, parameters=parameters, seed=5)
    actual = sampled(longer, density=eight, parameters=parameters, resume=short)
    expected = sampled(longer, density=eight, parameters=parameters, seed=5)
    assert_same_chains(actual, expected)
    assert torch.equal(actual["tau"], expected["tau"])
    assert len(str(actual).splitlines()) == 5


def test_chains_of_a_network_go_on():
    network = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    model = tb.Model(network, tb.likelihoods.Gaussian(0.1), tb.priors.Normal(1.0))
    density = tb.LogDensity(model, 9, tb.Batch(normal(9, 2), normal(9, 1)), plan="loop")
    start, method = 0.1 * normal(2, 13), tb.HMC(2, 26, 20, mass="layer", trajectory=0.1)
    actual = sampled(method, density=density, resume=tb.sample(density, replace(method, steps=23), start, callbacks=()))
    assert_same_chains(actual, tb.sample(density, method, start, callbacks=()))
    assert actual.method == method


def test_chains_are_refused_by_a_network_of_other_weights_and_without_their_names():
    model = tb.Model(nn.Linear(2, 1).double(), tb.likelihoods.Gaussian(0.1), tb.priors.Normal(1.0))
    density = tb.LogDensity(model, 9, tb.Batch(normal(9, 2), normal(9, 1)))
    chains = done()
    with pytest.raises(
        ValueError, match=r"its parameters.w is 'Real\(\) of shape \(3,\)', now None; its parameters.weig"
    ):
        sampled(DONE, density=density, resume=chains)
    parameters = tb.Parameters(mu=(2,), tau=constraints.positive)
    named = sampled(DONE, density=eight, parameters=parameters)
    with pytest.raises(ValueError, match=r"its parameters.mu is 'Real\(\) of shape \(2,\)', now None"):
        sampled(DONE, resume=named)


def test_a_fault_after_burn_in_is_the_first_of_all_steps():
    calls = [0]

    def fails(w: Tensor) -> Tensor:
        calls[0] += 1
        if calls[0] in (20, 40, 62):  # the first of these in burn-in
            raise ValueError(f"call {calls[0]}")
        return -0.5 * w.square().sum(1)

    method = tb.RandomWalk(1, 50, 30, step_size=1.0)
    short = sampled(method, START[:1], tb.FunctionDensity(fails))
    assert short.fault.startswith("ValueError: call 40")
    assert sampled(replace(method, steps=80), density=tb.FunctionDensity(fails), resume=short).fault == short.fault


# --- refusals ---

NUTS = partial(tb.NUTS, max_doublings=2)
DONE = NUTS(2, 40, 30)


@cache
def done() -> tb.Chains:
    """Chains that are resumed by others."""
    return sampled(DONE)


OTHERS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "method": (tb.HMC(2, 60, 30), {}, "its method.name is 'NUTS', now 'HMC'"),
    "mass": (NUTS(2, 60, 30, mass="dense"), {}, "its method.mass is 'diagonal', now 'dense'"),
    "burn-in": (NUTS(2, 60, 20), {}, "its method.burn_in is 30, now 20"),
    "thin": (NUTS(2, 60, 30, thin=2), {}, "its method.thin is 1, now 2"),
    "chains": (NUTS(3, 60, 30), {}, "its method.chains is 2, now 3"),
    "seed": (NUTS(2, 60, 30), {"seed": 4}, "its seed is 0, now 4"),
    "fewer": (NUTS(2, 39, 30), {}, "`steps` must be at least the 40 that the chains of `resume` have; got 39"),
    "start": (NUTS(2, 60, 30), {"start": START}, "`start_MD` is for new chains; those of `resume` go on where they"),
    "density": (NUTS(2, 60, 30), {"density": lambda w: gaussian(w) - 5}, "chains of another density: where chain 0"),
    "dimension": (
        NUTS(2, 60, 30),
        {"density": lambda w: -(w @ torch.eye(4).double() @ w)},
        r"for a vector of shape \(3,\).*shapes cannot be multiplied",
    ),
    "parameters": (
        NUTS(2, 60, 30),
        {"density": gaussian, "parameters": tb.Parameters(w=(4,))},
        r"its parameters.w is 'Real\(\) of shape \(3,\)', now 'Real\(\) of shape \(4,\)'",
    ),
    "constraint": (
        NUTS(2, 60, 30),
        {"density": gaussian, "parameters": tb.Parameters(w=(3, constraints.positive))},
        r"its parameters.w is 'Real\(\) of shape \(3,\)', now 'GreaterThan\(lower_bound=0.0\) of shape \(3,\)'",
    ),
}


@pytest.mark.parametrize(("method", "options", "said"), OTHERS.values(), ids=OTHERS.keys())
def test_chains_of_another_run_are_refused(method: Any, options: dict[str, Any], said: str):
    chains = done()
    with pytest.raises(ValueError, match=said):
        sampled(method, resume=chains, **options)


def test_a_method_without_a_prior_is_resumed_by_the_settings_it_was_given():
    method = tb.HMC(2, 40, 30)
    chains = sampled(method)
    assert chains.method == replace(method, mass="diagonal")
    assert_same_chains(sampled(replace(method, mass="diagonal"), resume=chains), chains)
