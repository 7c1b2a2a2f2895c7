"""Moments of a normal distribution tilted by a likelihood, p(x) ∝ N(x; 0, I) ℓ(m + L x)^a, in one to three dimensions.

A probit ℓ = Φ(± f) with a = 1 has a closed form, with v = L², ζ = ± m/√(1 + v) and r = φ(ζ)/Φ(ζ):

    log Z = log Φ(ζ),    E x = ± L r/√(1 + v),    Var x = (1 + v δ)/(1 + v),    δ = 1 − r (ζ + r)

Far below zero, where ζ + r and δ are small differences, both follow from the continued fraction of r: with t = −ζ,
c = 1/(t + d) and d = 2/(t + 3/(t + …)), r = t + c and δ = c (d − c).

All others use the trapezoid rule on the window in which log p is less than 40 below its largest value. Ever finer
grids find the window, because a likelihood may be far narrower than the normal distribution, or centred where that has
next to no mass. The error of the rule falls exponentially in the number of nodes, which is doubled until every second
of them gives the same result. In one dimension the nodes are x = c + w sinh t, t even, around the place c at which log
ℓ bends most, where w is the width of the bend. A logistic function of an f with a spread of 10⁴ is a step in x, and
takes no more nodes in this way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from torchbayes.model.likelihoods.binary import log_cdf

MOST = 3  # dimensions
_DROP = 40.0  # nats below the largest value at which the window ends
_COARSE = {1: 48, 2: 16, 3: 10}  # nodes of each axis of a search
_FIRST = {1: 97, 2: 33, 3: 17}  # nodes of each axis at first, odd
_CLOSE = {1: 1e-8, 2: 1e-7, 3: 1e-6}  # error of half the nodes; that of all is about its square
_MOST_NODES = 2**17
_STAGES = 12
_SHARP = 4.0  # nats by which log ℓ bends between nodes of a search; beyond it the search goes on
_WIDE = 10.0  # half the width of the first window
_CHUNK = 2**22  # numbers at a time
_FAR, _TERMS = 5.0, 60  # −ζ beyond which the continued fraction is used; its terms, enough for double precision

LogProb = Callable[[Tensor, Tensor], Tensor]
"""Values (Q, n, R) of some sites, and their numbers (n,) -> log ℓ, (Q, n)."""


class Tilted(NamedTuple):
    """Moments of a tilted distribution, in the units x in which the normal one is standard."""

    log_norm_N: Tensor  # log ∫ N(x; 0, I) ℓ(m + L x)^a dx, in nats; not finite where it was not found
    mean_NR: Tensor
    covariance_NRR: Tensor


class Window(NamedTuple):
    """Windows of some sites, and how nodes lie there: x = centre + width sinh t."""

    low_NR: Tensor  # lower end
    high_NR: Tensor  # upper end
    centre_NR: Tensor  # where nodes are closest
    width_NR: Tensor  # of the part where they are evenly close

    def nodes(self, grid_QR: Tensor, some_n: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return x at nodes of the unit cube, (Q, n, R), log dx/dt there, (Q, n), and the range of t, (n, R)."""
        low_nR, high_nR, centre_nR, width_nR = (field[some_n] for field in self)
        from_nR, to_nR = (torch.asinh((end - centre_nR) / width_nR) for end in (low_nR, high_nR))
        t_QnR = from_nR + (to_nR - from_nR) * grid_QR.unsqueeze(1)
        return centre_nR + width_nR * t_QnR.sinh(), (width_nR * t_QnR.cosh()).log().sum(-1), to_nR - from_nR


