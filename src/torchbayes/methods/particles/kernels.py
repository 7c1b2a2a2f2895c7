"""Kernels of particles: values, and the force by which a kernel pushes particles apart.

    RBF       k(x, y) = exp(−‖x − y‖² / h),    h = median² / log n  unless it is set
    Linear    k(x, y) = xᵀy + 1

The median is over the distances of the n (n − 1)/2 pairs of different particles, without the zeros of the diagonal,
and h is a constant where the kernel is differentiated. For both kernels the force on particle i is a linear
combination of the particles, so all of it is (n, n) matrices in float64 and one pass over the (n, D) matrix of
particles:

    Σ_j ∂k(x_j, x_i)/∂x_j = Σ_j R_ij x_j,     R = (2/h) (diag(K 1) − K)  and  R = n I

Liu and Wang (2016), "Stein variational gradient descent", section 3.3 and the appendix. The linear kernel, under which
few particles have the exact mean and covariance of a normal target, is from Liu and Wang (2018), "Stein variational
gradient descent as moment matching".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from torchbayes.settings import check_settings

_BLOCK = 1 << 13  # columns at a time, which fit in caches: a pass over all columns costs as much as reading them
_FAR = 1e-4  # squared distance over squared norm below which differences are taken before they are multiplied
_CLOSE = 0.01  # squared distance over squared norms below which float64 is needed


class Pairs(NamedTuple):
    """A kernel of all pairs of particles, float64."""

    values_MM: Tensor  # K_ij = k(x_i, x_j)
    repulsion_MM: Tensor  # R, with Σ_j ∂k(x_j, x_i)/∂x_j = Σ_j R_ij x_j
    squares_MM: Tensor  # squared distances


@dataclass(frozen=True)
class RBF:
    """k(x, y) = exp(−‖x − y‖² / h)."""

    bandwidth: float | None = None  # h, in squared units of the particles; None takes median² / log n at every step

    centred: ClassVar[bool] = True  # the kernel depends on differences alone

    def __post_init__(self) -> None:
        check_settings(self)

    def pairs(self, gram_MM: Tensor) -> Pairs:
        """Return the kernel of all pairs, given inner products of the particles about any origin, float64."""
        squares_MM = squared_distances(gram_MM)
        h = median_bandwidth(squares_MM) if self.bandwidth is None else self.bandwidth
        values_MM = torch.exp(squares_MM / -h)
        return Pairs(values_MM, (torch.diag(values_MM.sum(1)) - values_MM) * (2 / h), squares_MM)


@dataclass(frozen=True)
class Linear:
    """k(x, y) = xᵀy + 1, only for few weights: steps of SVGD grow with the squared norm of the particles."""

    centred: ClassVar[bool] = False

    def pairs(self, gram_MM: Tensor) -> Pairs:
        """Return the kernel of all pairs, given inner products of the particles, float64."""
        count = len(gram_MM)
        repulsion_MM = torch.eye(count, dtype=gram_MM.dtype, device=gram_MM.device) * count
        return Pairs(gram_MM + 1, repulsion_MM, squared_distances(gram_MM))


def columns(size: int) -> Iterator[slice]:
    """Yield slices that cover `size` columns."""
    for start in range(0, size, _BLOCK):
        yield slice(start, start + _BLOCK)


def gram(particles_MD: Tensor, *, centred: bool) -> Tensor:
    """Return inner products of particles, float64 (M, M).

    For float32 they are products of blocks in float32, summed in float64, as long as no two particles are much closer
    to each other than to zero: a difference of large products would then have lost their distance. `centred` means
    that only distances matter, so the origin is free. It is the first particle where some are close to each other, so
    that their distances lose nothing to rounding.
    """
    if particles_MD.dtype == torch.float32 and particles_MD.device.type == "cpu" and centred:
        gram_MM = _gram(particles_MD, torch.float32, centred=False)
        norms_M = gram_MM.diagonal()
        close_MM = squared_distances(gram_MM) < _CLOSE * (norms_M[:, None] + norms_M)
        if not bool(close_MM.fill_diagonal_(False).any()):
            return gram_MM
    return _gram(particles_MD, torch.float64, centred=centred)


def _gram(particles_MD: Tensor, dtype: torch.dtype, *, centred: bool) -> Tensor:
    """Return inner products of particles from blocks in a dtype, summed in float64: see `gram`."""
    gram_MM = particles_MD.new_zeros(len(particles_MD), len(particles_MD), dtype=torch.float64)
    for span in columns(particles_MD.shape[1]):
        block = particles_MD[:, span].to(dtype)
        block = block - block[:1] if centred else block
        gram_MM += block @ block.T
    return gram_MM


def squared_distances(gram_MM: Tensor) -> Tensor:
    """Return ‖x_i − x_j‖², (M, M), from inner products; never below zero, and zero on the diagonal."""
    norms_M = gram_MM.diagonal()
    squares_MM = norms_M[:, None] + norms_M - (gram_MM + gram_MM.T)  # symmetric to the last bit
    return squares_MM.clamp_(min=0).fill_diagonal_(0)


def middle(values: Tensor) -> Tensor:
    """Return the median along the last axis; for an even number, the mean of the two in the middle."""
    ordered, count = values.sort(-1).values, values.shape[-1]
    return (ordered[..., (count - 1) // 2] + ordered[..., count // 2]) / 2


@lru_cache(maxsize=16)
def above(count: int, device: torch.device) -> Tensor:
    """Return the positions of the pairs i < j in a flattened (M, M) matrix, (M (M − 1)/2,)."""
    rows, others = torch.triu_indices(count, count, 1, device=device)
    return rows * count + others


def median_bandwidth(squares_MM: Tensor) -> Tensor:
    """Return h = median² / log n of the pairs of different particles, float64 ().

    With it Σ_{j ≠ i} k(x_i, x_j) ≈ 1: a particle and all others together have equal weight. Where more than half of
    the pairs coincide the median is zero, and the mean square replaces it. h is 1 where all coincide or there are no
    pairs.
    """
    if len(squares_MM) < 2:
        return torch.ones_like(squares_MM[0, 0])
    pairs = squares_MM.flatten()[above(len(squares_MM), squares_MM.device)]
    square, mean = middle(pairs.sqrt()).square(), pairs.mean()
    square = torch.where(square > 0, square, mean)
    return torch.where(square > 0, square / math.log(len(squares_MM)), 1.0)


def are_far(pairs: Pairs, particles_MD: Tensor) -> bool:
    """Return whether particles are so much farther from zero than from each other that float32 would lose digits.

    On a GPU the answer is always yes: the program would have to wait for the numbers, and differences cost little
    there.
    """
    if particles_MD.device.type != "cpu":
        return True
    size = torch.linalg.vector_norm(particles_MD[0]).square()
    return bool(pairs.squares_MM.max() <= _FAR * size)


def combine_(
    gradient_MD: Tensor, mixing_MM: Tensor | None, force_MM: Tensor, *, particles_MD: Tensor, centred: bool
) -> None:
    """Replace gradients G by A G + B X, in one pass over the columns.

    A is `mixing_MM`, None for the identity, and B `force_MM`. `centred` means that the rows of B sum to zero, so that
    only differences of the particles X matter; these are taken first.
    """
    force_MM = force_MM.to(gradient_MD.dtype)
    mixing_MM = None if mixing_MM is None else mixing_MM.to(gradient_MD.dtype)
    ahead, behind = (gradient_MD.new_empty(len(gradient_MD), _BLOCK) for _ in range(2))
    for span in columns(gradient_MD.shape[1]):
        block, positions = gradient_MD[:, span], particles_MD[:, span]
        size = block.shape[1]
        positions = torch.sub(positions, positions[:1], out=behind[:, :size]) if centred else positions
        if mixing_MM is None:
            block.addmm_(force_MM, positions)
        else:
            block.copy_(torch.mm(mixing_MM, block, out=ahead[:, :size]).addmm_(force_MM, positions))
