"""Densities in a subspace: the kernel, which lifts coordinates itself, against autograd through the whole network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.covering import some_of
from tests.oracles import assert_close, normal
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.density.density import LogDensity
from torchbayes.density.kernels import DenseModel, kernel_of
from torchbayes.methods.mcmc.elliptical import _MOST
from torchbayes.model.subspace import in_parameters, space_of
from torchbayes.native.build import UnavailableError, available

M, N, RANK, FEATURES, K = 3, 40, 4, 5, 3
LABELS = torch.arange(N) % K
native = pytest.mark.skipif(not available(), reason="kernels cannot be built here")


def dense() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, K)).double()


def convolutional() -> nn.Sequential:
    torch.manual_seed(0)
    front = nn.Conv2d(1, 3, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    return nn.Sequential(*front, nn.Linear(12, K)).double()


def batch(likelihood: Any, *, images: bool = False) -> tb.Batch:
    inputs = normal(N, 1, 5, 5) if images else normal(N, FEATURES)
    if isinstance(likelihood, tb.likelihoods.Categorical):
        return tb.Batch(inputs, LABELS)
    width = 1 if isinstance(likelihood, tb.likelihoods.HeteroscedasticGaussian) else K
    return tb.Batch(inputs, normal(N, width, seed=5))


def half() -> dict[str, Tensor]:
    return {"0.weight": torch.arange(8 * FEATURES).view(8, FEATURES) % 2 == 0, "4.bias": torch.ones(K).bool()}


def two_outputs() -> nn.Sequential:
    *body, _ = dense()
    return nn.Sequential(*body, nn.Linear(8, 2).double())


CATEGORICAL, FIXED = tb.likelihoods.Categorical(), tb.likelihoods.Gaussian((0.5, 0.6, 0.7))
CASES: dict[str, tuple[Callable[[], nn.Sequential], Any, dict[str, Any], dict[str, Any]]] = {
    "classes": (dense, CATEGORICAL, {}, {}),
    "fixed noise": (dense, FIXED, {}, {}),
    "learned noise": (dense, tb.likelihoods.Gaussian("learned"), {}, {}),
    "heteroscedastic": (two_outputs, tb.likelihoods.HeteroscedasticGaussian(), {}, {}),
    "images": (convolutional, CATEGORICAL, {}, {}),
    "random head": (dense, CATEGORICAL, {"random": "4.*"}, {}),
    "random elements": (dense, tb.likelihoods.Gaussian("learned"), {"random": half()}, {}),
    "prior of coordinates": (dense, CATEGORICAL, {"prior": tb.priors.Flat()}, {"prior_scale": 0.7}),
    "shifted prior": (dense, FIXED, {"prior": tb.priors.Normal(0.4, 0.2)}, {}),
    "tempered": (dense, CATEGORICAL, {"temperature": 3.0, "tempering": "likelihood"}, {}),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def problem(case: Any) -> tuple[tb.Subspace, tb.Batch, Tensor]:
    """A subspace, the data, and coordinates of three members."""
    network, likelihood, settings, own = case
    model = tb.Model(network(), likelihood, **{"prior": tb.priors.Normal(0.8), **settings})
    space = tb.Subspace.random(model, model.network.weights(), RANK, seed=1, **own)
    return space, batch(likelihood, images=network is convolutional), 0.5 * normal(M, space.model.layout.size, seed=2)


def densities(space: tb.Subspace, data: tb.Batch, chunk_size: int = 1024) -> list[LogDensity]:
    return [LogDensity(space.model, N, data, plan=plan, chunk_size=chunk_size) for plan in ("auto", "loop")]


@native
@cases
@pytest.mark.parametrize("chunk_size", [1024, 7])
def test_value_and_gradient_are_those_of_the_slow_way(case: Any, chunk_size: int) -> None:
    space, data, coordinates_MR = problem(case)
    fast, slow = densities(space, data, chunk_size)
    for actual, expected in zip(fast(coordinates_MR), slow(coordinates_MR), strict=True):
        assert_close(actual, expected, rtol=1e-11, atol=1e-11)
    assert fast.plan is not None
    assert fast.plan.backend == "native"
    value = fast.value(coordinates_MR)
    assert torch.equal(value.log_density, fast(coordinates_MR).log_density)
    minibatches = data.map(lambda t: torch.stack([t[:9], t[9:18], t[18:27]]))
    for actual, expected in zip(
        fast.loss(coordinates_MR, minibatches), slow.loss(coordinates_MR, minibatches), strict=True
    ):
        assert_close(actual, expected, rtol=1e-11, atol=1e-11)
    nll = fast.nll(coordinates_MR)
    assert_close(nll.gradient, slow.nll(coordinates_MR).gradient, rtol=1e-11, atol=1e-12)


@native
@cases
def test_the_density_is_that_of_the_whole_model_at_the_lifted_weights(case: Any) -> None:
    """By hand: likelihood at lift(u), gradient by the axes, and the prior of the coordinates."""
    space, data, coordinates_MR = problem(case)
    whole, rank = LogDensity(space.whole, N, data, plan="loop").nll(space.lift(coordinates_MR)), space.rank
    actual, size = LogDensity(space.model, N, data).nll(coordinates_MR), space.axes_RD.shape[1]
    assert_close(actual.log_likelihood, whole.log_likelihood, rtol=1e-11)
    assert_close(actual.gradient[:, :rank], whole.gradient[:, :size] @ space.axes_RD.T, rtol=1e-10, atol=1e-12)
    assert_close(actual.gradient[:, rank:], whole.gradient[:, size:], rtol=1e-10)
    full, scales = LogDensity(space.model, N, data)(coordinates_MR), space.model.scales(N, N)
    expected = scales.likelihood * whole.log_likelihood + scales.prior * space.model.log_prior(coordinates_MR)
    assert_close(full.log_density, expected, rtol=1e-11)


@native
@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.study)])
def test_leapfrog_steps_are_those_of_the_slow_way(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        space, data, coordinates_MR = problem(CASES["learned noise"])
        fast, slow = densities(space, data)
        about: dict[str, Any] = {
            "gradient_MD": slow(coordinates_MR).gradient,
            "step_size_M": torch.tensor([0.01, 0.02, -0.01]).double(),
            "steps_M": torch.tensor([1, 4, 6]),
            "inverse_mass_MD": normal(M, space.model.layout.size, seed=3).abs(),
        }
        momentum_MR = normal(M, space.model.layout.size, seed=4)
        fast(coordinates_MR)
        actual, expected = (each.leapfrog(coordinates_MR, momentum_MR, **about) for each in (fast, slow))
        assert_close(actual.weights_MD, expected.weights_MD, rtol=1e-10)
        assert_close(actual.momentum_MD, expected.momentum_MD, rtol=1e-10)
        assert_close(actual.value.log_density, expected.value.log_density, rtol=1e-10)
        assert_close(actual.value.gradient, expected.value.gradient, rtol=1e-9)
    finally:
        torch.set_num_threads(before)


SAMPLERS: dict[str, Callable[[str], Any]] = {
    "elliptical slice": lambda plan: tb.EllipticalSlice(M, 12, 2, plan=plan),
    "hmc": lambda plan: tb.HMC(M, 12, 2, step_size=0.05, trajectory=0.2, plan=plan),
    "nuts": lambda plan: tb.NUTS(M, 12, 2, step_size=0.05, max_doublings=3, plan=plan),
}


@native
@pytest.mark.parametrize(
    ("name", "make"),
    some_of(["classes", "learned noise", "random head", "prior of coordinates"], SAMPLERS.values(), one_in=2),
)
@pytest.mark.filterwarnings("ignore::torchbayes.posteriors.problems.ProblemWarning")
def test_draws_are_those_of_the_slow_way(name: str, make: Callable[[str], Any]) -> None:
    space, data, _ = problem(CASES[name])
    fast, slow = (
        tb.fit(space.whole, (data.inputs, data.targets), make(plan), space=space, seed=3, callbacks=()).sample(10 * M)
        for plan in ("native", "loop")
    )
    assert_close(fast, slow, rtol=1e-8, atol=1e-9)


@native
def test_outputs_are_those_of_the_whole_network() -> None:
    space, data, coordinates_MR = problem(CASES["random elements"])
    actual = tb.Functions(space.model, coordinates_MR)(data.inputs)
    assert_close(actual, tb.Functions(space.whole, space.lift(coordinates_MR))(data.inputs), rtol=1e-11)


@native
def test_float32_is_near_float64() -> None:
    network, likelihood, *_ = CASES["classes"]
    model = tb.Model(network().float(), likelihood, tb.priors.Normal(0.8))
    space = tb.Subspace.random(model, model.network.weights(), RANK, seed=1)
    expected, data, coordinates_MR = problem(CASES["classes"])
    actual = LogDensity(space.model, N, data._replace(inputs=data.inputs.float()))(coordinates_MR.float())
    exact = LogDensity(expected.model, N, data)(coordinates_MR)
    assert_close(actual.log_density, exact.log_density, rtol=1e-5)
    assert_close(actual.gradient.double(), exact.gradient, rtol=1e-3, atol=1e-3)


def test_a_subspace_of_all_parameters_leaves_constants_as_they_are() -> None:
    space, *_ = problem(CASES["random elements"])
    layout, centre_E, axes_RE = in_parameters(space)
    names = [name for name, _ in space.whole.network.module.named_parameters()]
    coordinates_R = normal(RANK, seed=8)
    views = layout.split(centre_E + coordinates_R @ axes_RE)
    weights = space.whole.network.layout.split(space.lift(coordinates_R))
    assert torch.equal(views["2.weight"], dense().get_parameter("2.weight"))
    where = half()["0.weight"]
    assert torch.equal(views["0.weight"][~where], dense().get_parameter("0.weight")[~where])
    assert_close(views["0.weight"][where], weights["0.weight"], rtol=1e-12)
    assert_close(views["4.bias"], weights["4.bias"], rtol=1e-12)
    assert layout.names == tuple(names)


def test_models_over_weights_are_in_no_subspace() -> None:
    space, *_ = problem(CASES["classes"])
    assert space_of(space.model) is space
    assert space_of(space.whole) is None


@native
def test_weighted_rows_and_other_networks_take_the_loop() -> None:
    """Neither is one of the kernel's, in a subspace as outside; values are those of the whole model."""
    weighted = tb.likelihoods.Weighted(CATEGORICAL)
    first, activation, second, _, last = dense()
    network = nn.Sequential(first, activation, second, nn.GELU(), last)
    rows = (LABELS, normal(N, seed=7).abs())
    for model, targets in (
        (tb.Model(dense(), weighted, tb.priors.Normal(0.8)), rows),
        (tb.Model(network, CATEGORICAL, tb.priors.Normal(0.8)), LABELS),
    ):
        space = tb.Subspace.random(model, model.network.weights(), RANK)
        assert isinstance(kernel_of(space.model), UnavailableError)
        data, coordinates_MR = tb.Batch(normal(N, FEATURES), targets), normal(M, RANK, seed=2)
        actual = LogDensity(space.model, N, data, plan="loop").nll(coordinates_MR)
        whole = LogDensity(model, N, data, plan="loop").nll(space.lift(coordinates_MR))
        assert_close(actual.log_likelihood, whole.log_likelihood, rtol=1e-11)
        assert_close(actual.gradient, whole.gradient @ space.axes_RD.T, rtol=1e-10, atol=1e-12)