def tilted(log_prob: LogProb, mean_NR: Tensor, root_NRR: Tensor, *, power: float) -> Tilted:
    """Return the moments of every site with mean m, root L (both float64) and power a."""

    def value(x_QnR: Tensor, some_n: Tensor) -> Tensor:
        at_QnR = mean_NR[some_n] + torch.einsum("nrs,qns->qnr", root_NRR[some_n], x_QnR)
        log_density_Qn = power * log_prob(at_QnR, some_n) - 0.5 * x_QnR.square().sum(-1)
        return torch.where(log_density_Qn.isnan(), -torch.inf, log_density_Qn)

    size = mean_NR.shape[1]
    open_n = torch.arange(len(mean_NR), device=mean_NR.device)
    window = Window(*_in_parts(partial(_window, value, size), open_n, _COARSE[size] ** size))
    total = Tilted(torch.zeros_like(mean_NR[:, 0]), torch.zeros_like(mean_NR), torch.zeros_like(root_NRR))
    nodes = _FIRST[size]
    while len(open_n):
        grid_QR = _grid(nodes, size, like=mean_NR)
        moments = partial(_moments, value, window, grid_QR)
        *results, apart_n = _in_parts(moments, open_n, len(grid_QR))
        for into, values in zip(total, results, strict=True):
            into[open_n] = values
        nodes = 2 * nodes - 1
        open_n = open_n[~(apart_n <= _CLOSE[size])] if nodes**size <= _MOST_NODES else open_n[:0]
    return total


def probit(signs_N: Tensor, mean_N: Tensor, root_N: Tensor) -> Tilted:
    """Return the moments of every site under Φ(± f), in closed form, for signs ±1, mean m (float64) and root L."""
    variance_N = root_N.square()
    spread_N = (1 + variance_N).sqrt()
    zeta_N = signs_N * mean_N / spread_N
    ratio_N, delta_N = _mills(zeta_N)
    mean_NR = (signs_N * root_N * ratio_N / spread_N).unsqueeze(1)
    covariance_NRR = ((1 + variance_N * delta_N) / (1 + variance_N)).view(-1, 1, 1)
    return Tilted(log_cdf(zeta_N), mean_NR, covariance_NRR)


def _mills(zeta: Tensor) -> tuple[Tensor, Tensor]:
    """Return r = φ/Φ and δ = 1 − r (ζ + r), elementwise and with full relative precision."""
    ratio = math.sqrt(2 / math.pi) / torch.special.erfcx(-zeta / math.sqrt(2))
    far = (-zeta).clamp_min(_FAR)
    below = torch.zeros_like(far)
    for term in range(_TERMS, 1, -1):
        below = term / (far + below)
    step = 1 / (far + below)
    is_far = zeta < -_FAR
    return torch.where(is_far, far + step, ratio), torch.where(
        is_far, step * (below - step), 1 - ratio * (zeta + ratio)
    )


