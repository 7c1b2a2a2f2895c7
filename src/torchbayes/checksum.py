"""Checksums of tensors, which reveal damaged files and changed constants; and keys of rows."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15  # 2⁶⁴ over the golden ratio, whose multiples are spread evenly


def checksum(tensor: Tensor) -> str:
    """Return the CRC-32 of a tensor's dtype, shape and bytes in memory, in hexadecimal; it must be on a CPU."""
    # not `reshape`, because an axis of length 1 may have any stride, which a view by bytes does not take
    content = tensor.contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
    return crc(content.data if content.size else b"", f"{tensor.dtype} {list(tensor.shape)}".encode())


def checksums(tensors: Iterable[Tensor]) -> str:
    """Return the checksums of tensors on any device, joined."""
    return "-".join(checksum(tensor.detach().cpu()) for tensor in tensors)


def crc(content: Any, name: bytes = b"") -> str:
    """Return the CRC-32 of a name followed by bytes, in hexadecimal."""
    return f"{zlib.crc32(content, zlib.crc32(name)):08x}"


def row_keys(*parts: np.ndarray | None) -> np.ndarray:
    """Return a number for each row that depends on its values alone, uint64 (N,).

    Only rows that are equal have equal keys, up to a chance of 2⁻⁶⁴ a pair.
    """
    columns = [array.reshape(len(array), -1).astype(np.float64) for array in parts if array is not None]
    bits = (np.concatenate(columns, axis=1) + 0.0).view(np.uint64)  # −0 becomes 0
    with np.errstate(over="ignore"):
        odd = np.arange(1, bits.shape[1] + 1, dtype=np.uint64) * np.uint64(_GOLDEN) | np.uint64(1)
        keys = (bits ^ (bits >> np.uint64(32))) * odd
        keys = (keys ^ (keys >> np.uint64(29))).sum(axis=1, dtype=np.uint64)
        return keys * odd[0]
