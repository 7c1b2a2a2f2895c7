"""What chains with noise in the velocity share: state, settings, and the step without rejections."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchbayes.density.dynamics import Density
from torchbayes.methods import sampler
from torchbayes.methods.faults import Watched
from torchbayes.methods.langevin.alba import Rule, refused, tuned
from torchbayes.methods.langevin.integrators import Integrator, Moving, gradients_of, integrated
from torchbayes.methods.langevin.kinetics import Kinetics
from torchbayes.methods.mcmc.adaptation import RunningCovariance, RunningVariance, StepSize
from torchbayes.methods.mcmc.mass import Learning, Mass, first_mass, first_spread
from torchbayes.methods.noise import normals
from torchbayes.methods.sampler import begin, choose, moved
from torchbayes.randomness.seeds import Purpose


@dataclass(frozen=True)
class State:
    """Where the chains are, and what they have learned; densities are float64."""

    weights_MD: Tensor
    gradient_MD: Tensor  # of the log density
    log_density_M: Tensor
    log_likelihood_M: Tensor
    velocity_MD: Tensor  # in coordinates in which the mass is the identity
    step_size: StepSize  # ε
    trajectory_M: Tensor  # L, float64
    rule: Rule  # of ε in burn-in
    spread: RunningVariance | RunningCovariance  # of the weights in the present window of burn-in
    inverse_mass_MD: Tensor  # M⁻¹: its diagonal, or Cholesky factors (M, D, D), see `velocity`
    path: Mapping[str, Tensor]  # weights of the end of burn-in, from which L is found; else empty
    refused_M: Tensor  # steps refused after burn-in, float64
    error_M: Tensor  # Σ E²/D over the other steps after burn-in, float64
    seeds: tuple[int, ...]
    step: int


@dataclass(frozen=True)
class Info(sampler.Info):
    """The report of a step without rejections: `acceptance_M` is 0 where it was refused, else 1."""

    energy_error_M: Tensor | None = None  # E²/D; its mean bounds the bias of the step size


@dataclass(frozen=True)
class Walk(Learning, ABC):
    """Settings and steps of these chains; a base beside `Sampler`.

    Attributes:
        step_size: ε, the path (of underdamped dynamics: the time) of a step, in units of √mass times weights; None
            finds it in burn-in, for each chain, by the energy error.
        trajectory: L, on which the velocity is forgotten, in the units of ε; None finds it in the last third of
            burn-in.
        mass: unit; "prior": 1/σ² of each weight; "diagonal": the inverse variance of each weight in burn-in; "layer":
            one for each tensor; "dense": the inverse covariance in burn-in, for up to 2,000 correlated weights.
        integrator: minimal_norm, two gradients a step; leapfrog, one gradient and less than half the step.
        energy_error: target of the variance of a step's energy error over D.
    """

    step_size: float | None = None
    trajectory: float | None = None
    mass: Mass = "diagonal"
    integrator: Integrator = "minimal_norm"
    energy_error: float = 5e-4

    kinetics: ClassVar[Kinetics]

    def begin(
        self, density: Density, weights_MD: Tensor, buffers: Any, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> State:
        """Return where chains start, as `Sampler.begin` does."""
        chains, size = weights_MD.shape
        if size < self.kinetics.least:
            raise ValueError(
                f"{type(self).__name__} moves at a constant speed, and only turns, for which it needs at least "
                f"{self.kinetics.least} random weights; got {size}. Take NUTS or HMC."
            )
        mass_MD = first_mass(self, density, weights_MD)
        weights_MD = weights_MD.detach().clone()
        value, scale = begin(density, weights_MD), self.kinetics.scale(size)
        numbers_M = torch.ones(chains, dtype=torch.float64)
        step_size_M = numbers_M * (self.step_size or scale / 5)
        return State(
            weights_MD,
            value.gradient,
            value.log_density,
            value.log_likelihood,
            self.fresh(weights_MD, seeds, 0),
            StepSize.at(step_size_M),
            numbers_M * (self.trajectory or scale),
            Rule.empty(numbers_M),
            first_spread(self, weights_MD),
            mass_MD,
            {},
            torch.zeros_like(value.log_density),
            torch.zeros_like(value.log_density),
            tuple(seeds),
            0,
        )

    def walked(self, density: Density, state: State) -> tuple[State, Info, Tensor]:
        """Return every chain one step on, without rejections, the report of the step, and energy errors.

        Refreshment for ε/2, a step of the integrator, refreshment for ε/2.
        """
        step_size_M, watched = state.step_size.step_size_M, Watched(density, state.weights_MD)
        # both go to the device at once
        time_M, length_M = torch.stack([step_size_M, state.trajectory_M]).to(state.weights_MD.device)
        velocity_MD = self._refreshed(state, state.velocity_MD, 0, time_M=time_M / 2, length_M=length_M)
        start = Moving(state.weights_MD, velocity_MD, state.gradient_MD)
        mass_MD = None if self.mass == "unit" else state.inverse_mass_MD
        end = integrated(
            self.kinetics,
            watched,
            start,
            step_size_LM=time_M.unsqueeze(0),
            integrator=self.integrator,
            inverse_mass_MD=mass_MD,
        )
        error_M = end.gain_M + (state.log_density_M - end.value.log_density)
        size = state.weights_MD.shape[1]
        lost_M = refused(error_M, size=size, target=self.energy_error) | ~torch.isfinite(end.value.gradient.sum(-1))
        new = moved(state, ~lost_M, end.weights_MD, value=end.value)
        velocity_MD = self._refreshed(state, end.velocity_MD, 1, time_M=time_M / 2, length_M=length_M)
        if new.weights_MD is not end.weights_MD:  # a chain stayed; asking the device again would be another wait
            fresh_MD = self.fresh(state.weights_MD, state.seeds, state.step + 1)
            velocity_MD = choose(lost_M, fresh_MD, velocity_MD)
        new = replace(new, velocity_MD=velocity_MD)
        info = Info(
            new.log_density_M,
            new.log_likelihood_M,
            None,
            (~lost_M).double(),
            step_size_M,
            torch.full_like(error_M, gradients_of(self.integrator)),
            lost_M.double(),
            (~torch.isfinite(error_M)).double(),
            watched.faults,
            energy_error_M=torch.where(lost_M, 0.0, error_M.square() / size),
        )
        return new, info, error_M

    def tuned(self, density: Density, state: State, error_M: Tensor, *, steps: int, factor: float) -> State:
        """Return the state after a step of burn-in, whose first `steps` steps are without rejections."""
        return tuned(self, density, state, error_M=error_M, steps=steps, factor=factor)

    def fresh(self, like_MD: Tensor, seeds: Sequence[int], number: int) -> Tensor:
        """Return velocities of the stationary law; the number is that of the step, from 1, or 0 for the start."""
        return self.kinetics.fresh(normals(seeds, Purpose.VELOCITY, number, like=like_MD))

    def _refreshed(self, state: State, velocity_MD: Tensor, half: int, *, time_M: Tensor, length_M: Tensor) -> Tensor:
        """Return velocities after a refreshment; `half` is 0 before and 1 after the integrator."""
        noise_MD = normals(state.seeds, Purpose.REFRESHMENT, 2 * state.step + half, like=velocity_MD)
        return self.kinetics.refreshed(velocity_MD, noise_MD, time_M, length_M=length_M)


def counted(state: State, info: Info) -> State:
    """Return the state with the sums over steps after burn-in."""
    assert info.energy_error_M is not None, "a step without rejections reports its energy error"
    return replace(state, refused_M=state.refused_M + info.divergent_M, error_M=state.error_M + info.energy_error_M)
