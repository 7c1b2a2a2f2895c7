r"""Metropolis-Hastings on all the data: a random walk, and the Langevin proposal (MALA).

Random walk (Metropolis et al. 1953):     w' = w + ε z,                          z ~ N(0, I)
MALA (Roberts and Tweedie 1996):          w' = w + (ε²/2) ∇log p(w) + ε z

Accepted with probability min(1, p(w') q(w | w') / (p(w) q(w' | w))). The random walk is symmetric, and for
MALA q is the normal density around w + (ε²/2) ∇log p(w). MALA is one leapfrog step of HMC with step size ε, and SGLD
with a Metropolis correction. The scale ε is given, or adapted to a target acceptance during burn-in for each chain:
0.234 and 0.574 are optimal in high dimension (Roberts and Rosenthal 2001).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchbayes.checks import given
from torchbayes.density.dynamics import Density, Value
from torchbayes.methods.checks import check_positive, check_share
from torchbayes.methods.faults import Faults, evaluated
from torchbayes.methods.mcmc.adaptation import StepSize
from torchbayes.methods.noise import Purpose, normals
from torchbayes.methods.sampler import Info, Sampler, begin, diverged, metropolis, moved


@dataclass(frozen=True)
class State:
    """Where the chains are, and their step sizes.

    Attributes:
        weights_MD: weights.
        gradient_MD: gradient of the log density there; without columns, (M, 0), for a random walk, which needs none.
        log_density_M: log density there, float64.
        log_likelihood_M: log likelihood there, float64.
        step_size: step sizes.
        seeds: one seed per chain.
        step: proposals made.
    """

    weights_MD: Tensor
    gradient_MD: Tensor
    log_density_M: Tensor
    log_likelihood_M: Tensor
    step_size: StepSize
    seeds: tuple[int, ...]
    step: int


@dataclass(frozen=True)
class RandomWalk(Sampler):
    """Random-walk Metropolis.

    Attributes:
        step_size: ε; None adapts it during burn-in, from 2.38/√D.
        target_acceptance: acceptance rate that ε is adapted to.
    """

    step_size: float | None = None
    target_acceptance: float = 0.234

    def __post_init__(self) -> None:
        Sampler.__post_init__(self)
        _check(self)

    def init(
        self,
        density: Density,
        weights_MD: Tensor,
        buffers: Any = None,
        *,
        seeds: Sequence[int],
        steps_per_epoch: int = 1,
    ) -> State:
        """Return the state before the first proposal: see `Sampler.init`."""
        del buffers, steps_per_epoch
        state = _start(density, weights_MD, seeds, first=self.step_size or 2.38 / weights_MD.shape[-1] ** 0.5)
        return replace(state, gradient_MD=state.weights_MD[:, :0].clone())

    def step(self, density: Density, state: State, batch: Any = None, *, donate: bool = False) -> tuple[State, Info]:
        """Return every chain one proposal on, and what was seen: see `Sampler.step`."""
        del batch, donate
        noise_MD = normals(state.seeds, Purpose.RANDOM_WALK, state.step, like=state.weights_MD)
        proposal_MD = state.weights_MD + _column(state.step_size.step_size_M, noise_MD) * noise_MD
        value, faults = evaluated(density, proposal_MD, known_MD=state.weights_MD, gradient=False)
        log_ratio_M = value.log_density - state.log_density_M
        return _decide(self, state, proposal_MD, value=value, log_ratio_M=log_ratio_M, faults=faults)


@dataclass(frozen=True)
class MALA(Sampler):
    """The Metropolis-adjusted Langevin algorithm.

    Attributes:
        step_size: ε; None adapts it during burn-in, from 1.65/D^(1/6).
        target_acceptance: acceptance rate that ε is adapted to.
    """

    step_size: float | None = None
    target_acceptance: float = 0.574

    def __post_init__(self) -> None:
        Sampler.__post_init__(self)
        _check(self)

    def init(
        self,
        density: Density,
        weights_MD: Tensor,
        buffers: Any = None,
        *,
        seeds: Sequence[int],
        steps_per_epoch: int = 1,
    ) -> State:
        """Return the state before the first proposal: see `Sampler.init`."""
        del buffers, steps_per_epoch
        return _start(density, weights_MD, seeds, first=self.step_size or 1.65 / weights_MD.shape[-1] ** (1 / 6))

    def step(self, density: Density, state: State, batch: Any = None, *, donate: bool = False) -> tuple[State, Info]:
        """Return every chain one proposal on, and what was seen: see `Sampler.step`."""
        del batch, donate
        noise_MD = normals(state.seeds, Purpose.LANGEVIN, state.step, like=state.weights_MD)
        step_M1 = _column(state.step_size.step_size_M, noise_MD)
        proposal_MD = state.weights_MD + step_M1**2 / 2 * state.gradient_MD + step_M1 * noise_MD
        value, faults = evaluated(density, proposal_MD, known_MD=state.weights_MD)
        # (w − w' − ε²/2 g') / ε, the noise of the reverse move, from that of the forward move: no difference of weights
        back_MD = noise_MD + step_M1 / 2 * (state.gradient_MD + value.gradient)
        log_forward_M, log_back_M = (-0.5 * n.double().square().sum(-1) for n in (noise_MD, back_MD))
        log_ratio_M = (value.log_density - state.log_density_M) + (log_back_M - log_forward_M)
        return _decide(self, state, proposal_MD, value=value, log_ratio_M=log_ratio_M, faults=faults)


def _check(method: RandomWalk | MALA) -> None:
    """Check the settings that both have.

    Raises:
        ValueError: if one is out of range.
    """
    check_share(target_acceptance=method.target_acceptance)
    check_positive(target_acceptance=method.target_acceptance)
    check_positive(**given(step_size=method.step_size))
    if method.step_size is None and method.burn_in == 0:
        raise ValueError("a step size is adapted during burn-in, and `burn_in` is 0. Give a `step_size`.")


def _column(step_size_M: Tensor, like_MD: Tensor) -> Tensor:
    return step_size_M.to(like_MD).unsqueeze(-1)


def _start(density: Density, weights_MD: Tensor, seeds: Sequence[int], *, first: float) -> State:
    weights_MD = weights_MD.detach().clone()
    value = begin(density, weights_MD)
    step_size = StepSize.at(torch.full((len(weights_MD),), first, dtype=torch.float64))
    return State(weights_MD, value.gradient, value.log_density, value.log_likelihood, step_size, tuple(seeds), 0)


def _decide(
    method: RandomWalk | MALA,
    state: State,
    proposal_MD: Tensor,
    *,
    value: Value,
    log_ratio_M: Tensor,
    faults: Faults,
) -> tuple[State, Info]:
    """Return the state after accepting or rejecting, and the info of the step."""
    accepted_M, probability_M = metropolis(log_ratio_M, state.seeds, state.step)
    step_size, step = state.step_size, state.step + 1
    if method.step_size is None and step <= method.burn_in:
        step_size = step_size.adapted(probability_M, method.target_acceptance)
        step_size = step_size.settled() if step == method.burn_in else step_size
    new = moved(state, accepted_M, proposal_MD, value=value, step_size=step_size)
    ones_M = torch.ones_like(log_ratio_M)
    info = Info(
        new.log_density_M,
        new.log_likelihood_M,
        None,
        probability_M,
        state.step_size.step_size_M,
        ones_M,
        *diverged(-log_ratio_M),
        faults,
    )
    return new, info
