"""What HMC and NUTS share: momenta, energies, first step sizes, and adaptation in burn-in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchbayes.density.dynamics import Density, Value, whitened
from torchbayes.methods.faults import travelled
from torchbayes.methods.mcmc import mass
from torchbayes.methods.mcmc.adaptation import RunningCovariance, RunningVariance, StepSize
from torchbayes.methods.mcmc.mass import Learning, first_mass, first_spread
from torchbayes.methods.noise import normals
from torchbayes.methods.sampler import begin
from torchbayes.randomness.seeds import Purpose


@dataclass(frozen=True)
class State:
    """Where the chains are, and what they have learned; densities are float64."""

    weights_MD: Tensor
    gradient_MD: Tensor
    log_density_M: Tensor
    log_likelihood_M: Tensor
    step_size: StepSize
    spread: RunningVariance | RunningCovariance  # of the weights in the present window of burn-in
    inverse_mass_MD: Tensor  # M⁻¹: its diagonal, or Cholesky factors (M, D, D), see `velocity`
    length: float  # τ without jitter; 0 where trajectories find their own
    seeds: tuple[int, ...]
    step: int


def start(
    method: Learning, density: Density, weights_MD: Tensor, *, seeds: Sequence[int], length: float = 0.0
) -> State:
    """Return the state before the first iteration; a step size that is not given is found by halving and doubling.

    `length` is τ, or 0 where trajectories determine their own. Raises ValueError if the density is not finite at the
    start, and where `mass.first_mass` does.
    """
    inverse_mass_MD = first_mass(method, density, weights_MD)
    weights_MD = weights_MD.detach().clone()
    value = begin(density, weights_MD)
    if method.step_size is None:
        first_M = first_step_size(density, weights_MD, value, inverse_mass_MD=inverse_mass_MD, seeds=seeds)
        first_M = first_M.clamp(max=length or math.inf)
    else:
        first_M = torch.full((len(weights_MD),), float(method.step_size), dtype=torch.float64)
    spread = first_spread(method, weights_MD)
    values = (value.gradient, value.log_density, value.log_likelihood)
    return State(weights_MD, *values, StepSize.at(first_M), spread, inverse_mass_MD, length, tuple(seeds), 0)


def standard(state: State) -> Tensor:
    """Return the numbers z ~ N(0, I), (M, D), from which an iteration's momenta are made."""
    return normals(state.seeds, Purpose.MOMENTUM, state.step, like=state.weights_MD)


def momenta(state: State, inverse_mass_MD: Tensor | None) -> Tensor:
    """Return fresh momenta v ~ N(0, M) of an iteration; M is the identity if None."""
    return coloured(standard(state), inverse_mass_MD)


def coloured(standard_MD: Tensor, inverse_mass_MD: Tensor | None) -> Tensor:
    """Return momenta N(0, M) from numbers that are N(0, I): M^½ z, and R⁻ᵀ z where M⁻¹ = R Rᵀ is dense."""
    if inverse_mass_MD is None:
        return standard_MD
    if inverse_mass_MD.ndim < 3:
        return standard_MD * inverse_mass_MD.rsqrt()
    solved = torch.linalg.solve_triangular(inverse_mass_MD.mT, standard_MD.unsqueeze(-1), upper=True)
    return solved.squeeze(-1)


def filled(length_M: Tensor, largest_M: Tensor, bound: int) -> tuple[Tensor, Tensor]:
    """Return the size, float64 (M,), and the least number, int64 (M,), of steps that cover trajectories of length τ.

        L = ⌈τ/ε⌉ steps of size τ/L, or at most `bound` steps of size ε

    ε is `largest_M`. Trajectories that need more than `bound` steps are cut short.
    """
    steps_M = (length_M / largest_M - 1e-9).ceil().clamp(1, bound)
    return torch.minimum(length_M / steps_M, largest_M), steps_M.long()


def learned(method: Learning, density: Density, state: State, *, acceptance_M: Tensor) -> State:
    """Return the state after adaptation in burn-in: see `mass.learned`.

    Steps longer than a trajectory of given length act like one of its length. The bound on them is twice the length,
    so that the average can reach it.
    """

    def searched(state: State) -> Tensor:
        value = Value(state.log_density_M, state.gradient_MD, state.log_likelihood_M)
        return first_step_size(
            density, state.weights_MD, value, inverse_mass_MD=state.inverse_mass_MD, seeds=state.seeds, step=state.step
        ).clamp(max=state.length or math.inf)

    longest = 2 * state.length or math.inf
    return mass.learned(method, density, state, acceptance_M=acceptance_M, first=searched, longest=longest)


def kinetic(momentum_MD: Tensor, inverse_mass_MD: Tensor | None) -> Tensor:
    """Return ½ vᵀ M⁻¹ v of each chain, float64 (M,); M is the identity if None."""
    if inverse_mass_MD is None:
        return 0.5 * torch.linalg.vector_norm(momentum_MD, dim=-1, dtype=torch.float64).square()
    if inverse_mass_MD.ndim == 3:
        return kinetic(whitened(momentum_MD, inverse_mass_MD), None)
    return 0.5 * (momentum_MD.double().square() * inverse_mass_MD).sum(-1)


def first_step_size(
    density: Density,
    weights_MD: Tensor,
    value: Value,
    *,
    inverse_mass_MD: Tensor,
    seeds: Sequence[int],
    step: int = 0,
) -> Tensor:
    """Return step sizes, float64 (M,), at which one leapfrog step is accepted about half the time.

    By algorithm 4 of Hoffman and Gelman (2014), from the density `value` at the weights.
    """
    momentum_MD = coloured(normals(seeds, Purpose.FIRST_STEP, step, like=weights_MD), inverse_mass_MD)
    before_M = value.log_density - kinetic(momentum_MD, inverse_mass_MD)
    step_size_M = torch.full((len(weights_MD),), 0.1, dtype=torch.float64)
    ones_M, direction_M = torch.ones(len(weights_MD), dtype=torch.long), torch.zeros_like(step_size_M)
    searching_M = torch.ones(len(weights_MD), dtype=torch.bool)
    for _ in range(60):
        end, _ = travelled(
            density,
            weights_MD,
            momentum_MD,
            gradient_MD=value.gradient,
            step_size_M=step_size_M,
            steps_M=ones_M,
            inverse_mass_MD=inverse_mass_MD,
        )
        ratio_M = end.value.log_density - kinetic(end.momentum_MD, inverse_mass_MD) - before_M
        easy_M = (ratio_M > math.log(0.5)).cpu()  # NaN counts as rejected
        sign_M = torch.where(easy_M, 1.0, -1.0).double()
        direction_M = torch.where(direction_M == 0, sign_M, direction_M)
        searching_M &= sign_M == direction_M
        if not searching_M.any():
            break
        step_size_M = torch.where(searching_M, step_size_M * 2.0**direction_M, step_size_M)
    return step_size_M
