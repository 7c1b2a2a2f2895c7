"""Simplexes of weights that share vertices, and the uniform distribution over them.

K modes w_1 … w_K and R vertices θ_1 … θ_R, which all of them share, form K simplexes, each of one mode and the
shared vertices (Benton et al. 2021):

    φ(b) = b_0 w_k + Σ_j b_j θ_j,    b ≥ 0, b_0 + Σ_j b_j = 1

With one mode this is a single simplex around it. With two or more, the shared vertices connect the modes, and with
R = 1 the complex is a star of straight lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchbayes.checks import as_numbers, check_memory, seen, whole
from torchbayes.posteriors.curves.curve import along
from torchbayes.posteriors.curves.volumes import grams, log_volumes
from torchbayes.posteriors.functions import check_weights
from torchbayes.posteriors.point import Point
from torchbayes.posteriors.posterior import ByFields, readable
from torchbayes.randomness.seeds import Purpose, generator

_ROUNDING = 1e-6  # tolerance on coordinates, which may come from float32


def barycentric(uniform_R: Tensor) -> Tensor:
    """Return coordinates uniform over a simplex, (..., R + 1): the gaps between R uniform numbers, (..., R)."""
    ends = torch.zeros_like(uniform_R[..., :1])
    return torch.cat([ends, uniform_R.sort(dim=-1).values, ends + 1], dim=-1).diff(dim=-1)


def in_complex(shares: Tensor, number: Tensor, modes: int) -> Tensor:
    """Return coordinates over all K + R vertices of a complex, the K `modes` first.

    `shares` (..., R + 1) are coordinates in simplex `number` (...), 0..K − 1, its mode first.
    """
    mode = torch.nn.functional.one_hot(number, modes).to(shares)
    return torch.cat([mode * shares[..., :1], shares[..., 1:]], dim=-1)


def spread_evenly(count: int, first: Tensor) -> Tensor:
    """Return points spread evenly in the unit cube: u + i α modulo 1, (count, ..., R), with u (..., R) in float64.

    α_j = x^(−j) with x^(R + 1) = x + 1: multiples of the golden section where R = 1.
    """
    size, x = first.shape[-1], 2.0
    for _ in range(64):
        x = (1 + x) ** (1 / (size + 1))
    steps_R = x ** -torch.arange(1, size + 1, dtype=torch.float64)
    rounds = torch.arange(count, dtype=torch.float64).view(-1, *(1,) * first.ndim)
    return (first + rounds * steps_R) % 1.0


@readable
@dataclass(frozen=True, repr=False)
class SimplexPosterior(ByFields):
    """q(w) = (1/M) Σ_m (1/K) Σ_k uniform over simplex k of complex m.

    Every simplex counts equally, whatever its volume, as members do. The draws of a simplex are spread evenly over
    it, each of them uniform. Batch-norm statistics belong to no vertex, so every draw is recalibrated.

    Attributes:
        vertices_MPD: vertices of each complex, (M, K + R, D): the modes, then those that all simplexes share.
        modes: K.
    """

    vertices_MPD: Tensor
    modes: int = 1

    kind = "simplex"

    def __post_init__(self) -> None:
        check_weights(self.model, "M", "P", vertices_MPD=self.vertices_MPD)
        modes = whole("modes", self.modes)
        object.__setattr__(self, "modes", modes)
        if self.vertices_MPD.shape[1] <= modes:
            raise ValueError(
                f"`vertices_MPD` must hold the `modes`, {modes}, and the vertices that they share; got shape "
                f"{tuple(self.vertices_MPD.shape)}."
            )

    def log_volumes(self) -> Tensor:
        """Return the log volume of every simplex, float64 (M, K), log of weight units to the power R.

        It is −∞ where vertices lie in a plane of fewer dimensions.
        """
        return log_volumes(grams(self.vertices_MPD[:, : self.modes], self.vertices_MPD[:, self.modes :]))

    def weights(self, coordinates: Any) -> Tensor:
        """Return the weights at points of every complex, (M, D), or (T, M, D) for several points.

        Args:
            coordinates: barycentric, over all vertices: (K + R,), or (T, K + R). At most one mode has a positive
                coordinate.

        Raises:
            ValueError: if they are negative, do not sum to 1, or belong to no simplex.
            TypeError: if they are no numbers.
        """
        shares = self._coordinates(coordinates).to(self.vertices_MPD)
        return torch.einsum("...p,mpd->...md", shares, self.vertices_MPD)

    def at(self, coordinates: Any) -> Point:
        """Return the networks at points of every complex as the members of a point posterior.

        Args:
            coordinates: as for `weights`; a row of the identity matrix is a vertex.

        Returns:
            The posterior of M networks, or T · M: all complexes at the first point, then at the next.

        Raises:
            ValueError: if they are negative, do not sum to 1, or belong to no simplex.
            TypeError: if they are no numbers.
        """
        return along(self, self.weights(coordinates).flatten(0, -2))

    def sample(self, draws: int, *, seed: int = 0) -> Tensor:
        """Return weights in the simplexes, (S, D); the draws of a member take its simplexes in turn."""
        draws, (members, count, size) = self.check_draws(draws), self.vertices_MPD.shape
        check_memory(draws * size * self.vertices_MPD.itemsize, "the drawn weights", draws=draws)
        modes, rounds = self.modes, draws // members
        shape = (members, modes, count - modes + 1)
        first_MKR = torch.rand(shape, generator=generator(Purpose.SIMPLEX_DRAW, seed), dtype=torch.float64)
        turn_M = (first_MKR[:, 0, 0] * modes).long()
        number_SM = (torch.arange(rounds).unsqueeze(1) + turn_M) % modes
        uniform_SMKR = spread_evenly(-(-rounds // modes), first_MKR[..., 1:]).repeat_interleave(modes, dim=0)[:rounds]
        uniform_SMR = uniform_SMKR.take_along_dim(number_SM[..., None, None], dim=2).squeeze(2)
        shares_SMP = in_complex(barycentric(uniform_SMR), number_SM, modes).to(self.vertices_MPD)
        return torch.einsum("smp,mpd->smd", shares_SMP, self.vertices_MPD).flatten(0, 1)

    def _coordinates(self, coordinates: Any) -> Tensor:
        """Return coordinates in float64; a ValueError if negative, of another sum than 1, or of no simplex."""
        shares, count = as_numbers("coordinates", coordinates), self.vertices_MPD.shape[1]
        if shares.ndim not in {1, 2} or shares.shape[-1] != count:
            raise ValueError(
                f"`coordinates` must have one number for each of the {count} vertices, ({count},) or (T, {count}); got "
                f"shape {tuple(shares.shape)}."
            )
        if not ((shares >= -_ROUNDING).all() and ((shares.sum(-1) - 1).abs() <= _ROUNDING * count).all()):
            raise ValueError(f"`coordinates` must be at least 0 and sum to 1; got {seen(coordinates)}.")
        if ((shares[..., : self.modes] > _ROUNDING).sum(-1) > 1).any():
            raise ValueError(
                f"`coordinates` must be those of one simplex, with a single one of the first {self.modes}, the modes, "
                f"above 0; got {seen(coordinates)}. Between two modes there is no simplex."
            )
        return shares
