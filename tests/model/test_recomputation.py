"""Networks that checkpoint their layers have the values and gradients of those that do not."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import torchbayes as tb
from tests.oracles import assert_close, normal
from torchbayes.checks import SettingError
from torchbayes.density import LogDensity
from torchbayes.density.backend import Mixing
from torchbayes.model.model import Batch
from torchbayes.native.recomputation import activations_kept

X, Y = normal(12, 3), torch.arange(12) % 2
counted = threading.local()


class Block(nn.Module):
    """A layer that says how often it runs."""

    def __init__(self, width: int, *, rate: float = 0.0, norm: bool = False) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(width, width), nn.BatchNorm1d(width) if norm else nn.Identity()
        self.drop = nn.Dropout(rate)

    def forward(self, inputs: Tensor) -> Tensor:
        counted.runs = getattr(counted, "runs", 0) + 1
        return inputs + self.drop(self.norm(self.linear(inputs)).tanh())


class Deep(nn.Module):
    """A network of blocks, run as `way` says; "never" has the same weights and no checkpoints."""

    def __init__(self, way: str, **settings: Any) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(3, 4)
        self.blocks, self.last = nn.ModuleList([Block(4, **settings) for _ in range(3)]), nn.Linear(4, 2)
        self.way = way
        self.double()

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        if self.way == "sequential":
            return self.last(checkpoint_sequential([*self.blocks], 3, hidden, use_reentrant=False))
        for block in self.blocks:
            hidden = self.through(block, hidden)
        return self.last(hidden)

    def through(self, block: nn.Module, hidden: Tensor) -> Tensor:
        if self.way == "never":
            return block(hidden)
        if self.way == "nested":
            return checkpoint(lambda x: checkpoint(block, x, use_reentrant=False), hidden, use_reentrant=False)
        return checkpoint(block, hidden, use_reentrant=self.way == "reentrant")


EVERY = ["non-reentrant", "reentrant", "nested", "sequential"]


def model(way: str, **settings: Any) -> tb.Model:
    return tb.Model(Deep(way, **settings), tb.likelihoods.Categorical(), tb.priors.Normal(1.0))


def weights(of: tb.Model, members: int = 3) -> Tensor:
    return of.given_weights() + 0.3 * normal(members, of.layout.size)


def minibatches(members: int = 3) -> Batch:
    return Batch(normal(members, 6, 3), (torch.arange(members * 6) % 2).view(members, 6))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("way", EVERY)
def test_density_and_gradient_are_those_without_checkpoints(way: str, training: bool) -> None:
    actual, oracle = (
        LogDensity(one, 12, Batch(X, Y), chunk_size=5, training=training) for one in (model(way), model("never"))
    )
    for batch in (None, minibatches()):
        one, other = (density(weights(density.model), batch) for density in (actual, oracle))
        assert_close(one.log_density, other.log_density, rtol=1e-13)
        assert_close(one.gradient, other.gradient, rtol=1e-12, atol=1e-13)
    assert actual.plan is not None
    assert actual.plan.backend == "loop"


@pytest.mark.parametrize("way", EVERY)
def test_activations_are_recomputed_once(way: str) -> None:
    for name, expected in (("never", 3), (way, 5 if way == "sequential" else 6)):
        density = LogDensity(model(name), 12, Batch(X, Y), plan="loop", chunk_size=12)
        density(weights(density.model, 1))
        counted.runs = 0
        density(weights(density.model, 1))
        assert counted.runs == expected


@pytest.mark.parametrize("way", EVERY)
def test_draws_that_share_a_graph_are_each_run_again_with_their_own_weights(way: str) -> None:
    values = []
    for one in (model(way), model("never")):
        density = LogDensity(one, 12, plan="loop")
        batch = minibatches(4)
        rows = batch.map(lambda t: t[[0, 0, 2, 2]])
        values.append(density.nll(weights(one, 4), rows, mixing=Mixing(2, 0.7)))
    assert_close(values[0].gradient, values[1].gradient, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("way", EVERY)
def test_dropout_has_the_masks_of_the_first_pass(way: str) -> None:
    models, values = (model(way, rate=0.4), model("never", rate=0.4)), []
    state = torch.get_rng_state()
    for one in models:
        density = LogDensity(one, 12, plan="loop", training=True)
        values.append([density(weights(one), minibatches(), seeds=[seed, 2, 3]) for seed in (1, 4)])
    for actual, oracle in zip(*values, strict=True):
        assert_close(actual.log_density, oracle.log_density, rtol=1e-13)
        assert_close(actual.gradient, oracle.gradient, rtol=1e-12, atol=1e-13)
    assert not torch.equal(values[0][0].gradient[0], values[0][1].gradient[0])
    assert torch.equal(values[0][0].gradient[1:], values[0][1].gradient[1:])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("way", EVERY)
def test_statistics_of_batch_norm_are_updated_once(way: str) -> None:
    actual = []
    for one in (model(way, norm=True), model("never", norm=True)):
        density = LogDensity(one, 12, plan="loop", training=True)
        buffers = one.network.stacked_buffers(3)
        value = density(weights(one), minibatches(), buffers=buffers)
        actual.append((value.gradient, buffers))
    assert_close(actual[0][0], actual[1][0], rtol=1e-12, atol=1e-13)
    for name, buffer in actual[1][1].items():
        assert_close(actual[0][1][name], buffer, rtol=1e-13)
        assert torch.equal(actual[0][1][name], buffer)


def test_norms_of_spectra_are_run_again_with_the_vectors_of_the_first_pass() -> None:
    values = []
    for way in ("non-reentrant", "never"):
        network: Any = Deep(way).train()
        for block in network.blocks:
            nn.utils.parametrizations.spectral_norm(block.linear)
        one = tb.Model(network, tb.likelihoods.Categorical(), tb.priors.Normal(1.0))
        density, buffers = LogDensity(one, 12, plan="loop", training=True), one.network.stacked_buffers(2)
        values.append(density(weights(one, 2), minibatches(2), buffers=buffers))
    assert_close(values[0].gradient, values[1].gradient, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("way", EVERY)
def test_graphs_that_live_on_are_exact(way: str) -> None:
    """Two graphs at once, kept for a second pass, differentiated twice, and by many columns at once."""
    actual = []
    for one in (model(way), model("never")):
        first, second = (w.requires_grad_() for w in weights(one, 2))
        outputs = [one.network(w, X) for w in (first, second)]
        one.network(first.detach() + 1, X)
        (gradient,) = torch.autograd.grad(outputs[0].logsumexp(-1).sum(), first, create_graph=True)
        (curved,) = torch.autograd.grad(gradient.square().sum(), first, retain_graph=True)
        (again,) = torch.autograd.grad(outputs[0].logsumexp(-1).sum(), first, retain_graph=True)
        rows = torch.eye(24, dtype=torch.float64).view(24, 12, 2)
        (jacobian,) = torch.autograd.grad(outputs[1], second, rows, is_grads_batched=True)
        actual.append((gradient.detach(), curved, again, jacobian))
    for one, other in zip(*actual, strict=True):
        assert_close(one, other, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("way", EVERY)
def test_four_threads_at_once(way: str) -> None:
    one, oracle = model(way, rate=0.3), model("never", rate=0.3)
    density = LogDensity(one, 12, plan="loop", training=True)
    alone = LogDensity(oracle, 12, plan="loop", training=True)
    given, state = weights(one, 4), torch.get_rng_state()

    def gradient(number: int) -> Tensor:
        batch = minibatches(4).map(lambda t: t[number : number + 1])
        actual = [density(given[number : number + 1], batch, seeds=[number]).gradient for _ in range(20)]
        assert all(torch.equal(each, actual[0]) for each in actual)
        return actual[0]

    with ThreadPoolExecutor(4) as pool:
        together = torch.cat([*pool.map(gradient, range(4))])
    assert_close(together, alone(given, minibatches(4), seeds=range(4)).gradient, rtol=1e-12, atol=1e-13)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_backward_pass_in_another_thread_is_refused() -> None:
    one = model("non-reentrant")
    leaf = one.given_weights().requires_grad_()
    total = one.network(leaf, X).sum()
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="in the thread of the forward pass"):
        pool.submit(torch.autograd.grad, total, leaf).result()


@pytest.mark.parametrize("plan", ["vmap", "compiled"])
@pytest.mark.parametrize("way", ["non-reentrant", "reentrant"])
def test_stacked_members_are_refused(way: str, plan: Any) -> None:
    density = LogDensity(model(way), 12, Batch(X, Y), plan=plan)
    with pytest.raises(SettingError, match=rf"plan '{plan}' cannot run.*recomputes activations.*checkpoint"):
        density(weights(density.model))


@pytest.mark.parametrize("way", EVERY)
def test_transforms_keep_activations(way: str) -> None:
    actual = []
    for one in (model(way), model("never")):
        jacobian = torch.func.jacrev(lambda w, one=one: one.network(w, X))(one.given_weights())
        stacked = vmap(torch.func.grad(lambda w, one=one: one.network(w, X).square().sum()))(weights(one))
        actual.append((jacobian, stacked))
    for one, other in zip(*actual, strict=True):
        assert_close(one, other, rtol=1e-12, atol=1e-13)


class Outer(nn.Module):
    """A network that gives another one its weights."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.inner = Deep(way)
        self.factor = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        scaled = {name: self.factor * tensor for name, tensor in self.inner.named_parameters()}
        return functional_call(self.inner, scaled, inputs)


