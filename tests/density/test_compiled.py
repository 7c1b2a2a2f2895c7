"""Leapfrog steps compiled together are leapfrog steps."""

import os
import shutil
from functools import partial
from typing import Any

import pytest
import torch
from tests.oracles import assert_close, classes, normal
from torch import Tensor, nn

from torchbayes.density import LogDensity
from torchbayes.density.backend import Evaluation, Trajectory
from torchbayes.density.compiled import Compiled, Unrolled
from torchbayes.density.dynamics import leapfrog
from torchbayes.model import Batch, Model, likelihoods, priors

M, N = 3, 20
LENGTH = 2  # fewer steps to compile


class Residual(nn.Module):
    """A network that the library's kernels do not take."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(inputs))
        return self.head(hidden + torch.tanh(self.second(hidden)))


class Sorting(Residual):
    """A network that looks at its inputs in Python, which the compiler does not take under transforms."""

    calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        Sorting.calls += 1
        order = torch.tensor(inputs[:, 0].argsort().tolist())
        return super().forward(inputs[order])[order.argsort()]


class Encoder(nn.Module):
    """Attention, whose fused operator has no derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.TransformerEncoderLayer(4, 2, 3, batch_first=True), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.body(inputs.unsqueeze(1)).squeeze(1))


def density(prior: Any, plan: Any = "compiled", *, network: Any = Residual, **settings: Any) -> LogDensity:
    model = Model(network().double(), likelihoods.Categorical(), prior, temperature=0.7)
    return LogDensity(model, N, Batch(normal(N, 4, seed=1), classes(N, 3)), plan=plan, **settings)


