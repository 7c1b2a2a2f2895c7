"""The heap: memory that a step frees stays with the process for the next step, and what came before is given back."""

from __future__ import annotations

import ctypes
import functools
import os

import torch

_BLOCK = 31 << 20  # bytes; glibc heeds no block above 32 MiB


@functools.cache
def widen() -> None:
    """Let malloc keep up to 62 MiB of freed memory at the top of the heap; once in a process.

    glibc returns that memory to the system as soon as it is more than twice the largest block that was mapped by itself
    and freed. A step of training frees most of what it allocated, so the system maps and clears the same pages again at
    every step: up to a fifth of the time of one (docs/benchmarks.md). The threshold grows where a large block is
    freed; this frees one, of which no page was ever in use. Other allocators, and settings of the user in the
    environment (MALLOC_TRIM_THRESHOLD_ and the like), are as before.
    """
    torch.empty(_BLOCK, dtype=torch.uint8, device="cpu")


def trim() -> None:
    """Give freed memory back to the system, in glibc; other allocators have rules of their own.

    Blocks below 32 MiB, as most layers are, lie in the heap, which keeps those that are freed anywhere but at its top.
    A network is copied when it is checked and initialised, so what is kept may be as large as its weights.
    """
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if give_back is not None:
        give_back(0)
