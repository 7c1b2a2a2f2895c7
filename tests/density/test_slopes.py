"""Samplers refuse networks whose gradient is not that of their outputs, and no others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.laws.cases import made, rows_of
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.checks import SettingError
from torchbayes.model.probes.slopes import refuse_other_slopes


class Rounded(torch.autograd.Function):
    """Numbers rounded to 1/127 of the largest in a row, with the gradient of the identity."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        unit = x.abs().amax(-1, keepdim=True) / 127
        return (x / unit).round() * unit

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient


class Straight(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Rounded.apply(x)  # type: ignore[no-any-return]


class Detached(nn.Module):
    """Rows of a weight as DoRA has them: magnitude and direction, whose norm passes no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3))
        self.magnitude = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        unit = self.weight / self.weight.norm(dim=1, keepdim=True).detach()
        return x @ (self.magnitude.unsqueeze(-1) * unit).T


def behind(layer: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 6), layer(), nn.Tanh(), nn.Linear(6, 2))


INPUTS = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "network",
    [lambda: behind(Straight), lambda: nn.Sequential(Detached(), nn.Tanh(), nn.Linear(6, 2))],
    ids=["rounded", "detached"],
)
def test_other_slopes_are_refused(network: Callable[[], nn.Module], dtype: torch.dtype) -> None:
    model = tb.Model(lambda: network().to(dtype), tb.likelihoods.Categorical())
    with pytest.raises(
        SettingError, match=r"the gradient of the network is not that of its outputs: along .* by 0\.|1\."
    ):
        tb.fit(model, (INPUTS.to(dtype), torch.tensor([0, 1])), tb.HMC(steps=4, burn_in=2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "layer", [nn.ReLU, nn.Hardtanh, lambda: nn.LayerNorm(6), lambda: nn.Softmax(-1), nn.GELU, nn.Hardswish]
)
def test_other_layers_pass(layer: Callable[[], nn.Module], dtype: torch.dtype) -> None:
    for scale in (1e-4, 1.0, 1e4):  # of weights
        network = behind(layer).to(dtype)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.mul_(scale)
        model = tb.Model(network, tb.likelihoods.Categorical())
        for factor in (1e-3, 1.0, 1e3):
            refuse_other_slopes(model.network, factor * INPUTS.to(dtype))


@pytest.mark.parametrize("name", ["mlp", "conv_batch_norm", "tied"])
def test_networks_of_the_laws_pass(name: str) -> None:
    for dtype in (torch.float32, torch.float64):
        model = tb.Model(made(name, dtype), tb.likelihoods.Categorical())
        refuse_other_slopes(model.network, rows_of(name, dtype)[0][:2])
