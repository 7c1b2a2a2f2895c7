"""Volumes of simplexes of weights, and their gradients.

A simplex of an apex a and R other vertices v_1 … v_R has the edges E = (v_1 − a, …, v_R − a), (R, D), and

    V = √det(E Eᵀ)/R!,    ∂ log V/∂v_j = Σ_i (E Eᵀ)⁻¹_ji E_i = n_j/h_j,    h_j = ((E Eᵀ)⁻¹_jj)^(−½)

where h_j is the altitude of vertex j over the others and n_j the unit vector along it. With squared distances
between vertices in the place of E Eᵀ this is the determinant of Cayley and Menger. Differences and products are
formed in float64, in blocks of columns, and determinants by Cholesky factors, so that a small simplex of large
weights keeps its digits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

_ROUNDING = 1e-14  # below this share of a squared edge, the part orthogonal to the other edges is rounding
_BLOCK = 1 << 20  # numbers at a time, which bounds the memory of differences in float64


def grams(apexes_MKD: Tensor, others_MRD: Tensor) -> Tensor:
    """Return E Eᵀ, float64 (M, K, R, R), of the simplexes of each of K apexes a with the same R other vertices v."""
    members, size = others_MRD.shape[:2]
    shape = (members, apexes_MKD.shape[1], size, size)
    gram_MKRR = torch.zeros(shape, dtype=torch.float64, device=others_MRD.device)
    for _, edges_MKRB in _edges(apexes_MKD, others_MRD):
        gram_MKRR += edges_MKRB @ edges_MKRB.mT
    return gram_MKRR


def log_volumes(gram_MKRR: Tensor) -> Tensor:
    """Return log V, float64 (M, K): −∞ where vertices lie in a plane of fewer dimensions, NaN where not finite."""
    size = gram_MKRR.shape[-1]
    lower_MKRR, sound_MK = _factors(gram_MKRR)
    log_volume_MK = lower_MKRR.diagonal(dim1=-2, dim2=-1).log().sum(-1) - math.lgamma(size + 1)
    log_volume_MK = log_volume_MK.where(sound_MK, -math.inf)
    return log_volume_MK.where(gram_MKRR.isfinite().all(-1).all(-1), math.nan)


def inverses(gram_MKRR: Tensor) -> Tensor:
    """Return (E Eᵀ)⁻¹, float64 (M, K, R, R); NaN where there is none."""
    lower_MKRR, sound_MK = _factors(gram_MKRR)
    return torch.cholesky_inverse(lower_MKRR).where(sound_MK[..., None, None], math.nan)


def altitudes(gram_MKRR: Tensor) -> Tensor:
    """Return the altitude of every vertex over the others, the apex first, float64 (M, K, R + 1); 0 where V is 0."""
    inverse_MKRR = inverses(gram_MKRR)
    squares = torch.cat([inverse_MKRR.sum((-2, -1)).unsqueeze(-1), inverse_MKRR.diagonal(dim1=-2, dim2=-1)], dim=-1)
    return squares.rsqrt().nan_to_num(nan=0.0)


def add_slopes(into_MRD: Tensor, apexes_MKD: Tensor, others_MRD: Tensor, *, inverse_MKRR: Tensor, scale: float) -> None:
    """Add scale · Σ_k ∂ log V_k/∂v to a tensor, in place; `inverse_MKRR` is what `inverses` gives."""
    for where, edges_MKRB in _edges(apexes_MKD, others_MRD):
        into_MRD[..., where].add_((inverse_MKRR @ edges_MKRB).sum(1).to(into_MRD.dtype), alpha=scale)


def _factors(gram_MKRR: Tensor) -> tuple[Tensor, Tensor]:
    """Return Cholesky factors, and whether the edges are linearly independent, (M, K)."""
    lower_MKRR, failed_MK = torch.linalg.cholesky_ex(gram_MKRR)
    share_MKR = lower_MKRR.diagonal(dim1=-2, dim2=-1).square() / gram_MKRR.diagonal(dim1=-2, dim2=-1)
    return lower_MKRR, (failed_MK == 0) & (share_MKR > _ROUNDING).all(-1)


def _edges(apexes_MKD: Tensor, others_MRD: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield columns, and E there, float64 (M, K, R, B)."""
    (members, size, total), modes = others_MRD.shape, apexes_MKD.shape[1]
    block = max(_BLOCK // (members * modes * size), 1)
    for begin in range(0, total, block):
        where = slice(begin, begin + block)
        apexes_MKB, others_MRB = apexes_MKD[..., where].double(), others_MRD[..., where].double()
        yield where, others_MRB.unsqueeze(1) - apexes_MKB.unsqueeze(2)
