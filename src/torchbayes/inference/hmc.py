r"""Full-batch Hamiltonian Monte Carlo (Duane et al. 1987, Neal 2011), as in Izmailov et al. (2021).

An iteration draws a momentum v ~ N(0, M), integrates the Hamiltonian H(w, v) = −log p(w, D) + ½ vᵀ M⁻¹ v by L leapfrog
steps of size ε, and accepts the end with probability min(1, exp(H(w, v) − H(w', v'))). Its length τ = L ε is by default

    τ = (π/2) σ √T,     L = ⌈τ / ε⌉

a quarter of the period of a direction that the prior alone decides, with prior standard deviation σ. Energies are
sums in float64. The step size is given, or found for each chain by dual averaging during burn-in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from torchbayes.inference.adaptation import Spread, StepSize, windows
from torchbayes.inference.noise import Purpose, normals, uniforms
from torchbayes.inference.sampler import DIVERGENCE, Info, Sampler, begin, choose, metropolis
from torchbayes.inference.settings import check_counts, check_positive, check_share
from torchbayes.model.dynamics import Density, Value

Mass = Literal["unit", "prior", "diagonal", "layer"]


@dataclass(frozen=True)
class State:
    """Where the chains are, and what they have learned.

    Attributes:
        weights_MD: weights.
        gradient_MD: gradient of the log density there.
        log_density_M: log density there, float64.
        log_likelihood_M: log likelihood there, float64.
        step_size: step sizes.
        spread: variances of the present window of burn-in.
        inverse_mass_MD: diagonal of M⁻¹.
        seeds: one seed per chain.
        length: τ.
        step: iterations taken.
    """

    weights_MD: Tensor
    gradient_MD: Tensor
    log_density_M: Tensor
    log_likelihood_M: Tensor
    step_size: StepSize
    spread: Spread
    inverse_mass_MD: Tensor
    seeds: tuple[int, ...]
    length: float
    step: int


@dataclass(frozen=True)
class HMC(Sampler):
    """Hamiltonian Monte Carlo on all the data.

    Attributes:
        step_size: ε; None adapts it to `target_acceptance` during burn-in, for each chain by itself.
        trajectory: τ, in units of the weights (of √mass times weights where the mass is not unit); None for
            (π/2) σ √T with the largest prior standard deviation σ. With a mass from the prior or adapted, σ is 1.
        jitter: each iteration's τ is multiplied by a number uniform in [1 − jitter, 1 + jitter], the same for no two
            chains: it breaks the periods of directions whose frequency is a multiple of 1/τ.
        mass: unit; "prior": 1/σ² of each weight; "diagonal": the inverse variance of each weight in burn-in; "layer":
            one for each tensor.
        target_acceptance: δ of the adaptation.
        max_leapfrogs: bound on L.
        accept_in_burn_in: accept whatever comes during burn-in, as Izmailov et al. do, unless its energy is not finite.
    """

    step_size: float | None = None
    trajectory: float | None = None
    jitter: float = 0.0
    mass: Mass = "unit"
    target_acceptance: float = 0.8
    max_leapfrogs: int = 100_000
    accept_in_burn_in: bool = False

    def __post_init__(self) -> None:
        Sampler.__post_init__(self)
        check_counts(max_leapfrogs=self.max_leapfrogs)
        check_share(jitter=self.jitter, target_acceptance=self.target_acceptance)
        check_positive(**{n: v for n in ("step_size", "trajectory") if (v := getattr(self, n)) is not None})
        if self.mass not in {"unit", "prior", "diagonal", "layer"}:
            raise ValueError(f"`mass` must be unit, prior, diagonal or layer; got {self.mass!r}.")
        if self.burn_in == 0 and (self.step_size is None or self.mass in {"diagonal", "layer"}):
            raise ValueError("a step size or mass is adapted during burn-in, and `burn_in` is 0. Give a `step_size`.")

    def init(
        self,
        density: Density,
        weights_MD: Tensor,
        buffers: Any = None,
        *,
        seeds: Sequence[int],
        steps_per_epoch: int = 1,
    ) -> State:
        """Return the state before the first iteration.

        Args:
            density: the target.
            weights_MD: where the chains start.
            buffers: not used; samplers run networks in evaluation mode.
            seeds: one seed per chain.
            steps_per_epoch: not used; a step sees all the data.

        Returns:
            The state, with a first step size found by halving and doubling if none is given.

        Raises:
            ValueError: if the density is not finite at the start, or the length of a trajectory is not known.
        """
        del buffers, steps_per_epoch
        weights_MD = weights_MD.detach().clone()
        value = begin(density, weights_MD)
        inverse_mass_MD, length = torch.ones_like(weights_MD), self.trajectory or math.pi / 2
        if self.mass == "prior" or (self.mass == "unit" and self.trajectory is None):
            stds_D = known_prior(density, self.mass)
            if self.mass == "prior":
                inverse_mass_MD = (stds_D.square().to(weights_MD) * inverse_mass_MD).contiguous()
            else:
                length *= float(stds_D.max())
        if self.step_size is None:
            first_M = first_step_size(density, weights_MD, value, inverse_mass_MD=inverse_mass_MD, seeds=seeds)
            first_M = first_M.clamp(max=length)
        else:
            first_M = torch.full((len(weights_MD),), float(self.step_size), dtype=torch.float64)
        return State(
            weights_MD,
            value.gradient,
            value.log_density,
            value.log_likelihood,
            StepSize.at(first_M),
            Spread.empty(weights_MD),
            inverse_mass_MD,
            tuple(seeds),
            length,
            0,
        )

    def step(self, density: Density, state: State, batch: Any = None, *, donate: bool = False) -> tuple[State, Info]:
        """Take one iteration of every chain.

        Args:
            density: the target.
            state: where the chains are.
            batch: not used; the density has all the data.
            donate: not used; every iteration makes new tensors.

        Returns:
            The new state, and what was seen.
        """
        del batch, donate
        step_size_M = state.step_size.step_size_M
        stretch_M = 1 + self.jitter * (2 * uniforms(state.seeds, Purpose.JITTER, state.step) - 1)
        length_M = state.length * stretch_M
        leapfrogs_M = (length_M / step_size_M - 1e-9).ceil().clamp(1, self.max_leapfrogs).long()
        momentum_MD = normals(state.seeds, Purpose.MOMENTUM, state.step, like=state.weights_MD)
        momentum_MD = momentum_MD * state.inverse_mass_MD.rsqrt()
        end = density.leapfrog(
            state.weights_MD,
            momentum_MD,
            gradient_MD=state.gradient_MD,
            step_size_M=step_size_M,
            steps_M=leapfrogs_M,
            inverse_mass_MD=None if self.mass == "unit" else state.inverse_mass_MD,
        )
        kinetic_M = kinetic(momentum_MD, state.inverse_mass_MD)
        # potential and kinetic differences are formed apart: both are small beside the energies
        error_M = (state.log_density_M - end.value.log_density) + (
            kinetic(end.momentum_MD, state.inverse_mass_MD) - kinetic_M
        )
        accepted_M, probability_M = metropolis(-error_M, state.seeds, state.step)
        if self.accept_in_burn_in and state.step < self.burn_in:
            accepted_M = torch.isfinite(error_M)
        new = self._moved(state, accepted_M, end.weights_MD, end.value)
        info = Info(
            new.log_density_M,
            new.log_likelihood_M,
            kinetic_M - state.log_density_M,
            probability_M,
            step_size_M,
            leapfrogs_M.double(),
            (~(error_M < DIVERGENCE)).double(),
        )
        groups = tuple(density.model.layout.slices.values()) if self.mass == "layer" else ()  # type: ignore[attr-defined]
        return self._learned(new, probability_M, groups), info

    def _moved(self, state: State, accepted_M: Tensor, weights_MD: Tensor, value: Value) -> State:
        return replace(
            state,
            weights_MD=choose(accepted_M, weights_MD, state.weights_MD),
            gradient_MD=choose(accepted_M, value.gradient, state.gradient_MD),
            log_density_M=choose(accepted_M, value.log_density, state.log_density_M),
            log_likelihood_M=choose(accepted_M, value.log_likelihood, state.log_likelihood_M),
            step=state.step + 1,
        )

    def _learned(self, state: State, acceptance_M: Tensor, groups: Sequence[slice]) -> State:
        """Return the state after what burn-in teaches: step size, and at the end of a window the mass."""
        if state.step > self.burn_in:
            return state
        step_size, spread, mass = state.step_size, state.spread, state.inverse_mass_MD
        if self.step_size is None:
            step_size = step_size.adapted(acceptance_M, self.target_acceptance)
        if self.mass in {"diagonal", "layer"}:
            ends = windows(self.burn_in)
            spread = spread.collect(state.weights_MD) if state.step > self.burn_in // 10 else spread
            if state.step in ends:
                mass, spread = spread.inverse_mass(groups), Spread.empty(state.weights_MD)
                step_size = step_size.restarted() if self.step_size is None else step_size
        if state.step == self.burn_in:
            step_size = step_size.settled()
        return replace(state, step_size=step_size, spread=spread, inverse_mass_MD=mass)


def kinetic(momentum_MD: Tensor, inverse_mass_MD: Tensor) -> Tensor:
    """Return ½ vᵀ M⁻¹ v of each chain, float64 (M,)."""
    return 0.5 * (momentum_MD.double().square() * inverse_mass_MD).sum(-1)


def known_prior(density: Density, mass: str) -> Tensor:
    """Return the prior standard deviation of every weight.

    Args:
        density: the target.
        mass: what it is wanted for.

    Returns:
        Float64 tensor (D,).

    Raises:
        ValueError: if the target has no prior, or one of infinite or unknown spread.
    """
    stds_D = density.prior_stds() if hasattr(density, "prior_stds") else torch.tensor(math.inf)  # type: ignore[attr-defined]
    if not torch.isfinite(stds_D).all():
        what = "`mass='prior'`" if mass == "prior" else "the length of a trajectory"
        raise ValueError(
            f"{what} is derived from the prior's standard deviation, which is infinite or not known here. "
            f"Give `trajectory`, or choose another mass."
        )
    return stds_D


def first_step_size(
    density: Density, weights_MD: Tensor, value: Value, *, inverse_mass_MD: Tensor, seeds: Sequence[int]
) -> Tensor:
    """Return step sizes at which one leapfrog step is accepted about half the time (Hoffman and Gelman 2014, alg. 4).

    Args:
        density: the target.
        weights_MD: where the chains are.
        value: the density there.
        inverse_mass_MD: diagonal of M⁻¹.
        seeds: seeds of the chains.

    Returns:
        Float64 tensor (M,).
    """
    momentum_MD = normals(seeds, Purpose.MOMENTUM, -1, like=weights_MD) * inverse_mass_MD.rsqrt()
    before_M = value.log_density - kinetic(momentum_MD, inverse_mass_MD)
    step_size_M = torch.full((len(weights_MD),), 0.1, dtype=torch.float64)
    ones_M, direction_M = torch.ones(len(weights_MD), dtype=torch.long), torch.zeros_like(step_size_M)
    searching_M = torch.ones(len(weights_MD), dtype=torch.bool)
    for _ in range(60):
        end = density.leapfrog(
            weights_MD,
            momentum_MD,
            gradient_MD=value.gradient,
            step_size_M=step_size_M,
            steps_M=ones_M,
            inverse_mass_MD=inverse_mass_MD,
        )
        ratio_M = end.value.log_density - kinetic(end.momentum_MD, inverse_mass_MD) - before_M
        easy_M = (ratio_M > math.log(0.5)).cpu()  # not a number is not easy
        wanted_M = torch.where(easy_M, 1.0, -1.0).double()
        direction_M = torch.where(direction_M == 0, wanted_M, direction_M)
        searching_M &= wanted_M == direction_M
        if not searching_M.any():
            break
        step_size_M = torch.where(searching_M, step_size_M * 2.0**direction_M, step_size_M)
    return step_size_M
