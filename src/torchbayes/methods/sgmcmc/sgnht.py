"""The stochastic gradient Nosé-Hoover thermostat (Ding et al. 2014).

    m ← m − h ξ m + h ∇log p(w) + √(2 a h T) A^{1/2} z,     w ← w + h A⁻¹ m,     ξ ← ξ + h (mᵀA⁻¹m/D − T)

with mass A = 1, or with preconditioner A = √V + δ as in SGHMC: V ← λ V + (1 − λ) ∇log p(w)² elementwise. The friction
ξ of each chain adapts until the kinetic energy is that of temperature T, so that it absorbs gradient noise of unknown
size. h = √ε, and a = ξ_0 is the injected diffusion. The gradient is that of the full-data log density, estimated from
a minibatch.

Where a schedule adds no noise, as in the exploration of `Cycles`, there is no temperature for a thermostat to hold: it
would lower ξ below zero, which heats the chain. There ξ = a, so that the step is gradient descent with momentum, as in
the exploration of cyclical samplers (Zhang et al. 2020). ξ adapts from a when the noise is back. In the first half of
burn-in ξ = a too: the kinetic energy of a chain that falls towards the bulk of the density is not thermal, and ξ would
lose the excess by only hT per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchbayes.density.dynamics import Density
from torchbayes.methods.noise import normals
from torchbayes.methods.sampler import Sampler
from torchbayes.methods.sgmcmc.stochastic import Info, State, Stochastic, add_, look, scaled_noise, temperature
from torchbayes.randomness.seeds import Purpose


@dataclass(frozen=True)
class Thermostats(State):
    """Where the chains are."""

    friction_M: Tensor  # ξ, float64


@dataclass(frozen=True)
class SGNHT(Stochastic, Sampler):
    """The stochastic gradient Nosé-Hoover thermostat.

    Attributes:
        diffusion: a. None for 1, but for 0.025/h where no step size is given, with h that of the first step: a
            momentum then lasts for 40 steps, however many rows there are.
    """

    diffusion: float | None = None

    rate = 0.003  # learning rate on the mean loss
    preconditioned_rate = 0.00075

    def friction(self, density: Density) -> float:
        """Return a, the initial friction."""
        if self.diffusion is not None:
            return self.diffusion
        return 1.0 if self.step_size is not None else 0.025 / self.step_size_at(0, density) ** 0.5

    def begin(
        self, density: Density, weights_MD: Tensor, buffers: Any, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> State:
        state = super().begin(density, weights_MD, buffers, seeds=seeds, steps_per_epoch=steps_per_epoch)
        first_M = weights_MD.new_full((len(weights_MD),), self.friction(density), dtype=torch.float64)
        started = Thermostats(**vars(state), friction_M=first_M)
        if self.preconditions(density):  # A is not known yet, and the chain gains its momentum in burn-in
            return started
        momentum_MD = normals(seeds, Purpose.THERMOSTAT, 0, like=weights_MD) * temperature(density) ** 0.5
        return replace(started, momentum_MD=momentum_MD)

    def move(self, density: Density, state: State, batch: Any, *, donate: bool = False) -> tuple[State, Info]:
        seen = look(self, density, state, batch=batch, donate=donate)
        now, drift_MD, step_size, noisy, mass_MD, *_ = seen
        h, heat, diffusion = step_size**0.5, temperature(density), self.friction(density)
        friction_M1 = (now.friction_M if noisy else torch.full_like(now.friction_M, diffusion)).unsqueeze(-1)
        now.momentum_MD.mul_((1 - h * friction_M1).to(now.momentum_MD))
        add_(now.momentum_MD, drift_MD, h)
        if noisy:
            noise_MD = scaled_noise(state, state.step, (2 * diffusion * h * heat) ** 0.5)
            now.momentum_MD.add_(noise_MD if mass_MD is None else noise_MD.mul_(mass_MD.sqrt()))
        velocity_MD = now.momentum_MD if mass_MD is None else now.momentum_MD / mass_MD
        add_(now.weights_MD, velocity_MD, h)
        if noisy and state.step >= self.burn_in // 2:
            energy_M = torch.linalg.vecdot(now.momentum_MD.double(), velocity_MD.double())
            friction_M1 = friction_M1 + h * (energy_M / now.momentum_MD.shape[-1] - heat).unsqueeze(-1)
        return seen.done(replace(now, friction_M=friction_M1.squeeze(-1).contiguous()), {"friction_M": diffusion})
