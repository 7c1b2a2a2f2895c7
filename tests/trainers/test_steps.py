"""The steps of methods in a foreign loop, against the methods run by hand on the model's own density."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.oracles import assert_close, classes, normal
from torchbayes.density import LogDensity
from torchbayes.randomness.seeds import member_seeds
from torchbayes.trainers import Optimizer

N, B, STEPS = 24, 6, 8


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def rows(step: int, size: int = B) -> tuple[Tensor, Tensor]:
    """Fixed minibatches, of which N/B make an epoch."""
    inputs, targets = normal(N, 3), classes(N, 2)
    first = step * size % N
    return inputs[first : first + size], targets[first : first + size]


def cross_entropy(outputs: Tensor, targets: Tensor, learned: Any) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets)


def run_loop(
    net: nn.Module, optimizer: Any, *, size: int = B, steps: range = range(STEPS), loss: Callable[..., Tensor] = cross_entropy
) -> list[Tensor]:
    """A plain loop; return the network's parameters after each step."""
    path = []
    for step in steps:
        inputs, targets = rows(step, size)
        optimizer.zero_grad()
        with optimizer.at_gradient_point():
            loss(net(inputs), targets, optimizer.learned).backward()
        optimizer.step()
        path.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
    return path


def by_hand(model: tb.Model, method: Any, *, size: int = B, seed: int = 3) -> tuple[Any, list[Tensor], list[Tensor]]:
    """The method on the model's own density: its state, its weights after each step, and its draws."""
    density = LogDensity(model, N, training=method.needs.network == "train")
    buffers = model.network.stacked_buffers(1)
    weights_MD = model.given_weights().unsqueeze(0)
    state = method.init(density, weights_MD, buffers, seeds=member_seeds(seed, 1), steps_per_epoch=N // size)
    path, draws = [], []
    for step in range(STEPS):
        inputs, targets = rows(step, size)
        state, _ = method.step(density, state, tb.Batch(inputs.unsqueeze(0), targets.unsqueeze(0)))
        path.append(state.weights_MD[0].clone())
        if (draw_MD := method.draw(state)) is not None:
            draws.append(draw_MD[0].clone())
    return state, path, draws


CHAIN: dict[str, Any] = {"chains": 1, "steps": STEPS, "burn_in": 2, "thin": 2}
METHODS = {
    "SGLD": tb.SGLD(**CHAIN),
    "SGLD, plain": tb.SGLD(**CHAIN, step_size=1e-3),
    "SGLD, cycles": tb.SGLD(**CHAIN, step_size=1e-3, schedule=tb.Cycles(4, draws=1)),
    "SGHMC": tb.SGHMC(**CHAIN),
    "SGHMC, friction": tb.SGHMC(**CHAIN, step_size=1e-3, form="friction", noise_estimate=0.01),
    "SGNHT": tb.SGNHT(**CHAIN, step_size=1e-3),
    "IVON": tb.IVON(epochs=2),
    "IVON, settings": tb.IVON(epochs=2, lr=0.5, clip=0.1, hessian_init=1.0, momentum=0.5),
}
MODELS: dict[str, dict[str, Any]] = {
    "usual": {},
    "cold": {"temperature": 0.1},
    "tempered likelihood": {"temperature": 2.0, "tempering": "likelihood"},
    "other prior": {"prior": tb.priors.StudentT(df=4.0)},
    "last layer": {"random": "2.*"},
    "some weights": {"random": {"0.weight": normal(4, 3) > 0}},
}


@pytest.mark.parametrize("size", [B, N])
@pytest.mark.parametrize("model_name", MODELS)
@pytest.mark.parametrize("name", METHODS)
def test_steps_are_those_of_the_method(name: str, model_name: str, size: int):
    method: Any = METHODS[name]
    if name.startswith("IVON") and size == N:
        method = tb.IVON(epochs=STEPS, lr=method.lr)
    net, settings = network(), MODELS[model_name]
    whole = {n: p.detach().clone() for n, p in net.named_parameters()}
    model = tb.Model(net, tb.likelihoods.Categorical(), **settings)
    state, path, draws = by_hand(model, method, size=size)
    optimizer = Optimizer(net, model, method, num_data=N, steps_per_epoch=N // size, seed=3)
    found = run_loop(net, optimizer, size=size)
    for there, expected_D in zip(found, path, strict=True):
        views = {**whole, **model.network.mask.fill(model.network.layout.split(expected_D))}
        assert_close(there, torch.cat([views[n].flatten() for n in whole]), rtol=1e-9, atol=1e-10)
    posterior = optimizer.posterior()
    if draws:
        assert_close(posterior.weights_MSD[0], torch.stack(draws), rtol=1e-9, atol=1e-10)
    else:
        expected = method.posterior(LogDensity(model, N), state)
        assert_close(posterior.mean_MD, expected.mean_MD, rtol=1e-9, atol=1e-10)
        assert_close(posterior.covariance.diagonal(), expected.covariance.diagonal(), rtol=1e-9)
    assert type(posterior) is type(method.posterior(LogDensity(model, N), state, optimizer._shelf))