def outer(way: str) -> tb.Model:
    return tb.Model(Outer(way), tb.likelihoods.Categorical(), tb.priors.Normal(1.0))


def reduced(way: str) -> tb.Model:
    whole = model(way)
    return tb.Subspace.random(whole, whole.given_weights(), 4).model


def scaled(way: str) -> tb.Model:
    given = tb.priors.with_scales(
        Deep(way), {"first.weight": tb.priors.Hierarchical(groups="columns"), "*": tb.priors.Normal()}
    )
    return tb.Model(given.network, tb.likelihoods.Categorical(), given.prior)


@pytest.mark.parametrize("make", [outer, reduced, scaled])
@pytest.mark.parametrize("way", ["non-reentrant", "reentrant"])
def test_parts_that_are_given_weights_in_the_pass_have_them_again(make: Any, way: str) -> None:
    one, other = make(way), make("never")
    values = [LogDensity(each, 12, Batch(X, Y), plan="loop")(weights(each)) for each in (one, other)]
    assert_close(values[0].gradient, values[1].gradient, rtol=1e-12, atol=1e-13)
    assert one.network.held.recomputes(training=False)


class Noisy(Deep):
    """It draws from a generator of its own."""

    def __init__(self, way: str) -> None:
        super().__init__(way)
        self.source = torch.Generator().manual_seed(5)

    def through(self, block: nn.Module, hidden: Tensor) -> Tensor:
        def noisy(rows: Tensor) -> Tensor:
            return block(rows) * torch.rand(rows.shape, generator=self.source, dtype=rows.dtype)

        return noisy(hidden) if self.way == "never" else checkpoint(noisy, hidden, use_reentrant=False)