def go(target: LogDensity, how: Any, steps: list[int], *, massive: bool) -> tuple[Tensor, ...]:
    size, members = target.model.layout.size, len(steps)
    weights_MD = normal(M, size, seed=2)[:members]
    phase = how(
        weights_MD,
        normal(M, size, seed=3)[:members],
        gradient_MD=LogDensity(target.model, N, target.data, plan="vmap")(weights_MD).gradient,
        step_size_M=torch.tensor([0.01, 0.02, -0.03], dtype=torch.float64)[:members],
        steps_M=torch.tensor(steps),
        inverse_mass_MD=normal(M, size, seed=4)[:members].exp() if massive else None,
    )
    return phase.weights_MD, phase.momentum_MD, *phase.value


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Compile by tracing alone; returns a list with one entry per function that was compiled."""
    compiled, own = [], torch.compile

    def tracing(function: Any, **options: Any) -> Any:
        compiled.append(1)
        return own(function, **options, backend="eager", fullgraph=True)

    monkeypatch.setattr(torch, "compile", tracing)
    monkeypatch.setattr("torchbayes.density.compiled.LENGTH", LENGTH)
    torch.compiler.reset()
    return compiled


# the shorter one has no mass, as `test_replayed_graphs_do_not_write_to_what_they_gave` has
@pytest.mark.parametrize("steps", [pytest.param([2, 1, 2], marks=pytest.mark.study), [2 * LENGTH + 1, LENGTH, 1]])
def test_it_is_the_plain_integrator(quick: list[int], steps: list[int]) -> None:
    massive = max(steps) > LENGTH
    prior = {"head.*": priors.Laplace(0.5), "*": priors.StudentT()} if massive else priors.Normal(0.8)
    target = density(prior)
    plain = go(target, partial(leapfrog, target), steps, massive=massive)
    quick.clear()
    for _ in range(2):
        for actual, expected in zip(go(target, target.leapfrog, steps, massive=massive), plain, strict=True):
            assert_close(actual, expected)
    assert len(quick) == 1, "one function is compiled, once"


@pytest.mark.usefixtures("quick")
def test_encoders_of_transformers_are_compiled_by_their_parts() -> None:
    target, plain = (density(priors.Normal(0.8), plan, network=Encoder) for plan in ("compiled", "vmap"))
    weights_MD = normal(M, target.model.layout.size)
    assert_close(target(weights_MD).gradient, plain(weights_MD).gradient)
    expected = go(plain, partial(leapfrog, plain), [2, 2, 1], massive=False)
    for ours, theirs in zip(go(target, target.leapfrog, [2, 2, 1], massive=False), expected, strict=True):
        assert_close(ours, theirs)


def test_python_of_a_network_runs_in_the_trace_alone(quick: list[int]) -> None:
    torch.manual_seed(0)
    target = density(priors.Normal(0.8), network=Sorting)
    plain = go(target, partial(leapfrog, density(priors.Normal(0.8), "vmap")), [4, 3, 2], massive=True)
    quick.clear()
    for _ in range(2):
        Sorting.calls = 0
        actual = go(target, target.leapfrog, [4, 3, 2], massive=True)
        for ours, expected in zip(actual, plain, strict=True):
            assert_close(ours, expected)
    assert Sorting.calls == 1, "of the gradient at the start"
    assert len(quick) == 1
    fewer = go(target, target.leapfrog, [4, 3], massive=True)  # chains that go on without another
    for ours, expected in zip(fewer, plain, strict=True):
        assert_close(ours, expected[:2])


def test_replayed_graphs_do_not_write_to_what_they_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    """As CUDA graphs do, the stand-in gives the same memory at every call."""
    modes, own = [], dict[int, tuple[Tensor, ...]]()

    def replaying(function: Any, **options: Any) -> Any:
        modes.append(options["mode"])

        def run(*given: Any) -> tuple[Tensor, ...]:
            actual = function(*given)
            kept = own.setdefault(len(modes), tuple(torch.empty_like(t) for t in actual))
            return tuple(place.copy_(t) for place, t in zip(kept, actual, strict=True))

        return run

    monkeypatch.setattr(torch, "compile", replaying)
    monkeypatch.setattr("torchbayes.density.compiled.LENGTH", LENGTH)
    target, steps = density(priors.Normal(0.8), plan="vmap"), [2 * LENGTH, LENGTH, 1]
    assert target.data is not None
    unrolled = Unrolled(target.model, target.data, target.model.scales(N, N), graphs=True)

    def by_graphs(*phase: Tensor, **about: Any) -> Any:
        mass_MD = about.pop("inverse_mass_MD")
        data, scales = target.data, target.model.scales(N, N)
        assert data is not None
        return unrolled(Trajectory(*phase, **about, inverse_mass_MD=mass_MD, data=data, scales=scales))

    first = go(target, by_graphs, steps, massive=False)
    go(target, by_graphs, steps, massive=True)
    for actual, expected in zip(first, go(target, partial(leapfrog, target), steps, massive=False), strict=True):
        assert_close(actual, expected)
    assert modes == ["reduce-overhead"]


def test_replayed_evaluations_do_not_write_to_what_they_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    modes, kept = [], list[Tensor]()

    def replaying(function: Any, **options: Any) -> Any:
        modes.append(options["mode"])

        def run(*given: Any) -> Tensor:
            actual = function(*given)
            if kept:
                kept[0].copy_(actual.detach())
                actual.data = kept[0]  # the same memory at every call, with the graph of this one
            else:
                kept.append(actual.detach())
            return actual

        return run

    monkeypatch.setattr(torch, "compile", replaying)
    target = density(priors.Normal(0.8), plan="vmap")
    backend, data = Compiled(target.model, graphs=True), target.data
    assert data is not None
    weights_MD, seen = normal(M, target.model.layout.size), []
    for scale in (1.0, 0.5):
        gradient_MD = torch.zeros_like(weights_MD)
        own = Evaluation(scale * weights_MD, data, True, None, None, target.model.scales(N, N), gradient_MD)
        seen.append((backend.evaluate(own)[0], gradient_MD))
    for (found_M, gradient_MD), scale in zip(seen, (1.0, 0.5), strict=True):
        expected = target(scale * weights_MD)
        assert_close(found_M, expected.log_likelihood)
        own_MD = torch.zeros_like(gradient_MD)
        target.model.prior.add_gradient_(own_MD, scale * weights_MD, target.model.scales(N, N).prior)
        assert_close(gradient_MD + own_MD, expected.gradient)
    assert modes == ["reduce-overhead"]


def test_data_in_chunks_are_left_to_the_plain_integrator(quick: list[int]) -> None:
    target = density(priors.Normal(0.8), chunk_size=10)
    target(normal(M, target.model.layout.size))
    quick.clear()
    go(target, target.leapfrog, [5, 5, 5], massive=False)
    assert not quick


# `test_it_is_the_plain_integrator` pins the traced steps, and densities are compiled to code in test_density.py
@pytest.mark.study
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
@pytest.mark.skipif(
    not any(shutil.which(name) for name in (os.environ.get("CXX", "c++"), "g++", "clang++")),
    reason="torch.compile needs a C++ compiler, and none is installed",
)
def test_compiled_code_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    monkeypatch.setattr("torchbayes.density.compiled.LENGTH", 1)  # a step is what takes long to compile
    target = density(priors.Normal(0.8))
    plain = go(target, partial(leapfrog, density(priors.Normal(0.8), "vmap")), [5, 2, 4], massive=True)
    for actual, expected in zip(go(target, target.leapfrog, [5, 2, 4], massive=True), plain, strict=True):
        assert_close(actual, expected)
