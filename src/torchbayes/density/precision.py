"""Full float32 precision whatever PyTorch's settings, and no lower precision where weights are inferred.

A Metropolis test decides by differences of energies: a few nats between sums of thousands. TF32 keeps 10 bits of a
factor and bfloat16 7: either puts an error of many nats into the sum, so that good proposals are rejected. Izmailov et
al. (2021) turn both off for the same reason. PyTorch lets convolutions on a GPU use TF32 unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def check_precision(dtype: torch.dtype) -> None:
    """Check that the dtype of the weights is precise enough for inference.

    Args:
        dtype: dtype of the weights.

    Raises:
        TypeError: if it is neither float32 nor float64.
    """
    if dtype not in {torch.float32, torch.float64}:
        raise TypeError(
            f"random weights must be float32 or float64 to be inferred, as small steps and moments are lost in less; "
            f"got {dtype}. Convert them with .float(); weights that are not random may stay as they are."
        )


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Compute products of float32 numbers in float32, and without autocast, while the `with` lasts.

    Args:
        device: device of the computation.

    Yields:
        Nothing; settings are put back afterwards.
    """
    if device.type not in {"cpu", "cuda"}:
        yield
        return
    backend: Any = torch.backends.mkldnn if device.type == "cpu" else torch.backends.cudnn
    products: Any = backend.matmul if device.type == "cpu" else torch.backends.cuda.matmul
    operations = (products, backend.conv, backend.rnn)
    before = [operation.fp32_precision for operation in operations]
    if {"ieee", "none"}.issuperset(before) and not torch.is_autocast_enabled(device.type):
        yield  # full precision already
        return
    try:
        for operation in operations:
            operation.fp32_precision = "ieee"
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        for operation, precision in zip(operations, before, strict=True):
            operation.fp32_precision = precision
