"""Layers that are called in unusual ways: with keywords, or inside a transform of torch.func."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, jvp

import torchbayes as tb
from tests.architectures.helpers import precision
from tests.oracles import assert_close, classes, normal
from torchbayes.curvature import layer_support


class Scale(nn.Module):
    """A layer with a weight of its own, which is told more than its input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(normal(3, seed=1) + 2)

    def forward(self, nothing: Any = None, inputs: Any = None, *, shift: Any = 0.0) -> Tensor:
        inputs = nothing if inputs is None else inputs
        return self.weight * inputs + shift


class Called(nn.Module):
    """Two linear layers with another one between them, called in some way."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.scale, self.last = nn.Linear(2, 3).double(), Scale(), nn.Linear(3, 2).double()
        self.way = way

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs).tanh()
        if self.way == "a number by keyword":
            return self.last(self.scale(hidden, shift=0.1))
        if self.way == "a tensor of rows by keyword":
            return self.last(self.scale(hidden, shift=inputs[:, :1]))
        if self.way == "the input by a second name":
            return self.last(self.scale(inputs=hidden))
        return self.last(input=self.scale(hidden))


class Derivative(nn.Module):
    """A network plus its second derivative in the inputs, as in an equation of physics."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1)).double()

    def forward(self, inputs: Tensor) -> Tensor:
        ones = torch.ones_like(inputs)

        def slope(at: Tensor) -> Tensor:
            return jvp(self.body, (at,), (ones,))[1]

        return jvp(slope, (inputs,), (ones,))[1] + self.body(inputs)


def expected(model: tb.Model, inputs: Tensor, noise: float | None) -> Tensor:
    """Return J^T Λ J at the given weights, by autograd."""
    module = model.network.module
    named = {n: p.detach() for n, p in model.network.initial.items()}
    views = model.layout.split(model.layout.join(named))

    def run(flat: Tensor) -> Tensor:
        return functional_call(module, model.layout.split(flat), (inputs,))

    weights_D = model.layout.join(views)
    jacobian, outputs = jacrev(run)(weights_D), run(weights_D)
    if noise is not None:
        return torch.einsum("bkd,bke->de", jacobian, jacobian) / noise**2
    p = outputs.softmax(-1)
    return torch.einsum("bkd,bkl,ble->de", jacobian, torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2), jacobian)


@pytest.mark.parametrize(
    "way", ["a number by keyword", "a tensor of rows by keyword", "the input by a second name", "a linear by keyword"]
)
def test_layers_called_with_keywords_have_the_curvature_of_autograd(way: str):
    inputs, labels = normal(6, 2), classes(6, 2, seed=2)
    net = Called(way)
    model = tb.Model(net, tb.likelihoods.Categorical(), tb.priors.Normal(1.0))
    exact = expected(model, inputs, None)
    for structure in ("dense", "diagonal", "kronecker", "ekfac", "low_rank"):
        method: Any = tb.Laplace(structure=structure, check_mode=False, prior="model")
        actual: Any = tb.fit(model, (inputs, labels), method, start=net, callbacks=())
        if structure == "dense":
            assert_close(precision(actual), exact + torch.eye(len(exact)).double(), rtol=1e-8, atol=1e-10)
        if structure == "diagonal":
            assert_close(precision(actual).diagonal(), exact.diagonal() + 1, rtol=1e-8)
        assert tb.predict(actual, inputs).probs.shape == (6, 2)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_network_that_differentiates_itself_has_the_curvature_of_autograd():
    inputs = normal(5, 1)
    net = Derivative()
    model = tb.Model(net, tb.likelihoods.Gaussian(0.5), tb.priors.Normal(1.0))
    assert "transform of torch.func" in str(layer_support(model, model.given_weights(), inputs).lost)
    exact = expected(model, inputs, 0.5)
    for structure in ("dense", "kronecker"):
        method: Any = tb.Laplace(structure=structure, check_mode=False, prior="model")
        actual: Any = tb.fit(model, (inputs, normal(5, 1, seed=3)), method, start=net, callbacks=())
        if structure == "dense":
            assert_close(precision(actual), exact + torch.eye(len(exact)).double(), rtol=1e-8, atol=1e-9)
        assert tb.predict(actual, inputs).variance.shape == (5, 1)
