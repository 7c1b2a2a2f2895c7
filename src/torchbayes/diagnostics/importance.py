"""Pareto smoothed importance sampling: is an approximation q close enough to the density p that it stands for?

With draws θ_s ~ q and log ratios r_s = log p(θ_s) − log q(θ_s), the largest weights e^{r_s} follow a generalised
Pareto distribution. Its shape k says how many moments the weights have: below ½ their variance is finite. An
estimate k̂ above 0.7 says that averages over q cannot be corrected to averages over p by any affordable number of
draws (Vehtari, Simpson, Gelman, Yao and Gabry 2024, "Pareto smoothed importance sampling"). Yao, Vehtari, Simpson
and Gelman (2018, "Yes, but did it work?") judge variational inference by it. The tail holds M = ⌈min(S/5, 3√S)⌉
weights; its shape is estimated as by Zhang and Stephens (2009), drawn towards ½ as by ten further observations.

In many dimensions every approximation is far from the posterior in this sense: for large D, k̂ > 0.7 is to be
expected, and does not say that predictions are bad.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchbayes.diagnostics._blocks import check_floating

_FEWEST = 5  # draws in the tail
_ROUNDING = 1e-10  # of weights of at most 1: ratios that differ by less are equal


class Smoothed(NamedTuple):
    """Importance weights whose largest ones are replaced by those of the fitted tail."""

    log_weights: Tensor  # log of the normalised weights, float64 (S, ...), in the order of the draws
    k: Tensor  # k̂, float64 (...); −∞ where all ratios are equal, ∞ where there are too few draws for a tail


def psis(log_ratios: Tensor) -> Smoothed:
    """Return smoothed importance weights, and k̂.

    Args:
        log_ratios: log p − log q at draws from q, up to a constant, (S, ...): one column for each quantity. −∞
            where p is zero.

    Raises:
        TypeError: if they are not a floating-point tensor.
        ValueError: if there are no draws, or a ratio is NaN or ∞, or all of a column are −∞.
    """
    check_floating("log_ratios", log_ratios)
    if log_ratios.ndim == 0 or not log_ratios.numel():
        raise ValueError(f"`log_ratios` must have one row for each draw; got shape {tuple(log_ratios.shape)}.")
    ratios_SQ = log_ratios.double().flatten(1) if log_ratios.ndim > 1 else log_ratios.double().unsqueeze(1)
    largest_Q = ratios_SQ.amax(0)  # NaN if a ratio is
    if not bool(torch.isfinite(largest_Q).all()):
        wrong = float(largest_Q[~torch.isfinite(largest_Q)][0])
        raise ValueError(
            f"`log_ratios` must be finite, or −∞ where the density is zero, though not everywhere; the largest is "
            f"{wrong:g}."
        )
    ratios_SQ = ratios_SQ - largest_Q
    draws = len(ratios_SQ)
    tail = math.ceil(min(draws / 5, 3 * math.sqrt(draws)))
    if tail < _FEWEST:
        k_Q = torch.full_like(ratios_SQ[0], math.inf)
    else:
        ratios_SQ, k_Q = _smoothed(ratios_SQ, tail)
    log_weights_SQ = ratios_SQ - torch.logsumexp(ratios_SQ, 0)
    return Smoothed(log_weights_SQ.view(log_ratios.shape), k_Q.view(log_ratios.shape[1:]))


def pareto_k(log_ratios: Tensor) -> Tensor:
    """Return k̂ of log ratios at draws from q, float64 (...).

    Below 0.5 it is good, up to 0.7 usable, above not to be trusted. Argument and errors are those of `psis`.
    """
    return psis(log_ratios).k


def _smoothed(ratios_SQ: Tensor, tail: int) -> tuple[Tensor, Tensor]:
    """Return log ratios, the largest 0, with a smooth tail, and k̂."""
    sorted_SQ, order_SQ = ratios_SQ.sort(0)
    cut_Q = sorted_SQ[-tail - 1].exp()
    excess_TQ = sorted_SQ[-tail:].exp() - cut_Q
    shape_Q, scale_Q = generalised_pareto(excess_TQ)
    equal_Q = excess_TQ[-1] <= _ROUNDING
    places_T = (torch.arange(tail, dtype=torch.float64, device=excess_TQ.device) + 0.5) / tail
    expected_TQ = cut_Q + scale_Q * torch.expm1(-shape_Q * torch.log1p(-places_T).unsqueeze(1)) / shape_Q
    smooth_TQ = torch.where(equal_Q, sorted_SQ[-tail:], expected_TQ.clamp(max=1.0).log())
    smoothed_SQ = ratios_SQ.scatter(0, order_SQ[-tail:], smooth_TQ)
    return smoothed_SQ, torch.where(equal_Q, -math.inf, shape_Q)


def generalised_pareto(excess_TQ: Tensor) -> tuple[Tensor, Tensor]:
    """Return shape k and scale, (Q,) each, of generalised Pareto distributions (Zhang and Stephens 2009).

    `excess_TQ` are sorted observations above the threshold, one column per distribution. The shape is drawn towards
    ½ as by ten further observations; the scale is that of the shape before.
    """
    count, points = len(excess_TQ), 30 + math.isqrt(len(excess_TQ))
    places_P = torch.arange(1, points + 1, dtype=excess_TQ.dtype, device=excess_TQ.device)
    factors_P = (1 - torch.sqrt(points / (places_P - 0.5))).unsqueeze(1)
    quarter_Q = excess_TQ[math.floor(count / 4 + 0.5) - 1]
    quarter_Q = torch.where(quarter_Q > 0, quarter_Q, excess_TQ.mean(0))  # ties may make the quartile 0
    b_PQ = 1 / excess_TQ[-1] + factors_P / (3 * quarter_Q)
    k_PQ = torch.log1p(-b_PQ.unsqueeze(0) * excess_TQ.unsqueeze(1)).mean(0)
    likelihood_PQ = count * (torch.log(-b_PQ / k_PQ) - k_PQ - 1)
    b_Q = (likelihood_PQ.softmax(0) * b_PQ).sum(0)
    k_Q = torch.log1p(-b_Q * excess_TQ).mean(0)
    return (count * k_Q + 5) / (count + 10), -k_Q / b_Q
