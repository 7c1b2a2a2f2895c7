"""The checksum of a tensor, which reveals damaged files and changed constants."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor


def checksum(tensor: Tensor) -> str:
    """Return the CRC-32 of a tensor's dtype, shape and bytes in memory, in hexadecimal; it must be on a CPU."""
    # not `reshape`, because an axis of length 1 may have any stride, which a view by bytes does not take
    content = tensor.contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
    return crc(content.data if content.size else b"", f"{tensor.dtype} {list(tensor.shape)}".encode())


def crc(content: Any, name: bytes = b"") -> str:
    """Return the CRC-32 of a name followed by bytes, in hexadecimal."""
    return f"{zlib.crc32(content, zlib.crc32(name)):08x}"
