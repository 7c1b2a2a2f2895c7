"""Drawn functions against plain modules."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import torchbayes as tb
from tests.laws.cases import NETWORKS, made, model_of, normal, rows_of


@pytest.mark.parametrize("network", NETWORKS)
def test_functions_are_the_networks_with_the_drawn_weights(network: str) -> None:
    model, (inputs, _) = model_of(network), rows_of(network)
    weights_SD = normal(4, model.layout.size)
    outputs_SBK = tb.Functions(model, weights_SD)(inputs)
    for weights_D, outputs_BK in zip(weights_SD, outputs_SBK, strict=True):
        module = made(network).eval()
        with torch.no_grad():
            for name, value in model.layout.split(weights_D).items():
                module.get_parameter(name).copy_(value)
        torch.testing.assert_close(outputs_BK, module(inputs), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("chunk_size", [1, 5, 23, 24, 1000])
def test_chunks_change_nothing(chunk_size: int) -> None:
    model, (inputs, _) = model_of("conv_batch_norm"), rows_of("conv_batch_norm")
    functions = tb.Functions(model, normal(3, model.layout.size))
    torch.testing.assert_close(functions(inputs, chunk_size=chunk_size), functions(inputs), rtol=1e-12, atol=1e-13)


def test_no_rows_are_refused() -> None:
    functions = tb.Functions(model_of(), normal(2, 51))
    assert functions.draws == 2
    with pytest.raises(ValueError, match="`inputs` has no rows"):
        functions(torch.empty(0, 4, dtype=torch.float64))


def test_outputs_carry_no_gradient() -> None:
    outputs = tb.Functions(model_of(), normal(2, 51).requires_grad_())(rows_of()[0])
    assert not outputs.requires_grad
    assert outputs.shape == (2, 24, 3)
    assert outputs.abs().max() > 0


class Pair(nn.Module):
    """A network of two inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(2, 3), nn.Linear(3, 3)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.left(a) * self.right(b)


def test_inputs_may_be_tuples_and_mappings() -> None:
    module = Pair().double()
    model = tb.Model(copy.deepcopy(module), tb.likelihoods.Categorical())
    a, b = normal(10, 2), normal(10, 3, seed=1)
    functions = tb.Functions(model, model.given_weights().expand(2, -1))
    expected = module(a, b).expand(2, -1, -1)
    for inputs in ((a, b), {"b": b, "a": a}):
        for chunk_size in (4, 100):
            torch.testing.assert_close(functions(inputs, chunk_size=chunk_size), expected, rtol=1e-12, atol=1e-13)


def test_learned_parameters_come_with_each_draw() -> None:
    module = nn.Linear(4, 2).double()
    model = tb.Model(module, tb.likelihoods.Gaussian("learned", outputs=2))
    weights_SD = normal(3, 12)
    parameters = tb.Functions(model, weights_SD).parameters
    torch.testing.assert_close(parameters["log_scale"], weights_SD[:, 10:], rtol=0, atol=0)


def test_each_draw_has_its_own_members_buffers() -> None:
    """Four draws of two members with known statistics: each member's network twice, in turn."""
    model, (inputs, _) = model_of("conv_batch_norm"), rows_of("conv_batch_norm")
    weights_MD, buffers_M = model.starting_weights([1, 2])
    buffers_M["1.running_mean"] += normal(2, 3)
    point = tb.Point(model, weights_MD, buffers_M=buffers_M, statistics_known=True)
    outputs_SBK = point.functions(4)(inputs)
    for s in range(4):
        module = made("conv_batch_norm").eval()
        own = {name: buffer[s % 2] for name, buffer in buffers_M.items()}
        module.load_state_dict({**model.layout.split(weights_MD[s % 2]), **own})
        torch.testing.assert_close(outputs_SBK[s], module(inputs), rtol=1e-12, atol=1e-13)
