"""Full-batch Hamiltonian Monte Carlo (Duane et al. 1987, Neal 2011), as in Izmailov et al. (2021).

An iteration draws a momentum v ~ N(0, M), integrates the Hamiltonian H(w, v) = −log p(w, D) + ½ vᵀ M⁻¹ v by L leapfrog
steps, and accepts the end with probability min(1, exp(H(w, v) − H(w', v'))). Its length τ is by default

    τ = (π/2) σ √T

a quarter of the period of a direction that the prior alone determines, with prior standard deviation σ. The step size
ε is an upper bound, and the length τ is kept whatever it is:

    L = ⌈τ / ε⌉ steps of size τ / L

because near half a period a trajectory ends at −w, and the chain keeps the energy it has. Energies are sums in
float64.

ε is given, or found for each chain by dual averaging during burn-in. Dual averaging sees the acceptance at τ / L,
which is constant while L is. Where a few steps cover a trajectory, it settles at the L whose acceptance is nearest to
the target δ, between 2δ − 1 and 1. A trajectory that ends outside the support does not count, because it would end
there at any step size.

Acceptance tells nothing about regions that are too narrow for ε, since a chain does not enter them. A step size drawn
anew for each iteration, whatever the weights are, leaves the target as it is (Neal 2011, section 5.4.2): ε/2^j with
probability 2^−(j+1) costs about as many gradients for each j.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchbayes.density.dynamics import Density
from torchbayes.methods.faults import travelled
from torchbayes.methods.mcmc.hamiltonian import State, filled, kinetic, learned, momenta, start
from torchbayes.methods.mcmc.mass import Learning, Mass, known_prior
from torchbayes.methods.noise import uniforms
from torchbayes.methods.sampler import DIVERGENCE, Info, Sampler, diverged, metropolis, moved
from torchbayes.randomness.seeds import Purpose


@dataclass(frozen=True)
class HMC(Learning, Sampler):
    """Hamiltonian Monte Carlo on all the data.

    Attributes:
        step_size: ε, the largest step; None adapts it to `target_acceptance` during burn-in, for each chain
            separately.
        trajectory: τ, in units of the weights (of √mass times weights where the mass is not unit); None for (π/2) σ √T
            with the largest prior standard deviation σ. With a mass from the prior or adapted, σ is 1.
        jitter: each iteration's τ is multiplied by a number uniform on [1 − jitter, 1 + jitter], drawn for each chain:
            a direction whose period divides τ would otherwise always return to its start.
        halvings: each iteration's ε is halved j times, j = 0, 1, ... up to this with probabilities 1/2, 1/4, ...,
            drawn for each chain: for targets with regions much narrower than others.
        mass: unit; "prior": 1/σ² of each weight; "diagonal": the inverse variance of each weight in burn-in; "layer":
            one for each tensor; "dense": the inverse covariance in burn-in, for up to 2,000 correlated weights. In
            `sample`, unit is "diagonal" where neither `trajectory` nor a prior tells how long a trajectory is in units
            of the weights.
        target_acceptance: δ of the adaptation.
        max_leapfrogs: bound on L. Trajectories that need more are cut short, and their steps have size ε.
        accept_in_burn_in: accept every proposal of finite energy during burn-in, as Izmailov et al. do.
        leapfrogs_in_burn_in: bound on L while the step size is adapted, and may be small for a while: about the size
            of a NUTS tree in Stan. Not used with a given step size.
    """

    step_size: float | None = None
    trajectory: float | None = None
    jitter: float = 0.0
    mass: Mass = "unit"
    target_acceptance: float = 0.8
    max_leapfrogs: int = 100_000
    accept_in_burn_in: bool = False
    leapfrogs_in_burn_in: int = 1024
    halvings: int = 0

    @property
    def without_prior(self) -> HMC | None:
        """The method with an adapted mass, whose trajectories need no prior.

        None where these settings need none either.
        """
        needed = self.mass == "unit" and self.trajectory is None and self.burn_in > 0
        return replace(self, mass="diagonal") if needed else None

    def begin(
        self, density: Density, weights_MD: Tensor, buffers: Any, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> State:
        return start(self, density, weights_MD, seeds=seeds, length=self._length(density))

    def move(self, density: Density, state: State, batch: Any, *, donate: bool = False) -> tuple[State, Info]:
        mass_MD = None if self.mass == "unit" else state.inverse_mass_MD
        momentum_MD, (step_size_M, leapfrogs_M) = momenta(state, mass_MD), self._steps(state)
        end, faults = travelled(
            density,
            state.weights_MD,
            momentum_MD,
            gradient_MD=state.gradient_MD,
            step_size_M=step_size_M,
            steps_M=leapfrogs_M,
            inverse_mass_MD=mass_MD,
        )
        kinetic_M, kinetic_end_M = kinetic(momentum_MD, mass_MD), kinetic(end.momentum_MD, mass_MD)
        # differences of potential and kinetic energy are formed separately, because both are small beside the energies
        error_M = (state.log_density_M - end.value.log_density) + (kinetic_end_M - kinetic_M)
        accepted_M, probability_M = metropolis(-error_M, state.seeds, state.step)
        if self.accept_in_burn_in and state.step < self.burn_in:
            accepted_M = torch.isfinite(error_M)
        new = moved(state, accepted_M, end.weights_MD, value=end.value)
        info = Info(
            new.log_density_M,
            new.log_likelihood_M,
            kinetic_M - state.log_density_M,
            probability_M,
            step_size_M,
            leapfrogs_M.double(),
            *diverged(error_M),
            faults,
        )
        # a step too long for a smooth density shows in the momentum, a boundary of the support does not
        wall_M = ~torch.isfinite(end.value.log_density) & (kinetic_end_M - kinetic_M < DIVERGENCE)
        acceptance_M = torch.where(wall_M, self.target_acceptance, probability_M)
        return learned(self, density, new, acceptance_M=acceptance_M), info

    def _steps(self, state: State) -> tuple[Tensor, Tensor]:
        """Return size and number of the steps of each chain's trajectory, on the CPU."""
        largest_M = state.step_size.step_size_M
        if self.halvings:
            halvings_M = -uniforms(state.seeds, Purpose.HALVINGS, state.step).log2().ceil()
            largest_M = largest_M * 0.5 ** halvings_M.clamp(0, self.halvings)
        if self.jitter:
            jitter_M = self.jitter * (2 * uniforms(state.seeds, Purpose.JITTER, state.step) - 1)
            length_M = state.length * (1 + jitter_M)
        else:
            length_M = torch.full_like(largest_M, state.length)
        adapts = self.step_size is None and state.step < self.burn_in
        bound = min(self.max_leapfrogs, self.leapfrogs_in_burn_in) if adapts else self.max_leapfrogs
        return filled(length_M, largest_M, bound)

    def _length(self, density: Density) -> float:
        """Return τ without jitter."""
        if self.trajectory is not None:
            return self.trajectory
        if self.mass != "unit":
            return math.pi / 2
        advice = "Give `trajectory`, or choose another mass."
        return math.pi / 2 * float(known_prior(density, "the length of a trajectory", advice=advice).max())
