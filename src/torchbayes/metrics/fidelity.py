"""Fidelity of one predictive to another, usually an approximation to a long HMC run.

Agreement and total variation are those of Izmailov et al. (2021), "What are Bayesian neural network posteriors really
like?", and of the NeurIPS 2021 competition on approximate inference.
"""

import math
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from torchbayes.metrics._checks import check_float, check_probs, check_same_shape, weighted_mean


def agreement(p_BK: Tensor, q_BK: Tensor, *, weights_B: Tensor | None = None) -> Tensor:
    r"""Return the share of points with the same most probable class, $\frac1B \sum_b [\arg\max p_b = \arg\max q_b]$.

    It is a 0-d float64 tensor.

    Args:
        p_BK: Class probabilities of the one predictive.
        q_BK: Class probabilities of the other.
        weights_B: How often each point counts, at least 0; once if None.

    Raises:
        TypeError: If a dtype is not float32 or float64.
        ValueError: If shapes differ, or probabilities or weights are wrong.
    """
    _check_pair(p_BK, q_BK)
    return weighted_mean(p_BK.argmax(-1) == q_BK.argmax(-1), weights_B)


def total_variation(p_BK: Tensor, q_BK: Tensor, *, weights_B: Tensor | None = None) -> Tensor:
    r"""Return the mean total variation distance, $\frac1B \sum_b \frac12 \sum_k |p_{bk} - q_{bk}|$, in [0, 1].

    It is a 0-d float64 tensor.

    Args:
        p_BK: Class probabilities of the one predictive.
        q_BK: Class probabilities of the other.
        weights_B: How often each point counts, at least 0; once if None.

    Raises:
        TypeError: If a dtype is not float32 or float64.
        ValueError: If shapes differ, or probabilities or weights are wrong.
    """
    _check_pair(p_BK, q_BK)
    return weighted_mean(0.5 * (p_BK - q_BK).abs().sum(-1), weights_B)


def wasserstein1(draws_SB: Tensor, draws_TB: Tensor, *, weights_B: Tensor | None = None) -> Tensor:
    r"""Return the mean 1-Wasserstein distance between two sets of draws, $\frac1B \sum_b \int |F_b(x) - G_b(x)|\,dx$.

    It is a 0-d float64 tensor in the units of the draws, exact for the empirical distribution functions F and G at
    each of the B points; O((S + T) log (S + T)) per point.

    Args:
        draws_SB: Draws of the one predictive.
        draws_TB: Draws of the other; T may differ from S.
        weights_B: How often each point counts, at least 0; once if None.

    Raises:
        TypeError: If a dtype is not float32 or float64.
        ValueError: If the numbers of points differ, or draws are missing or not finite.
    """
    return weighted_mean(wasserstein1_rows(draws_SB, draws_TB), weights_B)


def wasserstein1_rows(draws_SB: Tensor, draws_TB: Tensor) -> Tensor:
    """Return the distance at each of the B points, (B,), float64, of which `wasserstein1` is the mean."""
    check_float("draws_SB", draws_SB, 2)
    check_float("draws_TB", draws_TB, 2)
    check_same_shape("draws_SB[0]", draws_SB[0], "draws_TB[0]", draws_TB[0])
    num_first, num_second = len(draws_SB), len(draws_TB)
    values, order = torch.cat([draws_SB, draws_TB]).sort(0)
    # Whole numbers keep the running sum exact; inside a tie it is meaningless but multiplied by a gap of zero.
    steps = torch.where(order < num_first, num_second, -num_first)
    heights = steps.cumsum(0)[:-1].abs().double() / (num_first * num_second)
    return (heights * values.double().diff(dim=0)).sum(0)


CLOSEST: Final = {"agreement": 1.0}
"""Measures of closeness whose best value is not 0."""


def floor(
    apart: Mapping[str, float], sizes: tuple[int, int], *, same: Mapping[str, float] | None = None
) -> dict[str, float]:
    r"""Return how far apart two independent samples of the whole reference would be, per measure, from its own parts.

    Parts of a and b chains (`sizes`) are apart by Monte Carlo error of variance $V (1/a + 1/b)$; two samples of all
    a + b chains would be by $2V/(a + b)$. Distances of averages grow with the root, so

    $$d^2 = s^2 + \frac{2ab}{(a + b)^2} (d_{ab}^2 - s^2)$$

    where $d_{ab}$ (`apart`) is the measured distance between the parts: agreement, total variation or Wasserstein
    distance. s (`same`) is the distance without Monte Carlo error of the reference, due to other randomness of a
    measure; by default 0, or the best value. What is no farther from the reference cannot be distinguished from
    another run of it.
    """
    a, b = sizes
    share, floors = 2 * a * b / (a + b) ** 2, {}
    for measure, value in apart.items():
        best = CLOSEST.get(measure, 0.0)
        spread = abs((same or {}).get(measure, best) - best)
        size = math.sqrt(spread**2 + share * max((value - best) ** 2 - spread**2, 0.0))
        floors[measure] = best - size if best else size
    return floors


def _check_pair(p_BK: Tensor, q_BK: Tensor) -> None:
    check_probs("p_BK", p_BK, 2)
    check_probs("q_BK", q_BK, 2)
    check_same_shape("p_BK", p_BK, "q_BK", q_BK)
