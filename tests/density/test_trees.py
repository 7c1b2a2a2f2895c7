"""Iterations of NUTS in one call of the kernel: those that are taken step by step, draw by draw."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.oracles import assert_close, normal
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.density.density import LogDensity
from torchbayes.methods.mcmc import nuts
from torchbayes.methods.mcmc.tree_kernel import Growth, grow
from torchbayes.methods.sampler import Info
from torchbayes.native.build import available
from torchbayes.randomness.seeds import member_seeds

pytestmark = pytest.mark.skipif(not available(), reason="kernels cannot be built here (compiler or MKL missing)")
M, N, FEATURES, K = 3, 30, 4, 3
LABELS, NUMBERS = torch.arange(N) % K, normal(N, 1, seed=5)


def network(outputs: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), nn.Linear(6, outputs)).double()


def model(outputs: int = 1, likelihood: Any = None, prior: Any = None, **settings: Any) -> tb.Model:
    likelihood = likelihood or tb.likelihoods.Gaussian(0.3)
    return tb.Model(network(outputs), likelihood, prior or tb.priors.Normal(0.7, 0.2), **settings)


def coordinates() -> tb.Model:
    whole = model(K, tb.likelihoods.Categorical())
    return tb.Subspace.random(whole, whole.network.weights(), 5, seed=1).model


MODELS: dict[str, Callable[[], tb.Model]] = {
    "regression": model,
    "classes": lambda: model(K, tb.likelihoods.Categorical(), temperature=0.3),
    "learned noise": lambda: model(likelihood=tb.likelihoods.Gaussian("learned"), prior=tb.priors.Normal(0.7)),
    "flat": lambda: model(
        likelihood=tb.likelihoods.Gaussian(2.0), prior={"0.*": tb.priors.Flat(), "*": tb.priors.Normal()}
    ),
    "groups and heavy tails": lambda: model(
        prior={"0.*": tb.priors.Hierarchical(0.6, 3.0, "columns"), "*": tb.priors.StudentT(4.0, 0.7, 0.2)}
    ),
    "subspace": coordinates,
}
each_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def on(target: tb.Model, *, plan: Any = "auto", dtype: torch.dtype = torch.float64) -> LogDensity:
    targets = LABELS if isinstance(target.likelihood, tb.likelihoods.Categorical) else NUMBERS.to(dtype)
    return LogDensity(target, N, tb.Batch(normal(N, FEATURES).to(dtype), targets), plan=plan)


def both(
    method: tb.NUTS, density: LogDensity, state: Any, monkeypatch: pytest.MonkeyPatch
) -> tuple[tuple[Any, Info], tuple[Any, Info]]:
    """An iteration in one call of the kernel, and the same by doublings."""
    fast = method.step(density, state)
    with monkeypatch.context() as slowly:
        slowly.setattr(nuts, "grow", lambda *_, **__: None)
        return fast, method.step(density, state)


def assert_same(fast: tuple[Any, Info], slow: tuple[Any, Info], rtol: float = 1e-8) -> None:
    for name in ("weights_MD", "gradient_MD", "log_density_M", "log_likelihood_M"):
        assert_close(getattr(fast[0], name), getattr(slow[0], name), rtol=rtol, atol=rtol)
    seen, expected = fast[1].means(), slow[1].means()
    assert seen.keys() == expected.keys()
    for name, value in expected.items():
        assert_close(seen[name], value, rtol=rtol, atol=rtol)


@each_model
@pytest.mark.parametrize("mass", ["unit", "diagonal", "dense"])
def test_an_iteration_in_one_call_is_that_by_doublings(
    make: Callable[[], tb.Model], mass: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    density, method = on(make()), tb.NUTS(M, 60, 20, mass=mass, max_doublings=4)
    state = method.init(density, 0.3 * normal(M, density.model.layout.size, seed=2), seeds=member_seeds(0, M))
    assert density.plan is not None
    assert density.plan.backend == "native"
    sizes = set()
    for number in range(25):  # the mass is learned from the first 20
        if number % 8 == 0:
            fast, slow = both(method, density, state, monkeypatch)
            assert_same(fast, slow, rtol=1e-6)  # trajectories part from each other exponentially
        state, info = method.step(density, state)
        sizes |= set(info.means()["gradients"].tolist())
    assert max(sizes) > 4


def test_trajectories_that_diverge_or_leave_the_support_end_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    density, seen = on(model()), []
    start_MD = 0.3 * normal(M, density.model.layout.size, seed=2)
    for step_size in (0.02, 0.15, 3.0, 1e60, 1e160):
        method = tb.NUTS(M, 20, 0, step_size=step_size, mass="unit", max_doublings=3)
        state = method.init(density, start_MD, seeds=member_seeds(0, M))
        fast, slow = both(method, density, state, monkeypatch)
        assert_same(fast, slow)
        seen.append({name: float(value.mean()) for name, value in fast[1].means().items()})
    assert [each["saturated"] for each in seen] == [1.0, seen[1]["saturated"], 0.0, 0.0, 0.0]
    assert [each["divergent"] for each in seen[2:]] == [1.0] * 3
    assert [each["outside"] for each in seen] == [0.0, 0.0, 0.0, seen[3]["outside"], 1.0]
    assert torch.equal(fast[0].weights_MD, start_MD)


def test_a_likelihood_that_is_nowhere_finite_leaves_chains_where_they_are() -> None:
    density, method = on(model()), tb.NUTS(M, 20, 0, step_size=0.1, mass="unit")
    state = method.init(density, 0.3 * normal(M, density.model.layout.size, seed=2), seeds=member_seeds(0, M))
    poisoned = LogDensity(density.model, N, tb.Batch(normal(N, FEATURES) * torch.nan, NUMBERS), plan="native")
    new, info = method.step(poisoned, state)
    for name in ("weights_MD", "gradient_MD", "log_density_M", "log_likelihood_M"):
        assert torch.equal(getattr(new, name), getattr(state, name))
    assert info.means()["outside"].tolist() == info.means()["gradients"].tolist() == [1.0] * M


def test_the_state_before_is_intact_and_a_chain_is_the_same_alone(threads: int) -> None:
    density, method = on(model()), tb.NUTS(M, 20, 0, step_size=0.05, mass="unit")
    start_MD, seeds = 0.3 * normal(M, density.model.layout.size, seed=2), member_seeds(0, M)
    state = method.init(density, start_MD, seeds=seeds)
    copies = [t.clone() for t in (state.weights_MD, state.gradient_MD, state.log_density_M, state.log_likelihood_M)]
    new, _ = method.step(density, state)
    held = (state.weights_MD, state.gradient_MD, state.log_density_M, state.log_likelihood_M)
    assert all(map(torch.equal, held, copies))
    for chain, seed in enumerate(seeds):
        alone, _ = method.step(density, method.init(density, start_MD[chain : chain + 1], seeds=[seed]))
        assert_close(alone.weights_MD[0], new.weights_MD[chain], rtol=1e-9)


def test_float32_is_near_the_steps_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    single = tb.Model(network(1).float(), tb.likelihoods.Gaussian(0.3), tb.priors.Normal(0.7))
    density, method = on(single, dtype=torch.float32), tb.NUTS(M, 20, 0, step_size=0.05, mass="unit", max_doublings=3)
    state = method.init(density, 0.3 * normal(M, single.layout.size, seed=2).float(), seeds=member_seeds(0, M))
    fast, slow = both(method, density, state, monkeypatch)
    assert_same(fast, slow, rtol=1e-3)
    assert fast[0].weights_MD.dtype == torch.float32


@pytest.mark.parametrize("why", ["prior", "plan", "minibatches"])
def test_densities_that_are_not_the_kernels_offer_none(why: str) -> None:
    target = model(prior=tb.priors.Laplace()) if why == "prior" else model()
    density = on(target, plan="loop" if why == "plan" else "auto")
    weights_MD = 0.3 * normal(M, target.layout.size, seed=2)
    value, one_M = density(weights_MD), torch.ones(M, dtype=torch.float64)
    about: dict[str, Any] = {"value": value, "kinetic_M": one_M, "factor": torch.ones_like(weights_MD)}
    about |= {"step_size_M": one_M, "streams_M": torch.arange(M), "doublings": 2, "divergence": 1e3}
    if why == "minibatches":
        density.data = None
    assert grow(density, Growth(weights_MD, weights_MD, **about)) is None


def test_a_label_that_is_no_class_is_refused() -> None:
    density = on(model(K, tb.likelihoods.Categorical()))
    method = tb.NUTS(M, 20, 0, step_size=0.05, mass="unit")
    start_MD: Tensor = 0.3 * normal(M, density.model.layout.size, seed=2)
    state = method.init(density, start_MD, seeds=member_seeds(0, M))
    assert density.data is not None
    wrong = LogDensity(density.model, N, tb.Batch(density.data.inputs, LABELS), plan="native")
    assert wrong.data is not None
    wrong.data.targets[0] = K
    with pytest.raises(ValueError, match=r"class labels must lie in 0\.\.2"):
        method.step(wrong, state)
