"""Stacked linear layers against a loop over members, in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.oracles import assert_close, normal
from torch import Tensor, nn
from torch.func import vmap

import torchbayes as tb
from torchbayes.density.vmap import StackedLayers

M, B, INPUTS, OUTPUTS = 3, 5, 4, 6


def stacked(inputs: Tensor, weight: Tensor, bias: Tensor | None, axes: tuple[int | None, ...]) -> Tensor:
    with StackedLayers():
        return vmap(F.linear, in_dims=axes)(inputs, weight, bias)


@pytest.mark.parametrize("shape", [(M, B, INPUTS), (M, B, 2, INPUTS), (M, INPUTS)])
@pytest.mark.parametrize("biased", [True, False])
def test_values_and_gradients_equal_a_loop(shape: tuple[int, ...], biased: bool) -> None:
    leaves = [normal(*shape), normal(M, OUTPUTS, INPUTS), normal(M, OUTPUTS) if biased else None]
    parts = [p.requires_grad_() for p in leaves if p is not None]
    outputs = stacked(leaves[0], leaves[1], leaves[2], (0, 0, 0 if biased else None))  # type: ignore[arg-type]
    each = [
        F.linear(leaves[0][m], leaves[1][m], None if leaves[2] is None else leaves[2][m])  # type: ignore[index]
        for m in range(M)
    ]
    expected = torch.stack(each)
    assert_close(outputs, expected)
    toward = normal(*outputs.shape)
    got = torch.autograd.grad((outputs * toward).sum(), parts)
    want = torch.autograd.grad((expected * toward).sum(), parts)
    for a, b in zip(got, want, strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("axes", [(None, 0, 0), (0, 0, None), (0, None, None), (0, 1, 0)])
def test_what_members_share_is_shared(axes: tuple[int | None, ...]) -> None:
    shapes = ((B, INPUTS), (OUTPUTS, INPUTS), (OUTPUTS,))
    parts = [
        normal(*shape) if axis is None else normal(M, *shape).movedim(0, axis)
        for axis, shape in zip(axes, shapes, strict=True)
    ]
    assert_close(stacked(*parts, axes), vmap(F.linear, in_dims=axes)(*parts))  # type: ignore[arg-type]


def test_without_members_nothing_changes() -> None:
    inputs, weight = normal(B, INPUTS), normal(OUTPUTS, INPUTS).requires_grad_()
    with StackedLayers():
        (gradient,) = torch.autograd.grad(F.linear(inputs, weight).sum(), weight)
    assert_close(gradient, inputs.sum(0).expand(OUTPUTS, INPUTS))


class Attending(nn.Module):
    """Attention, the fast kernels of which have no rule for stacks of members."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True), nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.body(inputs).mean(1))


class Differentiating(nn.Module):
    """A network that differentiates itself in its inputs, so that they require a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.enable_grad():
            inputs = inputs.flatten(1)[:, :4].detach().requires_grad_()
            values = self.head(torch.tanh(self.body(inputs)))
            (slope,) = torch.autograd.grad(values.sum(), inputs, create_graph=True)
        return values + slope[:, :2]


@pytest.mark.parametrize(("make", "plan"), [(Attending, "auto"), (Attending, "vmap"), (Differentiating, "auto")])
def test_fits_that_are_right_do_not_warn(make: type[nn.Module], plan: str) -> None:
    model, data = tb.Model(make(), tb.likelihoods.Categorical()), (normal(12, 3, 4).float(), torch.arange(12) % 2)
    tb.fit(model, data, tb.MAP(members=2, epochs=2, plan=plan), callbacks=())  # warnings are errors here
