"""Noise of given variances, added to numbers, with the ratio that derivatives by variances need (mean_field.cpp)."""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from torchbayes.native.build import DTYPES, typed
from torchbayes.native.noise import fill_normal

LEAST = 1e-20  # smallest variance whose root is differentiated


def perturb(mean: Tensor, variance: Tensor, *, seed: int, stream: int) -> None:
    """Add noise of given variances to numbers in place: m ← m + √v ∘ ζ and v ← ζ/√v, 0 where v is next to 0.

    The noise ζ is that of `fill_normal`.
    """
    supported = mean.device.type == "cpu" and mean.dtype in DTYPES and mean.is_contiguous() and variance.is_contiguous()
    if supported and _library() is not None:
        numbers = (mean.numel(), seed, stream, LEAST, torch.get_num_threads())
        name = f"perturb_{'float32' if mean.dtype == torch.float32 else 'float64'}"
        getattr(_library(), name)(mean.data_ptr(), variance.data_ptr(), *numbers)
        return
    dtype = torch.promote_types(mean.dtype, torch.float32)
    noise = fill_normal(torch.empty(mean.shape, dtype=dtype, device=mean.device), seed=seed, stream=stream)
    perturb_by(mean, variance, noise.to(mean.dtype))


def perturb_by(mean: Tensor, variance: Tensor, noise: Tensor) -> None:
    """Change numbers and variances as `perturb` does, with given noise."""
    certain = variance < LEAST
    root = variance.clamp_min_(LEAST).sqrt_()
    mean.addcmul_(root, noise)
    torch.div(noise, root, out=variance).masked_fill_(certain, 0)


@cache
def _library() -> ctypes.CDLL | None:
    pointer, number = ctypes.c_void_p, ctypes.c_double
    kinds = (pointer, pointer, ctypes.c_int64, ctypes.c_uint64, ctypes.c_uint64, number, ctypes.c_int64)
    return typed("mean_field", {"perturb": kinds})
