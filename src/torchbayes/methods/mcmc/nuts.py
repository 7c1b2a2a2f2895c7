"""The No-U-Turn sampler (Hoffman and Gelman 2014), multinomial, with the generalised criterion (Betancourt 2017).

A trajectory is doubled, forwards or backwards in time at random, until it turns back on itself or diverges. The next
weights are drawn from its points with probabilities ∝ exp(−H), one doubling at a time and in favour of the newer half.
Doubling j adds a subtree of 2^j leapfrog steps. With v₋, v₊ the momenta of its ends and ρ the sum of all its momenta
less (v₋ + v₊)/2, a subtree turns when v₋ᵀM⁻¹ρ ≤ 0 or v₊ᵀM⁻¹ρ ≤ 0: by the trapezoid rule M⁻¹ρ is the displacement from
one end to the other. Where two halves are joined, each of them extended by the next step of the other is checked too,
as in Stan. Otherwise a doubling on a normal target could go from less than half a period to more than a whole one
without ever turning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.density.dynamics import Density, Value
from torchbayes.methods.faults import Faults
from torchbayes.methods.mcmc.hamiltonian import State, coloured, kinetic, learned, standard, start
from torchbayes.methods.mcmc.mass import Learning, Mass
from torchbayes.methods.mcmc.tree_kernel import Grown, Growth, grow
from torchbayes.methods.mcmc.trees import Trees
from torchbayes.methods.sampler import DIVERGENCE, Info, Sampler, moved
from torchbayes.randomness.seeds import Purpose, streams


@dataclass(frozen=True)
class NUTS(Learning, Sampler):
    """The No-U-Turn sampler on all the data: HMC that chooses the length of its trajectories itself.

    Attributes:
        step_size: ε; None adapts it to `target_acceptance` during burn-in, for each chain separately.
        mass: unit; "prior": 1/σ² of each weight; "diagonal": the inverse variance of each weight in burn-in; "layer":
            one for each tensor; "dense": the inverse covariance in burn-in, for up to 2,000 correlated weights.
        target_acceptance: δ of the adaptation.
        max_doublings: bound on the doublings of a trajectory, which has at most 2^max_doublings − 1 leapfrog steps.
            The log reports under `saturated` how often it cut trajectories short, which makes a chain slow but not
            wrong.
    """

    step_size: float | None = None
    mass: Mass = "diagonal"
    target_acceptance: float = 0.8
    max_doublings: int = 10

    def begin(
        self, density: Density, weights_MD: Tensor, buffers: Any, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> State:
        return start(self, density, weights_MD, seeds=seeds)

    def move(self, density: Density, state: State, batch: Any, *, donate: bool = False) -> tuple[State, Info]:
        standard_MD, streams_M = standard(state), streams(Purpose.TREE, state.seeds, state.step)
        with_numbers = self, density, state, standard_MD, streams_M
        grown, energy_M, faults = _at_once(*with_numbers) or _by_doublings(*with_numbers)
        new = moved(state, torch.ones_like(grown.divergent_M), grown.weights_MD, value=grown.value)
        leapfrogs_M = grown.leapfrogs_M.double()
        acceptance_M = grown.acceptance_M / leapfrogs_M
        info = Info(
            new.log_density_M,
            new.log_likelihood_M,
            energy_M,
            acceptance_M,
            state.step_size.step_size_M,
            leapfrogs_M,
            grown.divergent_M.double(),
            grown.outside_M.double(),
            faults,
            grown.saturated_M.double(),
        )
        return learned(self, density, new, acceptance_M=acceptance_M), info


def _at_once(
    method: NUTS, density: Density, state: State, standard_MD: Tensor, streams_M: np.ndarray
) -> tuple[Grown, Tensor, Faults] | None:
    """Return the result of an iteration by a call of the kernel, energies at the start, and faults; None if it cannot.

    `standard_MD` are the numbers z ~ N(0, I) from which momenta are made, and `streams_M` the hashes that determine
    the uniform numbers of each chain.
    """
    if not isinstance(density, LogDensity):
        return None
    mass, kinetic_M = state.inverse_mass_MD, kinetic(standard_MD, None)
    growth = Growth(
        state.weights_MD,
        standard_MD,
        value=Value(state.log_density_M, state.gradient_MD, state.log_likelihood_M),
        kinetic_M=kinetic_M,
        factor=mass if mass.ndim == 3 else mass.sqrt(),
        step_size_M=state.step_size.step_size_M,
        streams_M=torch.from_numpy(streams_M.view(np.int64)),
        doublings=method.max_doublings,
        divergence=DIVERGENCE,
    )
    grown = grow(density, growth)
    return grown and (grown, kinetic_M - state.log_density_M, Faults.none(standard_MD))


def _by_doublings(
    method: NUTS, density: Density, state: State, standard_MD: Tensor, streams_M: np.ndarray
) -> tuple[Grown, Tensor, Faults]:
    """Return the same, by one leapfrog step after the other of all chains."""
    momentum_MD = coloured(standard_MD, state.inverse_mass_MD)
    energy_M = kinetic(momentum_MD, state.inverse_mass_MD) - state.log_density_M
    trees = Trees(state, momentum_MD, energy_M, streams_M=streams_M)
    for doubling in range(method.max_doublings):
        if not len(trees.growing.chain_L):
            break
        trees.double(density, doubling)
    saturated_M = trees.stop()
    statistics = (trees.leapfrogs_M, trees.acceptance_M, trees.divergent_M, trees.outside_M, saturated_M)
    return Grown(*trees.chosen, *statistics), energy_M, trees.faults
