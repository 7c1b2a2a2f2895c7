"""Moves of many particles at one temperature: Hamiltonian Monte Carlo with a Metropolis test and fixed settings.

The random numbers depend on (seed, number of the move) alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchbayes.density.dynamics import Value, leapfrog
from torchbayes.evidence.path import Parts, Target
from torchbayes.methods.mcmc.hamiltonian import filled, kinetic
from torchbayes.methods.sampler import acceptance, choose
from torchbayes.randomness.seeds import Purpose, generator

QUARTER = math.pi / 2  # of the period of a normal target whose variances are the inverse masses


class Place(NamedTuple):
    """The weights of M particles, and prior and likelihood there."""

    weights_MD: Tensor
    parts: Parts


class Tuning(NamedTuple):
    """Settings of the moves at one temperature."""

    step_size: float  # ε, the largest leapfrog step
    inverse_mass_D: Tensor  # diagonal of M⁻¹: roughly the variances of the weights
    leapfrogs: int  # bound on the number of steps

    @property
    def steps(self) -> tuple[float, int]:
        """Size and number L of the steps of a move: L = ⌈π/2ε⌉ steps of size π/2L, or at most `leapfrogs` of size ε.

        Each particle's size is multiplied by a number uniform in [0.8, 1.2].
        """
        length, largest = torch.tensor([QUARTER, self.step_size], dtype=torch.float64)
        size, number = filled(length, largest, self.leapfrogs)
        return float(size), int(number)


def move(target: Target, place: Place, beta: float, *, tuning: Tuning, seed: int, number: int) -> tuple[Place, Tensor]:
    """Move every particle once, leaving p_β invariant; return them, and their acceptance probabilities, float64 (M,).

    Step sizes do not depend on the particles, so the move is reversible with respect to p_β. `number` counts the
    moves of the run.
    """
    weights_MD, count, device = place.weights_MD, len(place.weights_MD), place.weights_MD.device
    inverse_mass_D = tuning.inverse_mass_D.to(weights_MD)
    source = generator(Purpose.MOVE_MOMENTUM, seed, number)
    momentum_MD = torch.randn(weights_MD.shape, generator=source, dtype=weights_MD.dtype)
    momentum_MD = momentum_MD.to(device) * inverse_mass_D.rsqrt()
    jitter_M, chance_M = (
        torch.rand(count, generator=generator(purpose, seed, number), dtype=torch.float64)
        for purpose in (Purpose.MOVE_JITTER, Purpose.MOVE_ACCEPT)
    )
    beta_1 = torch.tensor([beta], dtype=torch.float64, device=device)
    last = [place.parts]

    def density(at_MD: Tensor) -> Value:
        last[0] = target.parts(at_MD)  # the next temperature needs the two parts separately
        return last[0].at(beta_1)

    before, (step_size, steps) = place.parts.at(beta_1), tuning.steps
    end = leapfrog(
        density,
        weights_MD,
        momentum_MD,
        gradient_MD=before.gradient,
        step_size_M=(step_size * (0.8 + 0.4 * jitter_M)).to(device),
        steps_M=torch.full((count,), steps, device=device),
        inverse_mass_MD=inverse_mass_D,
    )
    # Potential and kinetic differences are formed separately: both are small compared with the energies.
    gain_M = (end.value.log_density - before.log_density) + (
        kinetic(momentum_MD, inverse_mass_D) - kinetic(end.momentum_MD, inverse_mass_D)
    )
    probability_M = acceptance(gain_M)
    accepted_M = chance_M.to(device) < probability_M
    parts = Parts(*(choose(accepted_M, new, old) for new, old in zip(last[0], place.parts, strict=True)))
    return Place(choose(accepted_M, end.weights_MD, weights_MD), parts), probability_M
