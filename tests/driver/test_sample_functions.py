"""sample on plain functions: of a vector, of all vectors, of named parameters; starts, progress and Ctrl-C."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Beta, Dirichlet, Exponential, Gamma, Normal, constraints
from torch.testing import assert_close

import torchbayes as tb
from torchbayes.density.dynamics import FunctionDensity
from torchbayes.density.functions import density_of, density_of_named
from torchbayes.driver import progress

METHOD = tb.NUTS(2, 24, 20, max_doublings=2)
START = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3)
A = torch.tensor([[2.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 1.5]], dtype=torch.float64)


def sampled(function: Any, method: Any = METHOD, start: Any = START, **options: Any) -> tb.Chains:
    return tb.sample(function, method, start, callbacks=(), **options)


def branching(w: Tensor) -> Tensor:
    return -0.5 * w @ A @ w if w[0] > 0 else -0.5 * w @ A @ w + 0.0


FORMS = {
    "vector": lambda w: -0.5 * w @ A @ w,
    "branch": branching,
    "item": lambda w: -0.5 * w @ A @ w + 0.0 * w[0].item(),
    "ellipsis": lambda w: -0.5 * ((w @ A) * w).sum(-1),
    "rows": lambda w: -0.5 * ((w @ A) * w).sum(1),
    "columns": lambda w: -0.5 * sum(A[i, j] * w[:, i] * w[:, j] for i in range(3) for j in range(3)),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_has_the_value_and_gradient_of_the_density(form: str):
    value = density_of(FORMS[form], START)(START)
    assert_close(value.log_density, -0.5 * ((START @ A) * START).sum(1))
    assert_close(value.gradient, -START @ A)


def test_forms_give_the_same_chains():
    method = tb.HMC(2, 6, 2, trajectory=0.5)
    expected = tb.sample(FunctionDensity(FORMS["rows"]), method, START, callbacks=()).weights_MSD
    for form in FORMS.values():
        assert_close(sampled(form, method).weights_MSD, expected, rtol=1e-6, atol=1e-8)


def test_one_number_for_one_vector_decides():
    """A sum over everything is a function of one vector, never of all chains together."""
    value = density_of(lambda w: -w.square().sum(), START)(START)
    assert_close(value.log_density, -START.square().sum(1))


def test_where_vmap_cannot_word_the_exception_the_function_does():
    """A distribution validates its arguments: that one chain leaves the support is an exception of that chain alone."""
    density = density_of(lambda w: Exponential(1.0, validate_args=True).log_prob(w).sum(), START.abs())
    with pytest.raises(ValueError, match="within the support"):
        density(START)
    chains = sampled(
        lambda w: Exponential(1.0, validate_args=True).log_prob(w).sum(),
        tb.RandomWalk(2, 40, 0, step_size=1.0),
        START.abs(),
    )
    assert (chains.weights_MSD >= 0).all()
    assert chains.numbers["failed"].sum() > 0


@pytest.mark.parametrize(
    ("function", "error", "said"),
    [
        (lambda w: -w.square(), ValueError, r"for the vector it returned shape \(3,\), and for all chains it returned"),
        (lambda w: -w.square().sum(-1, keepdim=True), ValueError, r"it returned shape \(1,\)"),
        (lambda w: w.nonsense(), ValueError, "it raised AttributeError"),
        (lambda w: w.reshape(7).sum(), ValueError, r"shape \(\), for a vector of shape \(3,\)"),
        (lambda: 0.0, ValueError, "it raised TypeError"),
        (lambda w: 3.0, TypeError, "must return a tensor; got 3.0"),
        (lambda w: None, TypeError, "must return a tensor; got None"),
        (lambda w: -w.square().sum().item(), TypeError, "must return a tensor; got"),
        (lambda w: (w > 0).all(), TypeError, "of a floating dtype; got torch.bool"),
        (lambda w: torch.zeros(()), ValueError, "no gradient in `w`"),
        (lambda w: -w.detach().square().sum(), ValueError, "no gradient in `w`"),
        (lambda w: torch.ones((), requires_grad=True).exp(), ValueError, "no gradient in `w`"),
        (lambda w: torch.ones(len(w), requires_grad=True).exp() if w.ndim > 1 else w, ValueError, "has no gradient"),
        (lambda w: w.sum() * math.nan, ValueError, "not finite where chain 0 starts: nan"),
        (lambda w: w.sum().sqrt(), ValueError, "not finite where chain 0 starts"),
        ("text", TypeError, "`density` must be a function"),
        (tb.FunctionDensity, TypeError, "got the class FunctionDensity"),
    ],
)
def test_what_is_no_log_density_is_refused(function, error, said):
    with pytest.raises(error, match=said):
        sampled(function)


def test_functions_without_a_start_or_with_needless_parameters_are_refused():
    parameters = tb.Parameters(a=(), b=constraints.positive)
    with pytest.raises(TypeError, match="`start_MD` must be a tensor"):
        sampled(FORMS["vector"], start=None)
    with pytest.raises(TypeError, match="`parameters` are the arguments of a function"):
        sampled(FunctionDensity(FORMS["rows"]), parameters=parameters)
    with pytest.raises(TypeError, match="`parameters` must be Parameters"):
        sampled(FORMS["vector"], parameters={"a": ()})
    with pytest.raises(ValueError, match=r"must hold the 2 numbers .*; got shape \(2, 3\)"):
        sampled(lambda a, b: -a * a - b, parameters=parameters)


@pytest.mark.parametrize(
    ("function", "error", "said"),
    [
        (lambda a, b: -a * a, ValueError, "no gradient in `b`"),
        (lambda a, b: torch.tensor(a.item()), ValueError, "no gradient in `a`"),
        (lambda a, b: -a * a - b.sum() + torch.zeros(2), ValueError, r"one number, .* got shape \(2,\)"),
        (lambda a, b: 1.0, TypeError, "must return a tensor; got 1.0"),
        (lambda a: -a * a, TypeError, "must take the parameters by name, a, b; got an unexpected keyword argument 'b'"),
        (lambda a, b: (a + b.sum()) * math.inf, ValueError, "no start for chain 0: at 100 points"),
        (lambda a, b: Normal(a, -b, validate_args=True).log_prob(a).sum(), ValueError, "last: ValueError: Expected"),
    ],
)
def test_functions_of_named_parameters_that_are_no_log_density_are_refused(function, error, said):
    with pytest.raises(error, match=said):
        sampled(function, start=None, parameters=tb.Parameters(a=(), b=(2, constraints.positive)))


def test_the_density_of_named_parameters_has_the_jacobian():
    parameters = tb.Parameters(tau=constraints.positive)
    x_M1 = torch.tensor([[-1.0], [0.0], [2.0]], dtype=torch.float64)
    value = density_of_named(lambda tau: Gamma(2.0, 1.5).log_prob(tau), parameters)(x_M1)
    tau_M1 = x_M1.exp()
    assert_close(value.log_density, (Gamma(2.0, 1.5).log_prob(tau_M1) + x_M1).squeeze(1))
    assert_close(value.gradient, 2.0 - 1.5 * tau_M1)


def test_starts_are_dispersed_retried_and_depend_on_seed_and_chain():
    """On half the line the log density is minus infinity; the starts of fewer chains are those of more."""
    first = tb.HMC(8, 21, 20, trajectory=0.1)

    def half(a: Tensor) -> Tensor:
        return torch.where(a > 0, -a.square() / 2, -torch.inf)

    actual = {seed: sampled(half, first, None, parameters=tb.Parameters(a=()), seed=seed)["a"] for seed in (1, 2)}
    assert (actual[1] > 0).all()
    assert actual[1].std() > 0.1
    assert not torch.equal(actual[1], actual[2])
    again = sampled(half, tb.HMC(3, 21, 20, trajectory=0.1), None, parameters=tb.Parameters(a=()), seed=1)["a"]
    assert_close(again, actual[1][:3])


def test_starts_on_their_own_scale_are_where_the_chains_start():
    parameters = tb.Parameters(tau=constraints.positive, w=(3, constraints.simplex))
    seen = []

    def log_density(tau: Tensor, w: Tensor) -> Tensor:
        seen.append((tau, w))
        return -tau + w.log().sum()

    start = {"tau": [0.5, 4.0], "w": torch.tensor([0.2, 0.3, 0.5]).double()}
    sampled(log_density, tb.RandomWalk(2, 2, 0, step_size=1e-9), start, parameters=parameters)
    assert seen[0][0].item() == pytest.approx(0.5)
    assert_close(seen[0][1].detach(), start["w"])


@pytest.mark.study  # `test_the_density_of_named_parameters_has_the_jacobian`; that of every constraint is torch's
def test_known_distributions_are_recovered():
    """Moments of Gamma, Beta, Dirichlet and sorted normals, within 4.5 standard errors."""
    concentration = torch.tensor([0.8, 2.0, 3.5], dtype=torch.float64)
    parameters = tb.Parameters(
        g=constraints.positive, b=constraints.unit_interval, d=(3, constraints.simplex), o=(3, tb.ordered), n=()
    )

    def log_density(g: Tensor, b: Tensor, d: Tensor, o: Tensor, n: Tensor) -> Tensor:
        known = Gamma(2.5, 2.0).log_prob(g) + Beta(1.5, 3.0).log_prob(b) + Dirichlet(concentration).log_prob(d)
        return known + Normal(0.0, 1.0).log_prob(o).sum() + Normal(1.0, 2.0).log_prob(n)

    method = tb.HMC(400, 46, 36, trajectory=1.6, jitter=0.3)
    chains = tb.sample(log_density, method, parameters=parameters, seed=1, callbacks=())
    dirichlet, third = Dirichlet(concentration), 3 / (2 * math.sqrt(math.pi))  # E max of three normals
    moments = {
        "g": (2.5 / 2.0, 2.5 / 4.0),
        "b": (1.5 / 4.5, 1.5 * 3.0 / (4.5**2 * 5.5)),
        "d": (dirichlet.mean, dirichlet.variance),
        "o": (torch.tensor([-third, 0.0, third]), torch.tensor([0.5595, 0.4487, 0.5595])),  # David and Nagaraja 2003
        "n": (1.0, 4.0),
    }
    for name, known in moments.items():
        mean, variance = (torch.as_tensor(moment, dtype=torch.float64) for moment in known)
        draws = chains[name]
        assert (errors(draws, mean) < 4.5).all(), name
        assert (errors((draws - mean).square(), variance) < 4.5).all(), name
    assert chains.problems == ()


def errors(values: Tensor, expected: Tensor) -> Tensor:
    """Errors of the means of draws (M, S, ...) in standard errors, which those of the independent chains give."""
    means_M = values.mean(1)
    return (means_M.mean(0) - expected).abs() / (means_M.std(0) / len(means_M) ** 0.5)


def test_events_are_steps_and_a_callback_can_end_the_run():
    seen = []

    def stop(event: tb.Event) -> bool:
        seen.append(event)
        return event.step == 22

    chains = tb.sample(FORMS["rows"], METHOD, START, callbacks=[stop])
    assert [event.step for event in seen] == list(range(1, 23))
    assert seen[0].epochs == 24
    assert set(seen[0].record) >= {"acceptance", "step_size", "log_density"}
    assert chains.weights_MSD.shape == (2, 2, 3)
    with pytest.raises(ValueError, match="ended after 1 steps, before a draw was retained"):
        tb.sample(FORMS["rows"], METHOD, START, callbacks=[lambda event: True])


def test_progress_is_told_in_steps_and_can_be_silenced(capsys, monkeypatch):
    ticks = iter(range(0, 10**6, 3))
    monkeypatch.setattr(progress, "time", type("Clock", (), {"monotonic": staticmethod(lambda: float(next(ticks)))}))
    tb.sample(FORMS["rows"], METHOD, START)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 2
    assert all(line.startswith("  NUTS × 2, 0:") and " of 24 steps: acceptance" in line for line in lines)
    sampled(FORMS["rows"])
    assert capsys.readouterr().err == ""


def interrupted(after: int):
    """A callback during which Ctrl-C is pressed."""

    def press(event: tb.Event) -> None:
        if event.step == after:
            raise KeyboardInterrupt

    return press


def test_ctrl_c_after_burn_in_keeps_the_draws():
    whole = sampled(FORMS["rows"])
    with pytest.warns(tb.ProblemWarning, match="interrupted after 23 of 24 steps"):
        chains = tb.sample(FORMS["rows"], METHOD, START, callbacks=[interrupted(23)])
    assert chains.problems == ("interrupted after 23 of 24 steps",)
    assert torch.equal(chains.weights_MSD, whole.weights_MSD[:, :3])
    assert chains.state.step == 23
    with pytest.raises(KeyboardInterrupt):
        tb.sample(FORMS["rows"], METHOD, START, callbacks=[interrupted(20)])


def test_ctrl_c_within_a_step_loses_that_step_alone():
    calls = [0]

    def slow(w: Tensor) -> Tensor:
        calls[0] += 1
        if calls[0] == 30:
            raise KeyboardInterrupt
        return -0.5 * w.square().sum(1)

    with pytest.warns(tb.ProblemWarning, match="interrupted after"):
        chains = tb.sample(tb.FunctionDensity(slow), tb.RandomWalk(2, 100, 5, step_size=0.5), START, callbacks=())
    assert chains.weights_MSD.shape[1] == chains.state.step - 5 == chains.numbers["acceptance"].shape[1] - 5 > 10


@pytest.mark.parametrize(
    ("kind", "burn_in", "settings", "said"),
    [
        (tb.NUTS, 19, {"max_doublings": 2}, True),
        (tb.NUTS, 20, {"max_doublings": 2}, False),
        pytest.param(tb.NUTS, 19, {"mass": "unit"}, False, marks=pytest.mark.study),
        (tb.HMC, 19, {"trajectory": 1.0}, False),
        pytest.param(tb.HMC, 19, {"mass": "diagonal"}, True, marks=pytest.mark.study),
    ],
)
def test_a_burn_in_too_short_for_a_mass_is_a_problem(kind, burn_in, settings, said):
    method = kind(2, burn_in + 100, burn_in, **settings)
    if not said:
        assert sampled(FORMS["rows"], method).problems == ()
        return
    with pytest.warns(tb.ProblemWarning, match="a burn-in of 19 steps is too short to learn the mass, which stayed 1"):
        chains = sampled(FORMS["rows"], method)
    assert chains.problems[0].startswith("a burn-in of 19 steps")
    assert (chains.state.inverse_mass_MD == 1).all()


def test_burn_in_counts_within_steps():
    assert sampled(FORMS["rows"], tb.RandomWalk(2, 50, 20, 3, step_size=0.1)).weights_MSD.shape[1] == 10
    with pytest.raises(ValueError, match=r"got 50\. Burn-in counts within `steps`: each chain keeps"):
        tb.NUTS(steps=50, burn_in=50)


def test_chains_in_separate_modes_are_named_by_their_parameter():
    def two_modes(a: Tensor, b: Tensor) -> Tensor:
        return torch.logaddexp(-50 * (b - 3) ** 2, -50 * (b + 3) ** 2) - a.square()

    start, parameters = {"a": 0.0, "b": [-3.0, 3.0]}, tb.Parameters(a=(), b=())
    with pytest.warns(tb.ProblemWarning, match=r"chains disagree on b \(R-hat"):
        sampled(two_modes, tb.HMC(2, 130, 30, trajectory=1.0), start, parameters=parameters)
