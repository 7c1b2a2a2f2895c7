"""Numbers that must not depend on the device: random streams, and energies whatever the program is set to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import torchbayes as tb
from tests.device.emulated import DEVICE
from tests.device.test_methods import fitted, model_on, start_of
from tests.laws.cases import rows_of
from torchbayes.density.precision import full_precision
from torchbayes.methods.noise import normals
from torchbayes.randomness.seeds import Purpose, seeded

CPU = torch.device("cpu")


@contextmanager
def lowered(device: torch.device) -> Iterator[None]:
    """Let products be computed in TF32 or bfloat16, and under autocast, while the `with` lasts."""
    cuda: Any = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # type: ignore[attr-defined]
    cpu: Any = (torch.backends.mkldnn.matmul, torch.backends.mkldnn.conv)  # type: ignore[attr-defined]
    operations, precision = (cuda, "tf32") if device.type == "cuda" else (cpu, "bf16")
    before = [operation.fp32_precision for operation in operations]
    try:
        for operation in operations:
            operation.fp32_precision = precision
        with torch.autocast(device.type if device.type in {"cpu", "cuda"} else "cpu", torch.bfloat16):
            yield
    finally:
        for operation, was in zip(operations, before, strict=True):
            operation.fp32_precision = was


@pytest.mark.parametrize("network", ["mlp", "conv_batch_norm"])
@pytest.mark.parametrize("plan", ["loop", "vmap"])
def test_energies_are_those_of_float32(network: str, plan: Any, device: torch.device) -> None:
    """By the exact number in float64: TF32 would be wrong by a thousandth, bfloat16 by a hundredth."""
    values = []
    for dtype in (torch.float64, torch.float32):
        model = model_on(device, network, dtype)
        inputs, targets = (t.to(device) for t in rows_of(network, dtype))
        density = tb.LogDensity(model, len(inputs), tb.Batch(inputs, targets), plan=plan)
        with lowered(device if dtype == torch.float32 and device.type != DEVICE.type else CPU):
            values.append(density(30 * start_of(model)))
    for actual, exact in zip(values[1], values[0], strict=True):
        torch.testing.assert_close(actual.cpu().double(), exact.cpu().double(), rtol=2e-5, atol=2e-4)


def test_settings_of_a_gpu_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """They can be read and set where there is no GPU."""
    products: Any = torch.backends.cuda.matmul
    before = products.fp32_precision
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _: False)
    products.fp32_precision = "tf32"
    try:
        with pytest.MonkeyPatch.context() as inside:
            inside.setattr(torch, "autocast", lambda *_, **__: _nothing())
            with full_precision(torch.device("cuda")):
                assert products.fp32_precision == "ieee"
        assert products.fp32_precision == "tf32"
    finally:
        products.fp32_precision = before


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_is_the_same_bits_on_every_device(dtype: torch.dtype, device: torch.device) -> None:
    like = torch.empty(3, 1001, dtype=dtype)
    expected = normals((1, 2, 1 << 63), Purpose.DIFFUSION, 5, like=like)
    actual = normals((1, 2, 1 << 63), Purpose.DIFFUSION, 5, like=like.to(device))
    assert actual.device.type == device.type
    # roots of PyTorch on a CPU, which the library avoids there, are not rounded in the last bit as those of a GPU are
    tolerance = 4 * torch.finfo(dtype).eps if device.type == DEVICE.type else 0.0
    torch.testing.assert_close(actual.cpu(), expected, rtol=tolerance, atol=0)


def test_a_fit_leaves_the_generators_alone(device: torch.device) -> None:
    before = torch.get_rng_state()
    there = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    with seeded(Purpose.DROPOUT, 3, device=device):
        torch.rand(3, device=device)
    fitted(lambda: tb.MAP(members=2, epochs=2, batch_size=6, plan="loop"), device, "dropout")
    assert torch.equal(torch.get_rng_state(), before)
    if there is not None:
        assert torch.equal(torch.cuda.get_rng_state(device), there)
