"""Random numbers of samplers: functions of (purpose, seed of the chain, step) alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchbayes.model.seeds import Purpose, mix
from torchbayes.native.noise import fill_normal_rows


def normals(seeds: Sequence[int], purpose: Purpose, step: int, *, like: Tensor) -> Tensor:
    """Return standard normals of the shape, dtype and device of `like` (M, D); row m is chain m's own."""
    noise = torch.empty_like(like, memory_format=torch.contiguous_format)
    return fill_normal_rows(noise, seeds, mix(purpose, step))


def uniforms(seeds: Sequence[int], purpose: Purpose, step: int) -> Tensor:
    """Return one float64 number per chain, uniform on [0, 1), (M,), on the CPU.

    They are the hash itself: to seed a generator for a single number takes longer than a small leapfrog step.
    """
    return torch.tensor([(mix(purpose, seed, step) >> 10) * 2.0**-53 for seed in seeds], dtype=torch.float64)
