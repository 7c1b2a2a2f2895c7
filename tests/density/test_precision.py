"""Energies of Metropolis methods are computed in full precision, whatever the program is set to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.density.precision import full_precision

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


def test_all_data_are_seen_in_full_precision_and_minibatches_in_the_precision_of_products_that_is_set() -> None:
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
    assert seen == [(["ieee"] * 3, False), (before, False)]  # the model says whether there is autocast
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
        actual = left @ right
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, exact, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_outputs_of_low_precision_are_scored_in_float32(dtype: torch.dtype) -> None:
    module, inputs, targets = nn.Linear(4, 3).to(dtype), torch.randn(6, 4).to(dtype), torch.arange(6) % 3
    model = tb.Model(module, tb.likelihoods.Categorical())
    actual = tb.evaluate(tb.Point(model, model.given_weights().unsqueeze(0)), (inputs, targets)).metrics
    expected = nn.functional.cross_entropy(module(inputs).double(), targets)
    assert actual["nll"] == pytest.approx(float(expected.detach()), rel=1e-6)


class Headed(nn.Module):
    """A frozen part in bfloat16 under a head in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 5).bfloat16().requires_grad_(False), nn.Linear(5, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.body(inputs.bfloat16()).float())


def test_a_frozen_part_may_have_low_precision() -> None:
    model = tb.Model(Headed(), tb.likelihoods.Categorical(), random="head.*")
    data = (torch.randn(6, 4), torch.arange(6) % 3)
    posterior = tb.fit(
        model, data, tb.Laplace(check_mode=False, prior="model"), start=model.given_weights(), callbacks=()
    )
    assert torch.isfinite(tb.predict(posterior, data[0], draws=2).outputs_SBK).all()