def test_numbers_of_a_generator_of_its_own_are_drawn_once() -> None:
    gradients = []
    for way in ("non-reentrant", "never"):
        one = tb.Model(Noisy(way), tb.likelihoods.Categorical(), tb.priors.Normal(1.0))
        density = LogDensity(one, 12, Batch(X, Y), plan="loop", chunk_size=12)
        gradients.append([density(weights(one)).gradient for _ in range(2)])
    assert_close(torch.stack(gradients[0]), torch.stack(gradients[1]), rtol=1e-12, atol=1e-13)
    assert not torch.equal(*gradients[0])


def test_checkpoints_outside_of_networks_are_as_they_were() -> None:
    layer, inputs = nn.Linear(3, 3).double(), X.clone().requires_grad_()
    (expected,) = torch.autograd.grad(layer(inputs).tanh().sum(), inputs)
    runs = []

    def body(rows: Tensor) -> Tensor:
        runs.append(len(rows))
        return layer(rows).tanh()

    for reentrant in (False, True):
        inputs.grad = None
        checkpoint(body, inputs, use_reentrant=reentrant).sum().backward()
        assert_close(inputs.grad, expected, rtol=1e-14)
    with activations_kept():
        checkpoint(body, inputs, use_reentrant=False).sum().backward()
    assert len(runs) == 5
