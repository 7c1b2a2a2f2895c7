r"""The No-U-Turn sampler (Hoffman and Gelman 2014), multinomial, with the generalised criterion (Betancourt 2017).

A trajectory is doubled, forwards or backwards in time at random, until it turns back on itself or diverges; the next
weights are drawn from its points with probabilities ∝ exp(−H), a doubling at a time and in favour of the newer half.
Doubling j adds a subtree of 2^j leapfrog steps. With v₋, v₊ the momenta of its ends and ρ the sum of all its momenta
less (v₋ + v₊)/2, a subtree turns when v₋ᵀM⁻¹ρ ≤ 0 or v₊ᵀM⁻¹ρ ≤ 0: by the trapezoid rule M⁻¹ρ is the displacement from
one end to the other. Where two halves are joined, each of them extended by the next step of the other is checked too,
as in Stan. Otherwise a doubling on a normal target could go from less than half a period to more than a whole one,
without ever turning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchbayes.density.dynamics import Density
from torchbayes.methods.checks import check_counts
from torchbayes.methods.mcmc.hamiltonian import State, kinetic, learned, momenta, start
from torchbayes.methods.mcmc.mass import Mass, check
from torchbayes.methods.mcmc.trees import Trees
from torchbayes.methods.sampler import Info, Sampler, moved


@dataclass(frozen=True)
class TreeInfo:
    """What an iteration reports, per chain.

    Attributes:
        step: what every sampler on all the data reports.
        saturated_M: 1.0 where the trajectory reached `max_doublings` doublings without turning.
    """

    step: Info
    saturated_M: Tensor

    def means(self) -> dict[str, Tensor]:
        """Return what is averaged over an epoch, by name, each (M,)."""
        return {**self.step.means(), "saturated": self.saturated_M}

    def now(self) -> dict[str, Any]:
        """Return what is true of the last step of an epoch."""
        return self.step.now()


@dataclass(frozen=True)
class NUTS(Sampler):
    """The No-U-Turn sampler on all the data: HMC that chooses the length of its trajectories itself.

    Attributes:
        step_size: ε; None adapts it to `target_acceptance` during burn-in, for each chain separately.
        mass: unit; "prior": 1/σ² of each weight; "diagonal": the inverse variance of each weight in burn-in; "layer":
            one for each tensor; "dense": the inverse covariance of all weights in burn-in, for correlated weights, of
            which there may be 2,000.
        target_acceptance: δ of the adaptation.
        max_doublings: bound on the doublings of a trajectory, which has at most 2^max_doublings − 1 leapfrog steps. The
            log reports under `saturated` how often trajectories were cut short by it, which makes a chain slow, not
            wrong.
    """

    step_size: float | None = None
    mass: Mass = "diagonal"
    target_acceptance: float = 0.8
    max_doublings: int = 10

    def __post_init__(self) -> None:
        Sampler.__post_init__(self)
        check(self)
        check_counts(max_doublings=self.max_doublings)

    def init(
        self,
        density: Density,
        weights_MD: Tensor,
        buffers: Any = None,
        *,
        seeds: Sequence[int],
        steps_per_epoch: int = 1,
    ) -> State:
        """Return the state before the first iteration: see `Sampler.init`.

        A first step size that is not given is found by halving and doubling.
        """
        del buffers, steps_per_epoch
        return start(self, density, weights_MD, seeds=seeds)

    def step(
        self, density: Density, state: State, batch: Any = None, *, donate: bool = False
    ) -> tuple[State, TreeInfo]:
        """Return every chain one iteration on, and what was seen: see `Sampler.step`."""
        del batch, donate
        momentum_MD = momenta(state, state.inverse_mass_MD)
        energy_M = kinetic(momentum_MD, state.inverse_mass_MD) - state.log_density_M
        trees = Trees(state, momentum_MD, energy_M)
        for doubling in range(self.max_doublings):
            if not len(trees.growing.chain_L):
                break
            trees.double(density, doubling)
        saturated_M = trees.stop()
        new = moved(state, torch.ones_like(trees.divergent_M), trees.chosen.weights_MD, value=trees.chosen.value)
        acceptance_M = trees.acceptance_M / trees.leapfrogs_M
        info = Info(
            new.log_density_M,
            new.log_likelihood_M,
            energy_M,
            acceptance_M,
            state.step_size.step_size_M,
            trees.leapfrogs_M,
            trees.divergent_M.double(),
            trees.outside_M.double(),
            trees.faults,
        )
        info = TreeInfo(info, saturated_M.double())
        return learned(self, density, new, acceptance_M=acceptance_M), info
