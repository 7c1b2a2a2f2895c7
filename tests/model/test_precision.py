"""Energies of Metropolis methods are computed in full precision, whatever the program is set to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.model.precision import full_precision

CPU = torch.device("cpu")
BACKEND: Any = torch.backends.mkldnn  # its operations are not in the type stubs
OPERATIONS = (BACKEND.matmul, BACKEND.conv, BACKEND.rnn)
seen: list[tuple[list[str], bool]] = []


def settings() -> list[str]:
    return [operation.fp32_precision for operation in OPERATIONS]


class Watched(nn.Module):
    """A linear layer that notes how it is run."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        seen.append((settings(), torch.is_autocast_enabled("cpu")))
        return self.layer(inputs)


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = settings()
    yield
    for operation, precision in zip(OPERATIONS, before, strict=True):
        operation.fp32_precision = precision


def test_all_data_are_seen_in_full_precision_and_minibatches_as_the_user_says() -> None:
    model = tb.Model(Watched(), tb.likelihoods.Gaussian(1.0), tb.priors.Normal(1.0))
    rows = tb.Batch(torch.randn(4, 2), torch.randn(4, 1))
    weights_MD, _ = model.starting_weights([0])
    BACKEND.matmul.fp32_precision = "bf16"
    before = settings()
    density = tb.LogDensity(model, 4, rows, plan="loop")
    model.check(rows)  # the first time the network is called twice, to see on what it writes
    with torch.autocast("cpu", torch.bfloat16):
        seen.clear()
        density(weights_MD)
        density(weights_MD, rows.map(lambda t: t.unsqueeze(0)))
    assert seen == [(["ieee"] * 3, False), (before, True)]
    assert settings() == before


def test_settings_come_back_after_an_error() -> None:
    BACKEND.matmul.fp32_precision = "bf16"
    before = settings()

    def fail() -> None:
        with full_precision(CPU):
            assert settings() == ["ieee"] * 3
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert settings() == before


def test_products_are_those_of_float32() -> None:
    left, right = torch.randn(64, 64), torch.randn(64, 64)
    exact = left @ right
    BACKEND.matmul.fp32_precision = "bf16"
    with full_precision(CPU), torch.autocast("cpu", torch.bfloat16):
        pass
    with torch.autocast("cpu", torch.bfloat16), full_precision(CPU):
        found = left @ right
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, exact, rtol=0, atol=0)
