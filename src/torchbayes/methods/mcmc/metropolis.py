"""Metropolis-Hastings on all the data: a random walk, and the Langevin proposal (MALA).

Random walk (Metropolis et al. 1953) and MALA (Roberts and Tweedie 1996), with z ~ N(0, I) and C = R Rᵀ:

    random walk    w' = w + ε R z
    MALA           w' = w + (ε²/2) C ∇log p(w) + ε R z

A proposal is accepted with probability min(1, p(w') q(w | w') / (p(w) q(w' | w))). The random walk is symmetric; for
MALA q is the normal density around w + (ε²/2) C ∇log p(w) with covariance ε² C. MALA is one leapfrog step of HMC with
step size ε and mass C⁻¹, and SGLD with a Metropolis correction. The scale ε is given, or adapted to a target
acceptance during burn-in for each chain: 0.234 and 0.574 are optimal in high dimension (Roberts and Rosenthal 2001).

C is the identity, or a known or learned spread of the weights. With the covariance of a normal target either method is
the one on N(0, I), whatever the scales and correlations (Haario, Saksman and Tamminen 2001). It is learned like the
mass of HMC, in windows of burn-in, and fixed from then on, so that the draws have the law of the target.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from torchbayes.density.dynamics import Density, Value, displaced, whitened
from torchbayes.methods.faults import Faults, evaluated
from torchbayes.methods.mcmc.adaptation import LEARNED, LEAST_BURN_IN, RunningCovariance, RunningVariance, StepSize
from torchbayes.methods.mcmc.mass import Learning, Mass, first_mass, first_spread, learned
from torchbayes.methods.noise import normals
from torchbayes.methods.sampler import Info, Sampler, begin, diverged, metropolis, moved
from torchbayes.randomness.seeds import Purpose

# Weights per dimension that a window must hold for a dense mass. A short stretch of a slow chain lies in few
# directions, and proposals along these would not explore the others. On a normal target of ten standard deviations
# from 1 to 100, after 3,000 steps of burn-in, a draw of MALA was worth 0.25 independent ones; without this bound 0.04.
_OBSERVED = 10


@dataclass(frozen=True)
class State:
    """Where the chains are, and what they have learned; densities are float64."""

    weights_MD: Tensor
    gradient_MD: Tensor  # of the log density; (M, 0) for a random walk, which needs none
    log_density_M: Tensor
    log_likelihood_M: Tensor
    step_size: StepSize
    # of the weights in the present window of burn-in; no columns if not wanted
    spread: RunningVariance | RunningCovariance
    inverse_mass_MD: Tensor  # C: its diagonal, or R (M, D, D) of a dense one; no columns if C = I
    seeds: tuple[int, ...]
    step: int  # proposals made


@dataclass(frozen=True)
class Metropolis(Learning, ABC):
    """Settings and steps of both samplers; a base beside `Sampler`.

    Attributes:
        step_size: ε, in units of the weights (of √mass times weights where the mass is not unit); None adapts it
            during burn-in, from 2.38/√D for a random walk and 1.65/D^(1/6) for MALA, and again from there with each
            new mass.
        mass: C⁻¹, as of HMC: unit; "prior": 1/σ² of each weight; "diagonal": the inverse variance of each weight in
            burn-in; "layer": one for each tensor; "dense": the inverse covariance in burn-in, for up to 2,000 weights.
            In `sample`, unit is "diagonal" where there is no prior and ε is not given.
        target_acceptance: acceptance rate that ε is adapted to.
    """

    step_size: float | None = None
    mass: Mass = "unit"
    target_acceptance: float = 0.234

    takes_gradient: ClassVar[bool]
    # the step size factor/D^power suits N(0, I) in D dimensions (Roberts and Rosenthal 2001)
    factor: ClassVar[float]
    power: ClassVar[float]

    @abstractmethod
    def propose(
        self, density: Density, state: State, step_M1: Tensor, *, mass_MD: Tensor | None
    ) -> tuple[Tensor, Value, Tensor, Faults]:
        """Return proposals, the density there, log ratios of acceptance, and faults; C is I if `mass_MD` is None."""

    @property
    def without_prior(self) -> Self | None:
        """The method with an adapted mass; None if these settings adapt nothing, or adapt the mass already."""
        may_learn = self.mass == "unit" and self.step_size is None and self.burn_in >= LEAST_BURN_IN
        return replace(self, mass="diagonal") if may_learn else None

    def begin(
        self, density: Density, weights_MD: Tensor, buffers: Any, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> State:
        """Return where chains start, as `Sampler.begin` does."""
        nothing_MD = weights_MD.detach()[:, :0].clone()
        mass_MD = nothing_MD if self.mass == "unit" else first_mass(self, density, weights_MD)
        weights_MD = weights_MD.detach().clone()
        value, step_size = begin(density, weights_MD), StepSize.at(self._first(weights_MD))
        spread = first_spread(self, weights_MD if self.mass in LEARNED else nothing_MD)
        values = (value.gradient if self.takes_gradient else nothing_MD, value.log_density, value.log_likelihood)
        return State(weights_MD, *values, step_size, spread, mass_MD, tuple(seeds), 0)

    def move(self, density: Density, state: State, batch: Any, *, donate: bool = False) -> tuple[State, Info]:
        """Return every chain one proposal on, and the report of the step."""
        step_size_M = state.step_size.step_size_M
        proposal_MD, value, log_ratio_M, faults = self.propose(
            density,
            state,
            step_size_M.to(state.weights_MD).unsqueeze(-1),
            mass_MD=None if self.mass == "unit" else state.inverse_mass_MD,
        )
        accepted_M, probability_M = metropolis(log_ratio_M, state.seeds, state.step)
        new = moved(state, accepted_M, proposal_MD, value=value)
        info = Info(
            new.log_density_M,
            new.log_likelihood_M,
            None,
            probability_M,
            step_size_M,
            torch.ones_like(log_ratio_M),
            *diverged(-log_ratio_M),
            faults,
        )
        least = _OBSERVED * state.weights_MD.shape[1]
        return learned(
            self,
            density,
            new,
            acceptance_M=probability_M,
            first=lambda renewed: self._first(renewed.weights_MD),
            least=least,
        ), info

    def _first(self, weights_MD: Tensor) -> Tensor:
        """Return the first step sizes (M,)."""
        chains, size = weights_MD.shape
        return torch.full((chains,), self.step_size or self.factor / size**self.power, dtype=torch.float64)


@dataclass(frozen=True)
class RandomWalk(Metropolis, Sampler):
    """Random-walk Metropolis."""

    takes_gradient = False
    factor, power = 2.38, 1 / 2

    def propose(
        self, density: Density, state: State, step_M1: Tensor, *, mass_MD: Tensor | None
    ) -> tuple[Tensor, Value, Tensor, Faults]:
        noise_MD = normals(state.seeds, Purpose.RANDOM_WALK, state.step, like=state.weights_MD)
        proposal_MD = state.weights_MD + step_M1 * displaced(noise_MD, mass_MD)
        value, faults = evaluated(density, proposal_MD, known_MD=state.weights_MD, gradient=False)
        return proposal_MD, value, value.log_density - state.log_density_M, faults


@dataclass(frozen=True)
class MALA(Metropolis, Sampler):
    """The Metropolis-adjusted Langevin algorithm."""

    target_acceptance: float = 0.574

    takes_gradient = True
    factor, power = 1.65, 1 / 6

    def propose(
        self, density: Density, state: State, step_M1: Tensor, *, mass_MD: Tensor | None
    ) -> tuple[Tensor, Value, Tensor, Faults]:
        noise_MD = normals(state.seeds, Purpose.LANGEVIN, state.step, like=state.weights_MD)
        slope_MD = whitened(state.gradient_MD, mass_MD)  # Rᵀ g, the gradient in coordinates in which C is I
        proposal_MD = state.weights_MD + step_M1 * displaced(noise_MD + step_M1 / 2 * slope_MD, mass_MD)
        value, faults = evaluated(density, proposal_MD, known_MD=state.weights_MD)
        # minus the noise of the reverse move, R⁻¹ (w' + (ε²/2) C g' − w) / ε, computed without a difference of weights
        back_MD = noise_MD + step_M1 / 2 * (slope_MD + whitened(value.gradient, mass_MD))
        log_forward_M, log_back_M = (-0.5 * n.double().square().sum(-1) for n in (noise_MD, back_MD))
        log_ratio_M = (value.log_density - state.log_density_M) + (log_back_M - log_forward_M)
        return proposal_MD, value, log_ratio_M, faults
