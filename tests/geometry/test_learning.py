"""Local learning coefficients against integrals, closed forms and theorems, within 5 %."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import torchbayes as tb
from tests.covering import some_of, with_studies
from tests.geometry.problems import INPUTS, LABELS, made, mlp, problem
from tests.laws.cases import normal
from torchbayes.geometry import learning, learning_coefficient
from torchbayes.methods.mcmc.hmc import HMC
from torchbayes.methods.mcmc.metropolis import MALA, RandomWalk
from torchbayes.methods.sgmcmc.sghmc import SGHMC
from torchbayes.methods.sgmcmc.sgld import SGLD
from torchbayes.posteriors.problems import ProblemWarning

QUICK = HMC(chains=320, steps=80, burn_in=50, thin=1, jitter=0.3, mass="diagonal", max_leapfrogs=16)
WALK = RandomWalk(chains=1600, steps=700, burn_in=300, thin=1, mass="diagonal")


def boxed(loss):
    """A function on [-1, 1]^d, infinite outside."""

    def inside(w):
        return torch.where((w.abs() <= 1).all(-1), loss(w), torch.inf)

    return inside


def near(actual, exact, share=0.05):
    assert abs(actual.value - exact) < share * exact
    assert abs(actual.value - exact) < 4.5 * actual.error
    assert not actual.problems


@pytest.mark.parametrize(("size", "num_data"), with_studies([(4, 100)], [1, 4], [100, 10**6]))
def test_a_quadratic_has_half_its_dimension_whatever_n(size, num_data):
    curvatures = torch.logspace(-1, 1, size, dtype=torch.float64)
    actual = learning_coefficient(
        lambda w: 0.5 * (curvatures * w**2).sum(-1),
        num_data,
        torch.zeros(size).double(),
        localisation=0.0,
        method=QUICK,
    )
    near(actual, size / 2)


@pytest.mark.parametrize("localisation", [pytest.param(1.0, marks=pytest.mark.study), 30.0])
def test_a_localised_quadratic_has_half_its_effective_dimension(localisation):
    curvatures, num_data = torch.tensor([0.01, 0.1, 1.0, 10.0], dtype=torch.float64), 1000
    stiff = num_data / math.log(num_data) * curvatures
    actual = learning_coefficient(
        lambda w: 0.5 * (curvatures * w**2).sum(-1),
        num_data,
        torch.zeros(4).double(),
        localisation=localisation,
        method=QUICK,
    )
    near(actual, 0.5 * float((stiff / (stiff + localisation)).sum()))
    # of 320 chains that are alike the standard deviation is known to 4 %, and the error itself to a little less
    assert actual.error == pytest.approx(float(actual.chains_C.std()) / 320**0.5, rel=0.3)


# one weight of power 1 is the quadratic, above, and unlike powers, below, have powers 1 and 2
@pytest.mark.parametrize("power", [*(pytest.param(power, marks=pytest.mark.study) for power in (1, 2)), 3])
def test_a_power_2k_has_a_2k_th(power):
    start = torch.zeros(1, dtype=torch.float64)
    actual = learning_coefficient(lambda w: w[:, 0] ** (2 * power), 1000, start, localisation=0.0, method=QUICK)
    near(actual, 1 / (2 * power))


@pytest.mark.slow
@pytest.mark.study  # the product of two weights, below, has such parameters too
@pytest.mark.parametrize(("num_data", "exact"), [(10**3, 0.3559), (10**4, 0.3883), (10**6, 0.4240)])
def test_two_redundant_parameters_have_the_value_of_finite_n(num_data, exact):
    start = torch.zeros(2, dtype=torch.float64)
    actual = learning_coefficient(
        boxed(lambda w: (w[:, 0] * w[:, 1]) ** 2), num_data, start, localisation=0.0, method=WALK
    )
    assert abs(actual.value - exact) < 0.05 * exact


@pytest.mark.slow
@pytest.mark.study  # the narrow valley, below, has such powers and the value of finite n too
@pytest.mark.parametrize(("num_data", "exact"), [(10**3, 0.2090), (10**4, 0.2267), (10**6, 0.2423)])
def test_unlike_powers_have_the_value_of_finite_n(num_data, exact):
    start = torch.zeros(2, dtype=torch.float64)
    actual = learning_coefficient(
        boxed(lambda w: w[:, 0] ** 2 * w[:, 1] ** 4), num_data, start, localisation=0.0, method=WALK
    )
    assert abs(actual.value - exact) < 0.05 * exact


@pytest.mark.slow
def test_a_narrow_valley_has_the_value_of_finite_n():
    """x² y⁴ at 0 with γ = 1 and the settings of the default: steps that acceptance alone adapts miss the valley.

    Given y, x is normal with precision 2 nβ y⁴ + 1, which leaves one integral.
    """
    stiff, y = 2000 / math.log(2000), torch.logspace(-9, 1.2, 400_001, dtype=torch.float64)
    precision = 2 * stiff * y**4 + 1
    density = y * torch.exp(-0.5 * y**2) * precision**-0.5  # one more y as it is even in log y
    exact = float((stiff * y**4 / precision * density).sum() / density.sum())
    method = replace(learning._exact(), chains=640, steps=70, burn_in=50)
    start = torch.zeros(2, dtype=torch.float64)
    actual = learning_coefficient(lambda w: w[:, 0] ** 2 * w[:, 1] ** 4, 2000, start, method=method)
    assert exact == pytest.approx(0.2150, abs=5e-5)
    assert abs(actual.value - exact) < 4 * actual.error
    assert actual.error < 0.04 * exact
    assert not actual.problems


# `near` pins that chains that are right have no problem
@pytest.mark.parametrize("step", [pytest.param(0.2, marks=pytest.mark.study), 2.0])
def test_steps_that_are_too_long_are_told_by_halving_them(step):
    """The law of SGLD on a quadratic of curvature h is wider by 1/(1 − εh/4), and so is λ̂, before and after."""
    stiff = 1000 / math.log(1000)
    method = SGLD(chains=128, steps=360, burn_in=60, thin=1, batch_size=None, step_size=step / stiff)
    settings: dict[str, Any] = {"localisation": 0.0, "method": method}
    start = torch.zeros(1, dtype=torch.float64)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        actual = learning_coefficient(lambda w: 0.5 * (w**2).sum(-1), 1000, start, **settings)
    before, after = (0.5 / (1 - share * step / 4) for share in (1.0, 0.5))
    assert actual.value == pytest.approx((2 * before + after) / 3, rel=0.05)  # half as many steps after
    assert ["steps of half the size give" in str(each.message) for each in said] == [True] * (step > 1)


def test_adapted_steps_are_halved_too(monkeypatch):
    """Metropolis steps of any size leave the density as it is, so that only their size tells that it was halved."""
    runs = []

    def noted(*args, **settings):
        runs.append(run_chains(*args, **settings))
        return runs[-1]

    run_chains = learning.run_chains
    monkeypatch.setattr(learning, "run_chains", noted)
    start, method = torch.zeros(2, dtype=torch.float64), HMC(chains=4, steps=70, burn_in=30, thin=1, mass="diagonal")
    learning_coefficient(lambda w: 0.5 * (w**2).sum(-1), 1000, start, method=method)
    *_, adapted, halved = (run.state.step_size.step_size_M for run in runs)
    assert torch.equal(halved, adapted / 2)


def test_chains_start_as_wide_as_at_a_quarter_of_the_inverse_temperature():
    method = HMC(chains=300, steps=60, burn_in=44, thin=1, mass="unit", step_size=0.02, trajectory=0.12, jitter=0.5)
    stiff, start_D = 1000 / math.log(1000), torch.ones(2, dtype=torch.float64)
    rise, _ = learning.rise_of_function(lambda w: 0.5 * ((w - 1) ** 2).sum(-1), start_D, 1000)
    density = learning.Localised(rise, start_D, localisation=1.0, inverse_temperature=1 / math.log(1000))
    start_MD = learning._dispersed(learning._Problem(density, method, 0.0, 1000), 0)
    ratio = (start_MD - 1).square().mean() * (stiff / 4 + 1)
    assert abs(float(ratio) - 1) < 5 * (2 / 600) ** 0.5
    few = replace(method, burn_in=20)
    assert torch.equal(learning._dispersed(learning._Problem(density, few, 0.0, 1000), 0), start_D.expand(300, 2))


def product():
    """The function a b x, as a network that chains go through together."""
    return nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))


def reduced_rank_exactly(stiff, columns, inner):
    """λ̂ of ½ |bᵀA|² at truth 0 with γ = 1 by quadrature: A is (inner, columns), b a vector, stiff = nβ.

    Given b, the part of A along b has precision stiff |b|² + 1 in each of its columns, so the mean of stiff ½ |bᵀA|² is
    ½ columns stiff |b|²/(stiff |b|² + 1), and what is left is an integral over r = |b|.
    """
    r = torch.logspace(-12, 1.2, 400_001, dtype=torch.float64)
    curved = stiff * r**2 + 1
    density = r**inner * torch.exp(-0.5 * r**2) * curved ** (-columns / 2)  # one more r as it is even in log r
    return float((0.5 * columns * (stiff * r**2 / curved) * density).sum() / density.sum())


def reduced_rank(inner, columns):
    """½ |bᵀA|² as a mean loss, of weights (M, D)."""

    def loss(w):
        a_MHC = w[:, : inner * columns].unflatten(1, (inner, columns))
        return 0.5 * (w[:, None, inner * columns :] @ a_MHC).square().sum((1, 2))

    return loss


@pytest.mark.parametrize(("columns", "inner", "limit"), [(2, 1, 0.5), (3, 2, 1.0), (4, 2, 1.0), (4, 3, 1.5)])
def test_the_quadrature_has_the_limit_of_aoyagi_and_watanabe(columns, inner, limit):
    assert reduced_rank_exactly(1e16, columns, inner) == pytest.approx(limit, rel=0.01)


# the network of two weights, below, is that of one column and one between, and the narrow valley has a finite n
@pytest.mark.slow
@pytest.mark.study
@pytest.mark.parametrize(("columns", "inner"), [(1, 1), (3, 2)])
def test_reduced_rank_regression_has_the_value_of_finite_n(columns, inner):
    start = torch.zeros(inner * (columns + 1), dtype=torch.float64)
    # The arms of the cross a b = 0 are narrow at their ends; larger steps, chosen by acceptance enter them too rarely.
    method = HMC(chains=768, steps=62, burn_in=26, thin=1, jitter=0.3, mass="unit", step_size=0.05, trajectory=1.5)
    actual = learning_coefficient(reduced_rank(inner, columns), 1000, start, method=method)
    near(actual, reduced_rank_exactly(1000 / math.log(1000), columns, inner))


@pytest.mark.slow
def test_a_product_of_two_weights_is_singular():
    inputs = normal(100, 1)
    model = tb.Model(made(product), tb.likelihoods.Gaussian(1.0))
    method = HMC(chains=40, steps=120, burn_in=40, thin=1, jitter=0.3, step_size=0.25, trajectory=1.0)
    actual = learning_coefficient(model, (inputs, 0 * inputs), torch.zeros(2, dtype=torch.float64), method=method)
    exact = reduced_rank_exactly(float(inputs.square().sum()) / math.log(100), 1, 1)
    assert abs(actual.value - exact) < 4.5 * actual.error
    assert actual.error < 0.1 * exact
    assert actual.value < 0.5  # a regular model of two weights has 1


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(
            None, marks=pytest.mark.study
        ),  # `test_the_usual_sampler_is_exact_where_data_are_few` says what it is
        MALA(chains=320, steps=200, burn_in=120, thin=1, mass="diagonal"),
    ],
)
def test_a_linear_model_has_half_its_effective_dimension(method):
    inputs, targets = normal(200, 3), normal(200, 1, seed=2)
    model = tb.Model(made(lambda: nn.Linear(3, 1, bias=False)), tb.likelihoods.Gaussian(0.5))
    best = torch.linalg.lstsq(inputs, targets).solution[:, 0]
    actual = learning_coefficient(model, (inputs, targets), best, localisation=20.0, method=method)
    stiff = torch.linalg.eigvalsh(inputs.T @ inputs) / 0.25 / math.log(200)
    near(actual, 0.5 * float((stiff / (stiff + 20.0)).sum()))
    assert actual.loss == pytest.approx(0.5 * float((targets[:, 0] - inputs @ best).square().mean()) / 0.25 - math.log(
        2 * math.pi * 0.25) * -0.5)  # fmt: skip
    assert actual.num_data == 200
    assert actual.inverse_temperature == pytest.approx(1 / math.log(200))


def test_the_usual_sampler_is_exact_where_data_are_few():
    """HMC with the settings of the narrow valley, above, up to a million rows times weights; SGLD beyond."""
    model = tb.Model(made(lambda: nn.Linear(2, 1, bias=False)), tb.likelihoods.Gaussian(1.0))
    for rows, kind in ((500_000, HMC), (500_001, SGLD)):
        place = learning.place_of(model, (torch.ones(rows, 2), torch.zeros(rows, 1)), torch.zeros(2), batch_size=128)
        actual = learning._of_model(place, None, localisation=1.0, method=None, seed=0, chunk_size=rows).method
        assert isinstance(actual, kind)
        assert (actual.members, actual.thin, actual.burn_in * 2) == (4, 1, actual.steps)
        assert actual.steps == (2000 if kind is HMC else 4000)
        assert actual == learning._exact() or kind is SGLD


def test_a_sampler_with_a_unit_mass_gets_an_adapted_one():
    """The localised density knows of no prior, from which the length of trajectories could be taken."""
    actual = learning_coefficient(lambda w_MD: w_MD.square().mean(1), 1000, torch.zeros(3), method=HMC(64, 120, 70))
    assert isinstance(actual.method, HMC)
    assert actual.method.mass == "diagonal"
    near(actual, 1.5, 0.15)


@pytest.mark.slow
# `test_minibatches_without_noise_are_all_the_data` pins the mean of their gradients, and that of a given step size is
# the chain of `test_steps_that_are_too_long_are_told_by_halving_them`
@pytest.mark.study
@pytest.mark.parametrize("kind", [SGLD, SGHMC])
def test_minibatches_give_the_value_of_all_the_data(kind):
    inputs, targets = normal(600, 3), normal(600, 1, seed=2)
    model = tb.Model(made(lambda: nn.Linear(3, 1, bias=False)), tb.likelihoods.Gaussian(0.5))
    best = torch.linalg.lstsq(inputs, targets).solution[:, 0]
    stiff = torch.linalg.eigvalsh(inputs.T @ inputs) / 0.25 / math.log(600)
    step: dict[str, Any] = {} if kind is SGLD else {"step_size": 0.003 / float(stiff.max())}
    method = kind(chains=320, steps=550, burn_in=200, thin=1, batch_size=60, **step)
    actual = learning_coefficient(model, (inputs, targets), best, localisation=1.0, method=method)
    exact = 0.5 * float((stiff / (stiff + 1.0)).sum())
    assert abs(actual.value - exact) < 0.05 * exact
    assert math.isnan(actual.acceptance)
    size = getattr(actual.method, "step_size", None)
    assert size is not None
    assert size > 0


def test_minibatches_without_noise_are_all_the_data():
    """At w* and near it gradients of minibatches differ little, whatever the slopes of single rows."""
    model, data = problem("regression")
    place = learning.place_of(model, data, model.given_weights(), batch_size=3)
    whole, loss = learning.rise_on_all(place, 5)
    parts, other = learning.rise_on_batches(place, 5, chains=2, seed=0)
    weights = place.weights_D.expand(2, -1)
    assert loss == pytest.approx(other)
    exact, slope = whole(weights)
    rise, gradient = parts(weights)
    assert torch.allclose(rise, torch.zeros(2, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(exact, torch.zeros(2, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(gradient, slope)
    moved = weights + 1e-3 * normal(2, place.weights_D.numel())
    parts, _ = learning.rise_on_batches(place, 5, chains=2, seed=0)
    actual = [parts(moved) for _ in range(4 * 25)]  # whole epochs of four batches
    mean = torch.stack([rise for rise, _ in actual]).mean(0)
    assert torch.allclose(mean, whole(moved)[0], rtol=1e-9, atol=1e-12)
    assert torch.allclose(torch.stack([g for _, g in actual]).mean(0), whole(moved)[1], atol=1e-9)


def test_chains_see_rows_in_orders_of_their_own():
    """Chains that saw the same rows would err alike, and agree on a wrong value."""
    model, data = problem("regression")
    place = learning.place_of(model, data, model.given_weights(), batch_size=3)
    rise_of, _ = learning.rise_on_batches(place, 5, chains=3, seed=0)
    rise, _ = rise_of((place.weights_D + 0.3 * normal(place.weights_D.numel())).expand(3, -1))
    assert len(rise.unique()) == 3


def test_the_stiffness_of_some_rows_stands_for_all_of_them():
    """Every third row is looked at; a linear model of equal rows has the curvature n / σ²."""
    model, rows = tb.Model(made(lambda: nn.Linear(1, 1, bias=False)), tb.likelihoods.Gaussian(0.5)), 4001
    data = (torch.ones(rows, 1, dtype=torch.float64), torch.zeros(rows, 1, dtype=torch.float64))
    place = learning.place_of(model, data, torch.zeros(1, dtype=torch.float64), batch_size=128)
    assert learning._stiffness(place, 1024, 0) == pytest.approx(rows / 0.5**2, rel=1e-9)


def test_a_place_that_is_no_minimum_is_told():
    start = torch.ones(2, dtype=torch.float64)
    with pytest.warns(ProblemWarning, match=r"negative.*not a minimum"):
        actual = learning_coefficient(
            lambda w: 0.5 * (w**2).sum(-1), 1000, start, localisation=1.0, method=replace(QUICK, chains=32)
        )
    assert actual.value < 0


def test_chains_that_have_not_converged_are_told():
    short = HMC(chains=4, steps=30, burn_in=0, thin=1, step_size=0.001, trajectory=0.002, mass="unit")
    with pytest.warns(ProblemWarning, match=r"do not agree.*effective draws"):
        learning_coefficient(lambda w: 0.5 * (w**2).sum(-1), 100, torch.zeros(2).double(), method=short)


@pytest.mark.slow
@pytest.mark.study  # errors are compared with the spread of many chains in the localised quadratic, above
def test_the_error_is_calibrated():
    scores = []
    method = HMC(chains=4, steps=110, burn_in=50, thin=1, jitter=0.2, mass="diagonal", max_leapfrogs=6)
    for seed in range(16):
        actual = learning_coefficient(
            lambda w: 0.5 * (w**2).sum(-1), 1000, torch.zeros(3).double(), localisation=0.0, method=method, seed=seed
        )
        scores.append((actual.value - 1.5) / actual.error)
    assert 0.7 < float(torch.tensor(scores).square().mean().sqrt()) < 1.4


@pytest.mark.parametrize(("name", "method"), some_of(
    ["classifier", "learned noise", "weighted rows", "frozen", "glob", "named", "batches", "one class", "one weight"],
    [HMC(chains=2, steps=16, burn_in=10, thin=1, mass="diagonal", max_leapfrogs=4),
     SGLD(chains=2, steps=16, burn_in=10, thin=1, batch_size=5)],
    one_in=2,
))  # fmt: skip
@pytest.mark.filterwarnings("ignore::torchbayes.posteriors.problems.ProblemWarning")
def test_every_kind_of_model_has_a_coefficient(name, method):
    model, data = problem(name)
    actual = learning_coefficient(model, data, model.given_weights(), method=method)
    again = learning_coefficient(model, data, model.given_weights(), method=method)
    assert math.isfinite(actual.value)
    assert actual.value == again.value
    assert actual.chains_C.shape == (2,)
    assert float(actual.chains_C.mean()) == pytest.approx(actual.value)


@pytest.mark.filterwarnings("ignore::torchbayes.posteriors.problems.ProblemWarning")
def test_batch_norm_runs_in_evaluation():
    model, data = problem("conv")
    for method in (HMC(chains=2, steps=20, burn_in=10, mass="unit", trajectory=0.1, thin=1),
                   SGLD(chains=2, steps=20, burn_in=10, thin=1, batch_size=4)):  # fmt: skip
        assert math.isfinite(learning_coefficient(model, data, model.given_weights(), method=method).value)


def test_one_row_needs_a_temperature():
    model, data = problem("one row")
    with pytest.raises(ValueError, match="inverse_temperature"):
        learning_coefficient(model, data, model.given_weights())


def test_low_precision_is_refused():
    model = tb.Model(made(mlp, double=False).bfloat16(), tb.likelihoods.Categorical())
    with pytest.raises(TypeError, match="bfloat16"):
        learning_coefficient(model, (INPUTS, LABELS), model.given_weights())
