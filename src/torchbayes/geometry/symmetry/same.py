"""Comparing a network's outputs before and after its units are permuted or removed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def distance(made: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest difference between outputs, relative to the largest expected number.

    It is infinite where shapes differ, or only one of two numbers is finite.
    """
    if [t.shape for t in made] != [t.shape for t in expected]:
        return float("inf")
    return max((_relative(a.detach(), b.detach()) for a, b in zip(made, expected, strict=True) if b.numel()), default=0)


def _relative(made: Tensor, expected: Tensor) -> float:
    a, b = (t.to(torch.complex128 if t.is_complex() else torch.float64) for t in (made, expected))
    alike = (a == b) | (a.isnan() & b.isnan())
    gap = torch.where(alike, 0.0, (a - b).abs()).nan_to_num(nan=torch.inf).max()
    largest = float(torch.where(b.isfinite(), b.abs(), 0.0).max())
    return float(gap) / (largest or 1.0)
