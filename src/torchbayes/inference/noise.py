"""Random numbers of samplers: functions of (seed of the chain, purpose, step) alone."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import torch
from torch import Tensor

from torchbayes.model.seeds import generator, mix
from torchbayes.native.noise import fill_normal_rows


class Purpose(enum.IntEnum):
    """What a stream of random numbers is for; streams of one chain are independent."""

    MOMENTUM = 11
    ACCEPT = 12
    JITTER = 13
    PROPOSAL = 14
    NOISE = 15
    TREE = 16


def normals(seeds: Sequence[int], purpose: Purpose, step: int, *, like: Tensor) -> Tensor:
    """Return standard normals of the shape, dtype and device of `like` (M, D); row m is chain m's own."""
    noise = torch.empty_like(like, memory_format=torch.contiguous_format)
    return fill_normal_rows(noise, seeds, mix(purpose, step))


def uniforms(seeds: Sequence[int], purpose: Purpose, step: int) -> Tensor:
    """Return one float64 number per chain, uniform on [0, 1), (M,), on the CPU."""
    draws = [torch.rand((), generator=generator(seed, purpose, step), dtype=torch.float64) for seed in seeds]
    return torch.stack(draws)
