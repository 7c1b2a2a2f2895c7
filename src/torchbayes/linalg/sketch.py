"""The largest eigenvalues of a symmetric matrix A ≥ 0 that is never formed, from products A Ω with few directions.

The products add up over the rows of which A is the second moment, in any order, and on any number of processes. The
Nyström formula A Ω (Ωᵀ A Ω)⁺ Ωᵀ A is never larger than A, and A itself if its rank is at most the number of directions
(Gittens and Mahoney 2016). Tropp, Yurtsever, Udell and Cevher (2017), "Fixed-rank approximation of a
positive-semidefinite matrix from streaming data", cut it to the rank k, and bound its error by the eigenvalues beyond
k: with 2 k + 1 directions the expected trace of the error is at most twice theirs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_EXTRA = 10  # directions beyond 2 k, for small k


class Top(NamedTuple):
    """The k largest eigenvalues of A, nearly, and what is known of the others."""

    values: Tensor  # descending, at least 0, (..., k)
    vectors: Tensor  # as columns, (..., n, k)
    rest: Tensor  # diagonal of the remainder, at least 0, (..., n)


def directions(size: int, rank: int, *, generator: torch.Generator, like: Tensor) -> Tensor:
    """Return Ω for the `rank` largest eigenvalues, orthonormal columns (n, ℓ) in the dtype and on the device of `like`.

    They are drawn on the CPU, so that they are the same on every device.
    """
    drawn = torch.randn(size, min(2 * rank + _EXTRA, size), generator=generator, dtype=torch.float64)
    return torch.linalg.qr(drawn).Q.to(like)


def sketch(rows: Tensor, omega: Tensor) -> Tensor:
    """Return what a sum over rows (..., B, n) adds to the sketch of A = XᵀX: A Ω, and last diag A, (..., n, ℓ + 1)."""
    return torch.cat([rows.mT @ (rows @ omega), rows.square().sum(-2).unsqueeze(-1)], dim=-1)


def top(sketched: Tensor, omega: Tensor, rank: int) -> Top:
    """Return the largest eigenvalues from a sketch (..., n, ℓ + 1).

    Directions in which Ωᵀ A Ω is 0 up to rounding are left out. Computed in double precision; time O(n ℓ²).
    """
    products, diagonal, omega = sketched[..., :-1].double(), sketched[..., -1].double(), omega.double()
    core = omega.mT @ products
    values, vectors = torch.linalg.eigh((core + core.mT) / 2)
    rounding = omega.shape[-1] * torch.finfo(sketched.dtype).eps
    present = values > rounding * values[..., -1:].clamp_min(torch.finfo(torch.float64).tiny)
    inverse = torch.where(present, values.clamp_min(torch.finfo(torch.float64).tiny).rsqrt(), 0.0)
    left, singular, _ = torch.linalg.svd(products @ (vectors * inverse.unsqueeze(-2)), full_matrices=False)
    kept, largest = left[..., :rank], singular[..., :rank].square()
    rest = diagonal - (kept.square() * largest.unsqueeze(-2)).sum(-1)
    rest = torch.where(rest > 16 * rounding * diagonal, rest, 0.0)
    return Top(largest.to(sketched), kept.to(sketched), rest.to(sketched))
