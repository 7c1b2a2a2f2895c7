r"""Moments of a normal distribution tilted by a likelihood, p(x) ∝ N(x; 0, I) ℓ(m + L x)^a, in one to three dimensions.

By the trapezoid rule on the window in which log p is less than 40 below its largest value. It is found by ever finer
grids, as a likelihood may be far narrower than the normal distribution, or centred where that has next to no mass. The
rule converges exponentially in the distance between nodes over that to the nearest pole: for a logistic likelihood and
128 nodes the moments are right to 1e-13 at a variance of 10 and to 1e-6 at 100, where Gauss-Hermite with 64 nodes is
off by 1e-5 and 0.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

MOST = 3  # dimensions
_DROP = 40.0  # nats below the largest value at which the window ends
_COARSE = {1: 48, 2: 16, 3: 10}  # nodes of each axis of a search
_SHARE = {1: 1, 2: 3, 3: 6}  # of the nodes of one dimension that an axis of several gets, one in so many
_STAGES = 12
_WIDE = 10.0  # half the width of the first window
_CHUNK = 2**22  # numbers at a time

LogProb = Callable[[Tensor, slice], Tensor]
"""Values (Q, n, R) of the sites of a slice -> log ℓ, (Q, n)."""


class Tilted(NamedTuple):
    """What a tilted distribution is like, in the units x in which the normal one is standard.

    Attributes:
        log_norm_N: log ∫ N(x; 0, I) ℓ(m + L x)^a dx, in nats; not finite where it could not be found.
        mean_NR: of x.
        covariance_NRR: of x.
    """

    log_norm_N: Tensor
    mean_NR: Tensor
    covariance_NRR: Tensor


def tilted(log_prob: LogProb, mean_NR: Tensor, root_NRR: Tensor, *, power: float, nodes: int) -> Tilted:
    """Return the moments of every site.

    Args:
        log_prob: log ℓ.
        mean_NR: m, float64.
        root_NRR: L.
        power: a.
        nodes: of one dimension.
    """
    size = mean_NR.shape[1]
    grid_QR = _grid(max(8, nodes // _SHARE[size]), size, like=mean_NR)
    rows = max(1, _CHUNK // grid_QR.numel())
    found = []
    for start in range(0, len(mean_NR), rows):
        some = slice(start, start + rows)

        def value(x_QNR: Tensor, some: slice = some) -> Tensor:
            at_QNR = mean_NR[some] + torch.einsum("nrs,qns->qnr", root_NRR[some], x_QNR)
            found_QN = power * log_prob(at_QNR, some) - 0.5 * x_QNR.square().sum(-1)
            return torch.where(found_QN.isnan(), -torch.inf, found_QN)

        found.append(_moments(value, *_window(value, mean_NR[some]), grid_QR))
    return Tilted(*(torch.cat(part) for part in zip(*found, strict=True)))


def _grid(nodes: int, size: int, *, like: Tensor) -> Tensor:
    """Return the nodes of the unit cube, (Q, R)."""
    axis = torch.linspace(0, 1, nodes, dtype=like.dtype, device=like.device)
    return torch.cartesian_prod(*[axis] * size).view(-1, size)


def _window(value: Callable[[Tensor], Tensor], like_NR: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lower and upper ends of what matters, (N, R) each."""
    nodes = _COARSE[like_NR.shape[1]]
    grid_Q1R = _grid(nodes, like_NR.shape[1], like=like_NR).unsqueeze(1)
    low_NR, high_NR = torch.full_like(like_NR, -_WIDE), torch.full_like(like_NR, _WIDE)
    for _ in range(_STAGES):
        width_NR = high_NR - low_NR
        x_QNR = low_NR + width_NR * grid_Q1R
        value_QN = value(x_QNR)
        matters_QN1 = (value_QN > value_QN.amax(0) - _DROP).unsqueeze(-1)
        least_NR = torch.where(matters_QN1, x_QNR, torch.inf).amin(0)
        most_NR = torch.where(matters_QN1, x_QNR, -torch.inf).amax(0)
        known_NR = least_NR.isfinite() & most_NR.isfinite()
        at_low, at_high = least_NR <= low_NR, most_NR >= high_NR  # it may go on beyond
        step_NR = width_NR / (nodes - 1)
        new_low = torch.where(known_NR, least_NR - torch.where(at_low, width_NR, step_NR), low_NR)
        new_high = torch.where(known_NR, most_NR + torch.where(at_high, width_NR, step_NR), high_NR)
        settled = ~(at_low | at_high) & (new_high - new_low > 0.5 * width_NR)
        low_NR, high_NR = new_low, new_high
        if bool((settled | ~known_NR).all()):
            break
    return low_NR, high_NR


def _moments(value: Callable[[Tensor], Tensor], low_NR: Tensor, high_NR: Tensor, grid_QR: Tensor) -> Tilted:
    """Return the moments by the trapezoid rule; at the ends of a window there is nothing."""
    width_NR, size = high_NR - low_NR, low_NR.shape[1]
    x_QNR = low_NR + width_NR * grid_QR.unsqueeze(1)
    value_QN = value(x_QNR)
    per_axis = round(len(grid_QR) ** (1 / size))
    log_cell_N = (width_NR / (per_axis - 1)).log().sum(-1)
    share_QN = value_QN.softmax(0)
    mean_NR = torch.einsum("qn,qnr->nr", share_QN, x_QNR)
    apart_QNR = x_QNR - mean_NR
    covariance_NRR = torch.einsum("qn,qnr,qns->nrs", share_QN, apart_QNR, apart_QNR)
    log_norm_N = value_QN.logsumexp(0) + log_cell_N - 0.5 * size * math.log(2 * math.pi)
    return Tilted(log_norm_N, mean_NR, covariance_NRR)
