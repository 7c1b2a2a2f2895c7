"""Random numbers of samplers: functions of (purpose, seed of the chain, step) alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from torchbayes.native.noise import fill_normal_rows
from torchbayes.randomness.seeds import Purpose, continued, mix, streams


def normals(seeds: Sequence[int], purpose: Purpose, step: int, *, like: Tensor) -> Tensor:
    """Return standard normals of the shape, dtype and device of `like` (M, D); row m belongs to chain m."""
    noise = torch.empty_like(like, memory_format=torch.contiguous_format)
    return fill_normal_rows(noise, seeds, mix(purpose, step))


def uniforms(seeds: Sequence[int], purpose: Purpose, *integers: int, count: int | None = None) -> Tensor:
    """Return float64 numbers uniform on [0, 1), on the CPU: one per chain, (M,), or `count` of each, (M, count).

    They are the hash of seed and `integers`, because seeding a generator for a few numbers takes longer than a small
    leapfrog step.
    """
    return uniforms_of(streams(purpose, seeds, *integers), count=count)


def uniforms_of(streams_M: np.ndarray, *integers: int, count: int | None = None) -> Tensor:
    """Return the numbers of `uniforms`, where seeds, purpose and the first of the integers are hashed already."""
    return torch.from_numpy((continued(streams_M, *integers, count=count) >> 11) * 2.0**-53)
