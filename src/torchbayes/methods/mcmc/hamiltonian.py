"""What HMC and NUTS share: momenta, masses, first step sizes, and what burn-in teaches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol, get_args

import torch
from torch import Tensor

from torchbayes.checks import check_choice, given
from torchbayes.density.dynamics import Density, Value, whitened
from torchbayes.methods.checks import check_positive, check_share
from torchbayes.methods.faults import travelled
from torchbayes.methods.mcmc.adaptation import LEARNED, RunningCovariance, RunningVariance, StepSize, windows
from torchbayes.methods.noise import Purpose, normals
from torchbayes.methods.sampler import begin, choose

Mass = Literal["unit", "prior", "diagonal", "layer", "dense"]
LARGEST_DENSE: Final = 2000  # weights whose dense mass is estimated


class Hamiltonian(Protocol):
    """Settings that HMC and NUTS share."""

    @property
    def burn_in(self) -> int:
        """Steps that adapt."""
        ...

    @property
    def step_size(self) -> float | None:
        """ε; None adapts it."""
        ...

    @property
    def mass(self) -> Mass:
        """Unit, from the prior, or adapted."""
        ...

    @property
    def target_acceptance(self) -> float:
        """δ of the adaptation."""
        ...


@dataclass(frozen=True)
class State:
    """Where the chains are, and what they have learned.

    Attributes:
        weights_MD: weights.
        gradient_MD: gradient of the log density there.
        log_density_M: log density there, float64.
        log_likelihood_M: log likelihood there, float64.
        step_size: step sizes.
        spread: variances of the present window of burn-in, or covariances.
        inverse_mass_MD: M⁻¹: its diagonal, or the Cholesky factors (M, D, D) of a dense one: see `velocity`.
        length: τ before it is jittered; 0 where trajectories find their own.
        seeds: one seed per chain.
        step: iterations taken.
    """

    weights_MD: Tensor
    gradient_MD: Tensor
    log_density_M: Tensor
    log_likelihood_M: Tensor
    step_size: StepSize
    spread: RunningVariance | RunningCovariance
    inverse_mass_MD: Tensor
    length: float
    seeds: tuple[int, ...]
    step: int


def check(method: Hamiltonian) -> None:
    """Check the settings that all have.

    Raises:
        ValueError: if one is out of range.
    """
    check_share(target_acceptance=method.target_acceptance)
    check_positive(target_acceptance=method.target_acceptance)
    check_positive(**given(step_size=method.step_size))
    check_choice(get_args(Mass), mass=method.mass)
    if method.burn_in == 0 and (method.step_size is None or method.mass in LEARNED):
        raise ValueError("a step size or mass is adapted during burn-in, and `burn_in` is 0. Give a `step_size`.")


def start(
    method: Hamiltonian, density: Density, weights_MD: Tensor, *, seeds: Sequence[int], length: float = 0.0
) -> State:
    """Return the state before the first iteration; a step size that is not given is found by halving and doubling.

    Args:
        method: the settings.
        density: the target.
        weights_MD: where the chains start.
        seeds: one seed per chain.
        length: τ; 0 where trajectories determine their own.

    Returns:
        The state.

    Raises:
        ValueError: if the density is not finite at the start, or `mass="prior"` and the prior's spread is not known, or
            `mass="layer"` and there are no layers, or `mass="dense"` and there are more than 2,000 weights.
    """
    if method.mass == "layer" and not hasattr(density, "model"):
        raise ValueError("`mass='layer'` needs a network, whose tensors are the layers. Choose mass='diagonal'.")
    if method.mass == "dense":
        _check_size(weights_MD)
    weights_MD = weights_MD.detach().clone()
    value, inverse_mass_MD = begin(density, weights_MD), torch.ones_like(weights_MD)
    if method.mass == "dense":
        inverse_mass_MD = torch.diag_embed(inverse_mass_MD)
    elif method.mass == "prior":
        inverse_mass_MD *= known_prior(density, "`mass='prior'`").square().to(weights_MD)
    if method.step_size is None:
        first_M = first_step_size(density, weights_MD, value, inverse_mass_MD=inverse_mass_MD, seeds=seeds)
        first_M = first_M.clamp(max=length or math.inf)
    else:
        first_M = torch.full((len(weights_MD),), float(method.step_size), dtype=torch.float64)
    spread = _spread(method).empty(weights_MD)
    values = (value.gradient, value.log_density, value.log_likelihood)
    return State(weights_MD, *values, StepSize.at(first_M), spread, inverse_mass_MD, length, tuple(seeds), 0)


def _spread(method: Hamiltonian) -> type[RunningVariance] | type[RunningCovariance]:
    """Return what a mass is estimated from."""
    return RunningCovariance if method.mass == "dense" else RunningVariance


def _check_size(weights_MD: Tensor) -> None:
    """Check that a dense mass of the chains is not too large.

    Raises:
        ValueError: if it is.
    """
    chains, size = weights_MD.shape
    if size > LARGEST_DENSE:
        memory = 2 * chains * size**2 * weights_MD.element_size() / 1e9
        raise ValueError(
            f"`mass='dense'` takes at most {LARGEST_DENSE:,} weights; got {size:,}, for which the two matrices of each "
            f"of {chains} chains would take {memory:,.1f} GB. Choose mass='diagonal'."
        )


def momenta(state: State, inverse_mass_MD: Tensor | None) -> Tensor:
    """Return fresh momenta v ~ N(0, M) of an iteration; M is the identity if None."""
    return _coloured(normals(state.seeds, Purpose.MOMENTUM, state.step, like=state.weights_MD), inverse_mass_MD)


def _coloured(standard_MD: Tensor, inverse_mass_MD: Tensor | None) -> Tensor:
    """Return momenta that are N(0, M) from numbers that are N(0, I): M^½ z, and R⁻ᵀ z where M⁻¹ = R Rᵀ is dense."""
    if inverse_mass_MD is None:
        return standard_MD
    if inverse_mass_MD.ndim < 3:
        return standard_MD * inverse_mass_MD.rsqrt()
    solved = torch.linalg.solve_triangular(inverse_mass_MD.mT, standard_MD.unsqueeze(-1), upper=True)
    return solved.squeeze(-1)


def filled(length_M: Tensor, largest_M: Tensor, bound: int) -> tuple[Tensor, Tensor]:
    """Return the size and the least number of steps that cover trajectories.

        L = ⌈τ/ε⌉ steps of size τ/L, or at most `bound` steps of size ε

    Args:
        length_M: τ.
        largest_M: ε, the largest step.
        bound: most steps; trajectories that need more are cut short.

    Returns:
        Sizes, float64, and numbers, int64, at least 1, (M,).
    """
    steps_M = (length_M / largest_M - 1e-9).ceil().clamp(1, bound)
    return torch.minimum(length_M / steps_M, largest_M), steps_M.long()


def learned(method: Hamiltonian, density: Density, state: State, *, acceptance_M: Tensor) -> State:
    """Return the state after adaptation in burn-in: a new step size, and at the end of a window a new mass.

    Args:
        method: the settings.
        density: the target; its layout says what a layer is.
        state: the state after the iteration.
        acceptance_M: the iteration's probability of acceptance.

    Returns:
        The state; the same after burn-in.
    """
    if state.step > method.burn_in:
        return state
    step_size, spread, mass_MD = state.step_size, state.spread, state.inverse_mass_MD
    start, ends = windows(method.burn_in)
    if method.step_size is None:
        # steps longer than the trajectory act like one of its length; the bound is twice it so that the average can
        # reach it
        longest = 2 * state.length or math.inf
        step_size = step_size.adapted(acceptance_M, method.target_acceptance, longest=longest)
    if method.mass in LEARNED and state.step > start:
        spread = spread.collect(state.weights_MD)
        if state.step in ends:
            layers: Any = density.model.layout.slices.values() if method.mass == "layer" else ()  # type: ignore[attr-defined]
            found_MD, spread = spread.inverse_mass(tuple(layers)), spread.empty(state.weights_MD)
            scales_MD = found_MD if found_MD.ndim == 2 else found_MD.diagonal(dim1=-2, dim2=-1)
            mass_MD = choose((scales_MD > 0).all(-1), found_MD, mass_MD)  # a chain that has not moved keeps its mass
            if method.step_size is None:
                step_size = _searched(density, replace(state, inverse_mass_MD=mass_MD))
    if state.step == method.burn_in:
        step_size = step_size.settled()
    return replace(state, step_size=step_size, spread=spread, inverse_mass_MD=mass_MD)


def _searched(density: Density, state: State) -> StepSize:
    """Return step sizes found anew, as they must be after a change of mass: they are in other units."""
    value = Value(state.log_density_M, state.gradient_MD, state.log_likelihood_M)
    found_M = first_step_size(
        density,
        state.weights_MD,
        value,
        inverse_mass_MD=state.inverse_mass_MD,
        seeds=state.seeds,
        step=state.step,
    )
    return StepSize.at(found_M.clamp(max=state.length or math.inf))


def kinetic(momentum_MD: Tensor, inverse_mass_MD: Tensor | None) -> Tensor:
    """Return ½ vᵀ M⁻¹ v of each chain, float64 (M,); M is the identity if None."""
    if inverse_mass_MD is None:
        return 0.5 * torch.linalg.vector_norm(momentum_MD, dim=-1, dtype=torch.float64).square()
    if inverse_mass_MD.ndim == 3:
        return kinetic(whitened(momentum_MD, inverse_mass_MD), None)
    return 0.5 * (momentum_MD.double().square() * inverse_mass_MD).sum(-1)


def known_prior(density: Density, what: str) -> Tensor:
    """Return the prior standard deviation of every weight.

    Args:
        density: the target.
        what: what it is needed for, in words.

    Returns:
        Float64 tensor (D,).

    Raises:
        ValueError: if the target has no prior, or one of infinite or unknown spread.
    """
    stds_D = density.prior_stds() if hasattr(density, "prior_stds") else torch.tensor(math.inf)  # type: ignore[attr-defined]
    if not torch.isfinite(stds_D).all():
        raise ValueError(
            f"{what} is derived from the prior's standard deviation, which is infinite or not known here. "
            f"Give `trajectory`, or choose another mass."
        )
    return stds_D


def first_step_size(
    density: Density,
    weights_MD: Tensor,
    value: Value,
    *,
    inverse_mass_MD: Tensor,
    seeds: Sequence[int],
    step: int = 0,
) -> Tensor:
    """Return step sizes at which one leapfrog step is accepted about half the time (Hoffman and Gelman 2014, alg. 4).

    Args:
        density: the target.
        weights_MD: where the chains are.
        value: the density there.
        inverse_mass_MD: M⁻¹, as of `velocity`.
        seeds: seeds of the chains.
        step: iterations taken.

    Returns:
        Float64 tensor (M,).
    """
    momentum_MD = _coloured(normals(seeds, Purpose.FIRST_STEP, step, like=weights_MD), inverse_mass_MD)
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
        wanted_M = torch.where(easy_M, 1.0, -1.0).double()
        direction_M = torch.where(direction_M == 0, wanted_M, direction_M)
        searching_M &= wanted_M == direction_M
        if not searching_M.any():
            break
        step_size_M = torch.where(searching_M, step_size_M * 2.0**direction_M, step_size_M)
    return step_size_M
