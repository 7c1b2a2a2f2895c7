"""The heap: keep the memory that a step frees for the next step, and give back what was freed before."""

from __future__ import annotations

import ctypes
import functools
import os

import torch

_BLOCK = 31 << 20  # bytes; glibc ignores blocks above 32 MiB


@functools.cache
def widen() -> None:
    """Let malloc keep up to 62 MiB of freed memory at the top of the heap; once in a process.

    glibc returns that memory to the system as soon as it exceeds twice the largest block that was mapped by itself
    and freed. A step of training frees most of what it allocated, so the system maps and clears the same pages again
    at every step: up to a fifth of its time (docs/benchmarks.md). The threshold grows when a large block is freed;
    this frees one whose pages were never used. Other allocators, and the user's settings in the environment
    (MALLOC_TRIM_THRESHOLD_ and the like), do not change.
    """
    torch.empty(_BLOCK, dtype=torch.uint8, device="cpu")


def trim() -> None:
    """Give freed memory back to the system, in glibc; other allocators have their own rules.

    Blocks below 32 MiB, as most layers are, lie in the heap, which keeps freed blocks except those at its top. A
    network is copied when it is checked and initialised, so the memory kept may be as large as its weights.
    """
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if give_back is not None:
        give_back(0)
