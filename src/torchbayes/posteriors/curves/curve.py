"""Curves between weights: Bezier curves and polygonal chains, and the uniform distribution along one.

With control points θ_0 … θ_n, the first and last of which are the ends, a curve is φ(t) = Σ_j c_j(t) θ_j, 0 ≤ t ≤
1:

    Bezier:  c_j(t) = C(n, j) t^j (1 − t)^(n−j)
    chain:   c_j(t) = max(0, 1 − |n t − j|)

The coefficients of both sum to 1. With a single bend every point lies in the plane of three control points (Garipov
et al. 2018).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from torchbayes.checks import as_numbers, check_choice, check_memory, seen
from torchbayes.posteriors.functions import check_weights
from torchbayes.posteriors.point import Point
from torchbayes.posteriors.posterior import ByFields, Posterior, readable
from torchbayes.randomness.seeds import Purpose, generator

Shape = Literal["bezier", "chain"]

_GOLDEN = (math.sqrt(5) - 1) / 2


def coefficients(shape: Shape, t: Tensor, points: int) -> Tensor:
    """Return c_j(t) of each of the n + 1 control points (`points`), float64 (..., n + 1), for t (...) in [0, 1]."""
    t = t.double().unsqueeze(-1)
    last, number = points - 1, torch.arange(points, dtype=torch.float64)
    if shape == "chain":
        return (1 - (last * t - number).abs()).clamp_min(0)
    ways = torch.tensor([math.comb(last, j) for j in range(points)], dtype=torch.float64)
    return ways * t**number * (1 - t) ** (last - number)


@readable
@dataclass(frozen=True, repr=False)
class CurvePosterior(ByFields):
    """q(w) = (1/M) Σ_m law of φ_m(t), t ~ U(0, 1): networks along curves.

    Draws of a curve are at t = u + i (√5 − 1)/2 modulo 1 for i = 0, 1, … with u drawn at random: each is uniform,
    and together they are spread evenly. Batch-norm statistics belong to no control point, so every draw is
    recalibrated.

    Attributes:
        points_MPD: control points of each curve, (M, P, D), including both ends.
        shape: "bezier" or "chain".
    """

    points_MPD: Tensor
    shape: Shape = "bezier"

    kind = "curve"

    def __post_init__(self) -> None:
        check_choice(get_args(Shape), shape=self.shape)
        check_weights(self.model, "M", "P", points_MPD=self.points_MPD)
        if self.points_MPD.shape[1] < 2:
            raise ValueError(
                f"`points_MPD` must hold the two ends of each curve, and its bends between them; got shape "
                f"{tuple(self.points_MPD.shape)}."
            )

    def weights(self, t: float | Tensor) -> Tensor:
        """Return the weights φ_m(t) of every curve, (M, D) for a number t in [0, 1], (T, M, D) for a tensor (T,).

        Raises:
            ValueError: if a position is outside of [0, 1].
            TypeError: if it is no number.
        """
        t_T = as_numbers("t", t)
        if t_T.ndim > 1 or not ((t_T >= 0) & (t_T <= 1)).all():
            raise ValueError(f"`t` must be in [0, 1], from the first end to the second; got {seen(t)}.")
        coefficients_TP = coefficients(self.shape, t_T, self.points_MPD.shape[1]).to(self.points_MPD)
        return torch.einsum("...p,mpd->...md", coefficients_TP, self.points_MPD)

    def at(self, t: float | Tensor) -> Point:
        """Return the networks at positions on the curves as the members of a point posterior.

        Args:
            t: positions in [0, 1]: a number, or a tensor (T,).

        Returns:
            The posterior of M networks, or T · M: all curves at the first position, then at the next.

        Raises:
            ValueError: if a position is outside of [0, 1].
            TypeError: if it is no number.
        """
        return along(self, self.weights(t).flatten(0, -2))

    def sample(self, draws: int, *, seed: int = 0) -> Tensor:
        draws, (members, count, size) = self.check_draws(draws), self.points_MPD.shape
        check_memory(draws * size * self.points_MPD.itemsize, "the drawn weights", draws=draws)
        first_M = torch.rand(members, generator=generator(Purpose.CURVE_DRAW, seed), dtype=torch.float64)
        t_SM = (first_M + torch.arange(draws // members, dtype=torch.float64).unsqueeze(1) * _GOLDEN) % 1.0
        coefficients_SMP = coefficients(self.shape, t_SM, count).to(self.points_MPD)
        return torch.einsum("smp,mpd->smd", coefficients_SMP, self.points_MPD).flatten(0, 1)


def along(posterior: Posterior, weights_SD: Tensor) -> Point:
    """Return networks of a posterior as members of a point posterior, with its buffers, calibration and problems.

    Its buffers must belong to no draw. Rows of `weights_SD` are of its members in turn.
    """
    rounds = len(weights_SD) // posterior.members
    buffers = {n: b.repeat(rounds, *(1,) * (b.ndim - 1)) for n, b in (posterior.buffers_M or {}).items()}
    return Point(
        posterior.model,
        weights_SD,
        buffers_M=buffers or None,
        statistics_known=posterior.statistics_known,
        calibration=posterior.calibration,
        problems=posterior.problems,
    )
