"""Adapters on linear layers whose weights torchao has packed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchbayes as tb

quantization: Any = pytest.importorskip("torchao.quantization")
pytestmark = pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # these fits are of a few steps
ROWS = torch.randn(24, 32, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3


class Adapted(nn.Module):
    """A frozen layer with a low-rank term beside it."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base, self.lora_a, self.lora_b = base, nn.Linear(32, 2, bias=False), nn.Linear(2, 3, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.base(inputs) + self.lora_b(self.lora_a(inputs))


def pair() -> tuple[tb.Model, tb.Model]:
    """A model on a packed layer, and one on the numbers that it stands for."""
    torch.manual_seed(0)
    packed = Adapted(nn.Sequential(nn.Linear(32, 3, bias=False))).requires_grad_(False)
    quantization.quantize_(packed.base, quantization.Int8WeightOnlyConfig(version=2))
    plain = copy.deepcopy(packed)
    plain.base[0].weight = nn.Parameter(packed.base[0].weight.dequantize(), False)  # type: ignore[index]
    for network in (packed, plain):
        network.lora_a.requires_grad_(True)
        network.lora_b.requires_grad_(True)
    return tuple(tb.Model(each, tb.likelihoods.Categorical(), random="lora*") for each in (packed, plain))  # type: ignore[return-value]


@pytest.mark.parametrize(
    "method",
    [tb.MAP(members=2, epochs=3), tb.IVON(epochs=3), tb.HMC(chains=1, steps=6, burn_in=2)],
    ids=lambda m: type(m).__name__,
)
def test_packed_layers_predict_what_their_numbers_do(method: Any, tmp_path: Path) -> None:
    packed, plain = pair()
    actual, expected = (tb.fit(model, ROWS, method, seed=1, callbacks=()) for model in (packed, plain))
    probs, exact = (tb.predict(each, ROWS[0], draws=4).probs for each in (actual, expected))
    torch.testing.assert_close(probs, exact, atol=1e-5, rtol=1e-5)
    again = tb.load(actual.save(tmp_path / "posterior.safetensors"), packed)
    assert torch.equal(again.sample(2, seed=2), actual.sample(2, seed=2))
