"""The Metropolis-adjusted microcanonical sampler, MAMS (Robnik, Cohn-Gordon and Seljak 2025).

An iteration draws a direction u uniform on the sphere, takes m steps of an integrator of microcanonical dynamics, and
accepts the end with probability min(1, e^−W), where

    W = Σ ΔK + log p(w) − log p(w')

is the energy error of the whole trajectory. That is exact: the steps are their own reverse once u changes its sign, and
e^−ΔK is the factor by which they change the volume of weights and directions. The number of steps has the mean μ = L/ε
whatever that is,

    m = max(1, ⌈U s⌉),     U ~ U(0, 1),     s = k (k + 1)/(2 (k + 1 − μ)),     k = ⌊2μ − 1⌋

so that no direction's period is a multiple of all trajectories. μ ≤ 1 gives one step.

Burn-in has two parts. In the first two thirds chains walk without rejections, while ALBA (`alba.py`) finds mass, ε and
L; then ε is adapted to `target_acceptance` by dual averaging, at that L.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from torchbayes.density.dynamics import Density, step_sizes
from torchbayes.methods.faults import Watched
from torchbayes.methods.langevin.integrators import Moving, gradients_of, integrated
from torchbayes.methods.langevin.kinetics import Isokinetic
from torchbayes.methods.langevin.walk import State, Walk
from torchbayes.methods.noise import uniforms
from torchbayes.methods.sampler import Info, Sampler, diverged, metropolis, moved
from torchbayes.randomness.seeds import Purpose

_FACTOR = 0.3  # a of the rule for L


@dataclass(frozen=True)
class MAMS(Walk, Sampler):
    """The Metropolis-adjusted microcanonical sampler: exact, with trajectories of constant speed.

    Attributes:
        trajectory: L, the mean path of an iteration, in the units of ε; None finds it in burn-in.
        target_acceptance: acceptance rate that ε is adapted to in the last third of burn-in.
        max_leapfrogs: bound on the steps of an iteration.
    """

    steps: int = 2500
    burn_in: int = 1500
    target_acceptance: float = 0.9
    max_leapfrogs: int = 1000

    kinetics = Isokinetic()

    @property
    def walking(self) -> int:
        """Steps of burn-in without rejections."""
        return 2 * self.burn_in // 3

    def move(self, density: Density, state: State, batch: Any, *, donate: bool = False) -> tuple[State, Info]:
        if state.step < self.walking:
            new, report, error_M = self.walked(density, state)
            info = replace(report, energy_error_M=None)
            return self.tuned(density, new, error_M, steps=self.walking, factor=_FACTOR), info
        new, info = self._proposed(density, state)
        if self.step_size is not None or new.step > self.burn_in:
            return new, info
        step_size = new.step_size.adapted(info.acceptance_M, self.target_acceptance)
        step_size = step_size.settled() if new.step == self.burn_in else step_size
        return replace(new, step_size=step_size), info

    def _proposed(self, density: Density, state: State) -> tuple[State, Info]:
        """Return every chain one trajectory on, and the report of it."""
        step_size_M, watched = state.step_size.step_size_M, Watched(density, state.weights_MD)
        uniform_M = uniforms(state.seeds, Purpose.TRAJECTORY, state.step)
        steps_M = numbers_of_steps(state.trajectory_M / step_size_M, uniform_M).clamp(max=self.max_leapfrogs)
        velocity_MD = self.fresh(state.weights_MD, state.seeds, state.step + 1)
        end = integrated(
            self.kinetics,
            watched,
            Moving(state.weights_MD, velocity_MD, state.gradient_MD),
            step_size_LM=step_sizes(step_size_M, steps_M, int(steps_M.max())),
            integrator=self.integrator,
            inverse_mass_MD=None if self.mass == "unit" else state.inverse_mass_MD,
        )
        error_M = end.gain_M + (state.log_density_M - end.value.log_density)
        accepted_M, probability_M = metropolis(-error_M, state.seeds, state.step)
        new = moved(state, accepted_M, end.weights_MD, value=end.value)
        gradients_M = gradients_of(self.integrator) * steps_M.double()
        info = Info(
            new.log_density_M,
            new.log_likelihood_M,
            None,
            probability_M,
            step_size_M,
            gradients_M,
            *diverged(error_M),
            watched.faults,
        )
        return new, info


def numbers_of_steps(mean_M: Tensor, uniform_M: Tensor) -> Tensor:
    """Return numbers of steps, int64 (M,), of given means where these are at least 1, by numbers uniform on [0, 1)."""
    whole_M = (2 * mean_M - 1).floor().clamp_min(0)
    most_M = whole_M * (whole_M + 1) / (2 * (whole_M + 1 - mean_M))
    # 1 − U is in (0, 1], so that no trajectory has no steps
    return ((1 - uniform_M) * most_M).ceil().clamp(min=1).nan_to_num(nan=1.0).long()
