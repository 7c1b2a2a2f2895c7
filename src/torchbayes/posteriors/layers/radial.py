"""Radial posteriors: for each parameter a direction and a radius of their own (Farquhar, Osborne and Gal 2020).

    w_g = μ_g + σ_g ∘ (ε_g / ‖ε_g‖) |r_g|,    ε_g ~ N(0, I),  r_g ~ N(0, 1),    g a parameter of n weights

In units of σ the distance of a draw from the mean is |r|, whatever n. Under a normal law it is close to √n, so that
no draw is near the mean. A weight has the variance σ²/n, and is not normal unless n = 1. With S_{n−1} = 2
π^{n/2}/Γ(n/2) the area of the unit sphere, the density of u = (w − μ)/σ is that of |r| on the sphere,

    q(u) = √(2/π) e^{−|u|²/2} / (S_{n−1} |u|^{n−1}),    H(q) = Σ log σ + ½ log(πe/2) + log S_{n−1} + (n − 1) E log |r|

and E log |r| = −½ (γ + log 2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from torchbayes.posteriors.functions import check_weights
from torchbayes.posteriors.point import Point
from torchbayes.posteriors.posterior import ByFields, normals, readable

_EULER = 0.5772156649015329


@readable
@dataclass(frozen=True, repr=False)
class RadialPosterior(ByFields):
    """q = (1/M) Σ_m of radial laws around μ_m, one for each parameter of the network or of the likelihood.

    Attributes:
        mean_MD: μ.
        scale_MD: σ, positive; a weight of a parameter with n weights has standard deviation σ/√n.
    """

    mean_MD: Tensor
    scale_MD: Tensor

    kind = "radial"

    def __post_init__(self) -> None:
        check_weights(self.model, "M", mean_MD=self.mean_MD, scale_MD=self.scale_MD)
        if self.scale_MD.shape != self.mean_MD.shape or not bool((self.scale_MD > 0).all()):
            raise ValueError(
                f"`scale_MD` must hold a number above 0 for each of the means, {tuple(self.mean_MD.shape)}; got shape "
                f"{tuple(self.scale_MD.shape)}, from {float(self.scale_MD.min()):g}."
            )

    @property
    def centre(self) -> Point:
        """The means."""
        return Point(self.model, self.mean_MD, buffers_M=self.buffers_M, calibration=self.calibration)

    def sample(self, draws: int, *, seed: int = 0) -> Tensor:
        draws, sizes = self.check_draws(draws), self.model.layout.sizes
        noise = normals(seed, draws, sum(sizes) + len(sizes), like=self.mean_MD)
        offset = directions(noise, sizes).view(draws // self.members, self.members, -1)
        return (self.mean_MD + self.scale_MD * offset).flatten(0, 1)

    def log_prob(self, weights: Tensor) -> Tensor:
        """Return log q(w), the log density of the mixture, float64 (...) in nats, for w (..., D); ∞ at a mean."""
        sizes = self.model.layout.sizes
        unit = ((weights.unsqueeze(-2) - self.mean_MD) / self.scale_MD).double()
        radius = lengths(unit, sizes)
        below = torch.tensor(sizes, dtype=torch.float64, device=radius.device) - 1
        constant = sum(0.5 * math.log(2 / math.pi) - _log_area(n) for n in sizes)
        log_prob = (-0.5 * radius.square() - torch.xlogy(below, radius)).sum(-1) + constant
        log_prob = log_prob - self.scale_MD.double().log().sum(-1)
        return torch.logsumexp(log_prob, dim=-1) - math.log(self.members)


def directions(noise: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return u, (..., D): for each parameter a random direction times a random radius.

    `noise` are standard normals (..., D + G), the last G for the radii; `sizes` are the weights of each of G
    parameters.
    """
    normal, radius = noise.split([sum(sizes), len(sizes)], dim=-1)
    length = lengths(normal, sizes).clamp_min(torch.finfo(noise.dtype).tiny)
    return normal * (radius.abs() / length)[..., parameter_of(tuple(sizes), noise.device)]


def lengths(vectors: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the length of each parameter's part of vectors (..., D), (..., G)."""
    squares = vectors.new_zeros(*vectors.shape[:-1], len(sizes))
    return squares.index_add_(-1, parameter_of(tuple(sizes), vectors.device), vectors.square()).sqrt()


def entropy(sizes: Sequence[int]) -> float:
    """Return the entropy of u, in nats."""
    mean_log_radius = -0.5 * (_EULER + math.log(2))
    return sum(0.5 * math.log(math.pi * math.e / 2) + _log_area(n) + (n - 1) * mean_log_radius for n in sizes)


def _log_area(size: int) -> float:
    """Return log S_{n−1}."""
    return math.log(2) + 0.5 * size * math.log(math.pi) - math.lgamma(0.5 * size)


@lru_cache(maxsize=8)
def parameter_of(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the index of the parameter of each weight, (D,); cached, because making it waits for a GPU."""
    return torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)).to(device)