def _in_parts(function: Callable[[Tensor], tuple[Tensor, ...]], rows_n: Tensor, each: int) -> tuple[Tensor, ...]:
    """Return the results of a function of sites, computed for a few sites at a time."""
    parts = [function(some_n) for some_n in rows_n.split(max(1, _CHUNK // each))] or [function(rows_n)]
    return tuple(torch.cat(results) for results in zip(*parts, strict=True))


def _grid(nodes: int, size: int, *, like: Tensor) -> Tensor:
    """Return the nodes of the unit cube, (Q, R)."""
    axis = torch.linspace(0, 1, nodes, dtype=like.dtype, device=like.device)
    return torch.cartesian_prod(*[axis] * size).view(-1, size)


def _window(value: Callable[[Tensor, Tensor], Tensor], size: int, some_n: Tensor) -> Window:
    """Return the windows of some sites."""
    low_nR = torch.full((len(some_n), size), -_WIDE, dtype=torch.float64, device=some_n.device)
    high_nR, nodes = -low_nR, _COARSE[size]
    grid_Q1R = _grid(nodes, size, like=low_nR).unsqueeze(1)
    for _ in range(_STAGES if len(some_n) else 0):
        width_nR = high_nR - low_nR
        x_QnR = low_nR + width_nR * grid_Q1R
        value_Qn = value(x_QnR, some_n)
        matters_Qn1 = (value_Qn > value_Qn.amax(0) - _DROP).unsqueeze(-1)
        least_nR = torch.where(matters_Qn1, x_QnR, torch.inf).amin(0)
        most_nR = torch.where(matters_Qn1, x_QnR, -torch.inf).amax(0)
        known_nR = least_nR.isfinite() & most_nR.isfinite()
        at_low, at_high = least_nR <= low_nR, most_nR >= high_nR  # the window may go on beyond its ends
        step_nR = width_nR / (nodes - 1)
        new_low = torch.where(known_nR, least_nR - torch.where(at_low, width_nR, step_nR), low_nR)
        new_high = torch.where(known_nR, most_nR + torch.where(at_high, width_nR, step_nR), high_nR)
        settled = ~(at_low | at_high) & (new_high - new_low > 0.5 * width_nR)
        low_nR, high_nR = new_low, new_high
        if bool((settled | ~known_nR).all()):
            break
    return Window(low_nR, high_nR, *_bend(value, low_nR, high_nR, some_n))


def _bend(
    value: Callable[[Tensor, Tensor], Tensor], low_nR: Tensor, high_nR: Tensor, some_n: Tensor
) -> tuple[Tensor, Tensor]:
    """Return where log ℓ bends most and how wide the bend is, (n, 1) each.

    Without a bend, middle and width of the window.
    """
    centre_nR, width_nR = (low_nR + high_nR) / 2, high_nR - low_nR
    if low_nR.shape[1] > 1:
        return centre_nR, width_nR
    nodes = _COARSE[1]
    step_nR, grid_Q1R = width_nR / (nodes - 1), _grid(nodes, 1, like=low_nR).unsqueeze(1)
    from_nR = low_nR
    for _ in range(_STAGES if len(some_n) else 0):
        x_QnR = from_nR + (nodes - 1) * step_nR * grid_Q1R
        log_prob_Qn = value(x_QnR, some_n) + 0.5 * x_QnR.square().sum(-1)
        bend_Qn = (log_prob_Qn[2:] - 2 * log_prob_Qn[1:-1] + log_prob_Qn[:-2]).abs().nan_to_num(0.0, posinf=0.0)
        most_n, at_n = bend_Qn.max(0)
        sharp_nR = (most_n > _SHARP).unsqueeze(1)
        if not bool(sharp_nR.any()):
            break
        at_nR = x_QnR[1:-1].gather(0, at_n.view(1, -1, 1))[0]
        centre_nR = torch.where(sharp_nR, at_nR, centre_nR)
        from_nR = torch.where(sharp_nR, at_nR - step_nR, from_nR)
        step_nR = torch.where(sharp_nR, 2 * step_nR / (nodes - 1), step_nR)
        width_nR = torch.where(sharp_nR, step_nR, width_nR)
    return centre_nR, width_nR


def _moments(
    value: Callable[[Tensor, Tensor], Tensor], window: Window, grid_QR: Tensor, some_n: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the moments by the trapezoid rule, and by how much those with half the nodes of an axis differ, (n,)."""
    width_nR = (window.high_NR - window.low_NR)[some_n]
    size, count = width_nR.shape[1], round(len(grid_QR) ** (1 / width_nR.shape[1]))
    x_QnR, slope_Qn, range_nR = window.nodes(grid_QR, some_n)
    value_Qn = value(x_QnR, some_n) + slope_Qn
    fine = _sums(x_QnR, value_Qn, range_nR, count)
    half = (slice(None, None, 2),) * size
    x_half, value_half = (t.unflatten(0, (count,) * size)[half].flatten(0, size - 1) for t in (x_QnR, value_Qn))
    coarse = _sums(x_half, value_half, range_nR, (count + 1) // 2)
    apart_n = (fine.log_norm_N - coarse.log_norm_N).abs()
    for apart, unit in (
        (fine.mean_NR - coarse.mean_NR, width_nR),
        (fine.covariance_NRR - coarse.covariance_NRR, width_nR.unsqueeze(2) * width_nR.unsqueeze(1)),
    ):
        apart_n = torch.maximum(apart_n, (apart / unit).flatten(1).abs().amax(1))
    return fine.log_norm_N, fine.mean_NR, fine.covariance_NRR, apart_n


def _sums(x_QnR: Tensor, value_Qn: Tensor, range_nR: Tensor, count: int) -> Tilted:
    """Return the moments from values at nodes that are even in t; the values vanish at both ends."""
    share_Qn = value_Qn.softmax(0)
    mean_nR = torch.einsum("qn,qnr->nr", share_Qn, x_QnR)
    apart_QnR = x_QnR - mean_nR
    covariance_nRR = torch.einsum("qn,qnr,qns->nrs", share_Qn, apart_QnR, apart_QnR)
    log_cell_n = (range_nR / (count - 1)).log().sum(-1) - 0.5 * range_nR.shape[1] * math.log(2 * math.pi)
    return Tilted(value_Qn.logsumexp(0) + log_cell_n, mean_nR, covariance_nRR)
