"""Velocities of two dynamics: how a force turns them, and how noise refreshes them.

Both are written in coordinates in which the mass is the identity, with U = −log p and g = ∇U there.

Isokinetic (Robnik, De Luca, Silverstein and Seljak 2023; Robnik and Seljak 2023): the velocity u has length 1, and

    w' = u,     u' = −(I − u uᵀ) g / (D − 1)

leaves p(w) times the uniform law on the sphere as it is. Over a time τ at a fixed force, with n = −g/|g|, c = n·u,
δ = τ|g|/(D − 1) and ζ = e^−δ,

    u ← (n (1 − ζ)(1 + ζ + c (1 − ζ)) + 2 ζ u) / |·|,     ΔK = (D − 1) (δ + log((1 + c)/2 + ζ² (1 − c)/2))

which is the solution, written without cosh and sinh, as these overflow. ΔK = −∫ g·u dt is the work that the force
does, and e^−ΔK the factor by which the map changes the area of the sphere. Refreshment over a time τ, z ~ N(0, I):

    u ← (u + ν z)/|·|,     ν² = (e^(2τ/L) − 1)/D

after which E[u'·u] is e^(−τ/L), up to terms of order 1/D.

Newtonian: the velocity is a momentum of unit mass, with law N(0, I), and

    p ← p − τ g,     ΔK = ½|p'|² − ½|p|²,     p ← e^(−τ/L) p + √(1 − e^(−2τ/L)) z
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch import Tensor


class Kinetics(Protocol):
    """What is particular about the velocities of a dynamics; times and lengths (M,) are float64."""

    least: int  # fewest weights that it can move

    def scale(self, size: int) -> float:
        """Return the length of a path on which a velocity of D weights changes where the target is N(0, I)."""
        ...

    def fresh(self, standard_MD: Tensor) -> Tensor:
        """Return velocities of the stationary law from numbers that are N(0, I)."""
        ...

    def kicked(self, velocity_MD: Tensor, force_MD: Tensor, time_M: Tensor) -> tuple[Tensor, Tensor]:
        """Return velocities after a time at a fixed force ∇log p, and ΔK, float64 (M,)."""
        ...

    def refreshed(self, velocity_MD: Tensor, standard_MD: Tensor, time_M: Tensor, *, length_M: Tensor) -> Tensor:
        """Return velocities after a time τ of refreshment of length L, by numbers that are N(0, I)."""
        ...


def check_turns(method: Any, weights_MD: Tensor) -> None:
    """Raise ValueError if there are fewer weights than the velocities of a method need."""
    size, least = weights_MD.shape[1], method.kinetics.least
    if size < least:
        raise ValueError(
            f"{type(method).__name__} moves at a constant speed, and only turns, for which it needs at least {least} "
            f"random weights; got {size}. Take NUTS or HMC."
        )


class Isokinetic:
    """Velocities of length 1, of microcanonical dynamics."""

    least = 2

    def scale(self, size: int) -> float:
        """Return √D: each coordinate moves at a speed of 1/√D."""
        return math.sqrt(size)

    def fresh(self, standard_MD: Tensor) -> Tensor:
        """Return directions that are uniform on the sphere."""
        return standard_MD / _norm(standard_MD).to(standard_MD).unsqueeze(-1)

    def kicked(self, velocity_MD: Tensor, force_MD: Tensor, time_M: Tensor) -> tuple[Tensor, Tensor]:
        """Return the solution of u' = (I − u uᵀ) ∇log p/(D − 1), and ΔK."""
        others = force_MD.shape[-1] - 1
        norm_M = _norm(force_MD)
        # without a force there is no direction n, and with n = 0 nothing changes
        direction_MD = force_MD / norm_M.to(force_MD).clamp_min(torch.finfo(force_MD.dtype).tiny).unsqueeze(-1)
        # (1 ± c)/2 as squares of |u ± n|, because c near −1 or 1 would leave few digits of them
        with_M, against_M = _norm(velocity_MD + direction_MD).square(), _norm(velocity_MD - direction_MD).square()
        with_M, against_M = with_M / (with_M + against_M), against_M / (with_M + against_M)
        delta_M = time_M * norm_M / others
        zeta_M = (-delta_M).exp()
        turn_M = (1 - zeta_M) * (with_M + zeta_M * against_M)
        largest_M = torch.maximum(turn_M, zeta_M).clamp_min(torch.finfo(torch.float64).tiny)
        turn_M1, stay_M1 = ((part_M / largest_M).to(force_MD).unsqueeze(-1) for part_M in (turn_M, zeta_M))
        turned_MD = turn_M1 * direction_MD + stay_M1 * velocity_MD
        length_M1 = _norm(turned_MD).to(force_MD).unsqueeze(-1)
        turned_MD = torch.where(length_M1 > 0, turned_MD / length_M1, velocity_MD)
        gain_M = others * (delta_M + torch.logaddexp(with_M.log(), against_M.log() - 2 * delta_M))
        return turned_MD, gain_M

    def refreshed(self, velocity_MD: Tensor, standard_MD: Tensor, time_M: Tensor, *, length_M: Tensor) -> Tensor:
        """Return directions that have turned at random."""
        scale_M = (torch.expm1(2 * time_M / length_M) / velocity_MD.shape[-1]).sqrt()
        # noise far longer than the velocity leaves nothing of it, and would overflow
        moved_MD = velocity_MD + scale_M.clamp(max=1e10).to(velocity_MD).unsqueeze(-1) * standard_MD
        return self.fresh(moved_MD)


class Newtonian:
    """Momenta of unit mass, of underdamped Langevin dynamics."""

    least = 1

    def scale(self, size: int) -> float:
        """Return 1, the time on N(0, I), whose periods are 2π."""
        return 1.0

    def fresh(self, standard_MD: Tensor) -> Tensor:
        """Return the numbers themselves."""
        return standard_MD

    def kicked(self, velocity_MD: Tensor, force_MD: Tensor, time_M: Tensor) -> tuple[Tensor, Tensor]:
        """Return p + τ ∇log p, and ΔK = τ p·∇log p + ½ τ² |∇log p|²."""
        kicked_MD = velocity_MD + time_M.to(force_MD).unsqueeze(-1) * force_MD
        along_M = torch.linalg.vecdot((velocity_MD + kicked_MD).double(), force_MD.double())
        return kicked_MD, time_M / 2 * along_M

    def refreshed(self, velocity_MD: Tensor, standard_MD: Tensor, time_M: Tensor, *, length_M: Tensor) -> Tensor:
        """Return momenta of the exact Ornstein-Uhlenbeck process."""
        keep_M, noise_M = (-time_M / length_M).exp(), (-torch.expm1(-2 * time_M / length_M)).sqrt()
        keep_M1, noise_M1 = (part_M.to(velocity_MD).unsqueeze(-1) for part_M in (keep_M, noise_M))
        return keep_M1 * velocity_MD + noise_M1 * standard_MD


def _norm(vector_MD: Tensor) -> Tensor:
    """Return lengths, float64 (M,)."""
    return torch.linalg.vector_norm(vector_MD, dim=-1, dtype=torch.float64)