@native
def test_noise_in_layers_is_not_taken_into_a_subspace() -> None:
    """Variational inference by layers needs weights that are random by layers: in a subspace it draws coordinates."""
    space, data, _ = problem(CASES["classes"])
    assert isinstance(kernel_of(space.model), DenseModel)
    method = tb.VI(epochs=2, batch_size=N, kl_weight=1.0, estimator="local")
    actual = tb.fit(space.whole, (data.inputs, data.targets), method, space=space, callbacks=())
    assert torch.isfinite(actual.sample(2)).all()


# --- a step of elliptical slice sampling in one call ---


@native
def test_a_step_of_all_weights_in_one_call_is_that_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tb.Model(dense(), CATEGORICAL, tb.priors.Normal(0.8, 0.1), temperature=2.0)
    data, start_MD = batch(CATEGORICAL), 0.3 * normal(M, model.layout.size, seed=2)
    method, density = tb.EllipticalSlice(M, 100, 0), LogDensity(model, N, data)
    state = method.init(density, start_MD, seeds=[1, 2, 3])
    fast, seen = method.step(density, state)
    monkeypatch.setattr("torchbayes.methods.mcmc.elliptical.slice_along", lambda *_, **__: None)
    slow, expected = method.step(density, state)
    for name in ("weights_MD", "log_density_M", "log_likelihood_M", "level_M"):
        assert_close(getattr(fast, name), getattr(slow, name), rtol=1e-11)
    for name, value in expected.means().items():
        assert_close(seen.means()[name], value, rtol=1e-11)
    assert fast.step == slow.step == 1


@native
def test_chains_that_find_no_point_stay_where_they_are() -> None:
    """A height that no point reaches, and a likelihood that is nowhere finite."""
    model = tb.Model(dense(), CATEGORICAL, tb.priors.Normal(0.8))
    data, start_MD = batch(CATEGORICAL), 0.3 * normal(2, model.layout.size, seed=2)
    method, density = tb.EllipticalSlice(2, 100, 0), LogDensity(model, N, data)
    state = method.init(density, start_MD, seeds=[1, 2])
    high = torch.tensor([1e6, 0.0]).double()
    state.level_M.add_(high)
    new, info = method.step(density, state)
    assert torch.equal(new.weights_MD[0], start_MD[0])
    assert new.log_density_M[0] == state.log_density_M[0]
    assert info.gradients_M[0] == _MOST
    assert info.acceptance_M.tolist() == [0.0, 1.0]
    assert not torch.equal(new.weights_MD[1], start_MD[1])
    poisoned = LogDensity(model, N, data._replace(inputs=data.inputs * torch.nan), plan="native")
    stuck, info = method.step(poisoned, state)
    assert torch.equal(stuck.weights_MD, start_MD)
    assert info.outside_M.tolist() == [1.0, 1.0]
