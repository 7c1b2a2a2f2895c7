"""Quadratic forms of all pairs of blocks of a symmetric matrix, by strips.

With Σ = R Rᵀ over the weights of K output units, I of each,

    V_kl = aᵀ Σ_kl a = Σ_strips Σ_{i in the strip} a_i Σ_{j from the strip's start} c_klij a_j,    c_kl = Σ_kl + Σ_klᵀ,

and half of c if j is in the strip too: K(K + 1)/2 pairs of outputs, and little more than half of the pairs of inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

_STRIP, _COLUMNS = (4, 8), 1024  # bounds on the inputs of a strip; approximate columns of its matrix


def strips(root_MKIZ: Tensor) -> dict[str, Tensor]:
    """Return Σ = R Rᵀ as the arguments of `of_strips`, with less than a third of the work of R itself.

    They are the coefficients c_klij, k ≤ l, of strips of i, below each other, and the number of each pair of outputs.
    """
    (members, outputs, size), device = root_MKIZ.shape[:3], root_MKIZ.device
    pairs = torch.triu_indices(outputs, outputs, device=device)
    width = min(max(_STRIP[0], min(_STRIP[1], _COLUMNS // pairs.shape[1])), size)
    starts = range(0, size, width)
    strips_MJWQ = root_MKIZ.new_zeros(members, sum(size - start for start in starts), width, pairs.shape[1])
    for q, (k, other) in enumerate(pairs.T.tolist()):
        block_MII, at = root_MKIZ[:, k] @ root_MKIZ[:, other].mT, 0
        both_MII = block_MII + block_MII.mT
        for start in starts:
            both_MII[:, start : start + width, start : start + width] *= 0.5
            strip_MJW = both_MII[:, start:, start : start + width]
            strips_MJWQ[:, at : at + size - start, : strip_MJW.shape[2], q] = strip_MJW
            at += size - start
    places = torch.zeros(outputs, outputs, dtype=torch.int64, device=device)
    places[pairs[0], pairs[1]] = places[pairs[1], pairs[0]] = torch.arange(pairs.shape[1], device=device)
    return {"strips_MJWQ": strips_MJWQ, "places_KK": places}


def of_strips(rows_PI: Tensor, *, strips_MJWQ: Tensor, places_KK: Tensor) -> Tensor:
    """Return aᵀ Σ_kl a of every row a and pair of outputs, (M, P, K, K)."""
    width, total, at = strips_MJWQ.shape[2], rows_PI.new_zeros(()), 0
    for start in range(0, rows_PI.shape[1], width):  # a matrix product is faster than all pairs
        own_PW, rest_PJ = rows_PI[:, start : start + width], rows_PI[:, start:]
        strip_MJN = strips_MJWQ[:, at : at + rest_PJ.shape[1], : own_PW.shape[1]].flatten(2)
        products_MPWQ = (rest_PJ @ strip_MJN).unflatten(-1, (own_PW.shape[1], -1))
        total, at = total + (own_PW.unsqueeze(1) @ products_MPWQ).squeeze(2), at + rest_PJ.shape[1]
    return total[..., places_KK]
