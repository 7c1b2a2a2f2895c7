r"""The No-U-Turn sampler (Hoffman and Gelman 2014), multinomial, with the generalised criterion (Betancourt 2017).

A trajectory is doubled, forwards or backwards in time at random, until it turns back on itself or diverges; the next
weights are drawn from its points with probabilities ∝ exp(−H), a doubling at a time and in favour of the newer half.
Doubling j adds a subtree of 2^j leapfrog steps. With v₋, v₊ the momenta of its ends and ρ the sum of all its momenta
less (v₋ + v₊)/2, a subtree turns when v₋ᵀM⁻¹ρ ≤ 0 or v₊ᵀM⁻¹ρ ≤ 0: by the trapezoid rule M⁻¹ρ is the way from one end to
the other. Where two halves are joined, each of them with the next step of the other is asked too, as in Stan. Else a
doubling on a normal target could go from less than half a period to more than a whole one, and round and round.

Subtrees are built one step after the other, without recursion (Phan et al. 2019, Lao and Dillon 2020): where smaller
subtrees begin, momentum and ρ are kept in a slot, and a step whose number ends in k binary ones closes k subtrees.
Chains advance together, and the density is asked for those alone whose trees still grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchbayes.inference.guarded import Faults, travelled
from torchbayes.inference.hamiltonian import Mass, State, check, kinetic, learned, momenta, start
from torchbayes.inference.sampler import DIVERGENCE, Info, Sampler, choose, moved
from torchbayes.inference.settings import check_counts
from torchbayes.model.dynamics import Density, Value
from torchbayes.model.seeds import Purpose, generator


@dataclass(frozen=True)
class TreeInfo:
    """What an iteration reports, per chain.

    Attributes:
        step: what every sampler on all the data reports.
        saturated_M: 1.0 where the trajectory was still to grow when it had `max_doublings` doublings.
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
    """The No-U-Turn sampler on all the data: HMC that finds the length of its trajectories itself.

    Attributes:
        step_size: ε; None adapts it to `target_acceptance` during burn-in, for each chain by itself.
        mass: unit; "prior": 1/σ² of each weight; "diagonal": the inverse variance of each weight in burn-in; "layer":
            one for each tensor.
        target_acceptance: δ of the adaptation.
        max_doublings: bound on the doublings of a trajectory, which has at most 2^max_doublings − 1 leapfrog steps. The
            log says under `saturated` how often trajectories were cut short by it, which makes a chain slow, not wrong.
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
        """Return the state before the first iteration.

        Args:
            density: the target.
            weights_MD: where the chains start.
            buffers: not used; samplers run networks in evaluation mode.
            seeds: one seed per chain.
            steps_per_epoch: not used; a step sees all the data.

        Returns:
            The state, with a first step size found by halving and doubling if none is given.
        """
        del buffers, steps_per_epoch
        return start(self, density, weights_MD, seeds=seeds)

    def step(
        self, density: Density, state: State, batch: Any = None, *, donate: bool = False
    ) -> tuple[State, TreeInfo]:
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
        momentum_MD = momenta(state, state.inverse_mass_MD)
        energy_M = kinetic(momentum_MD, state.inverse_mass_MD) - state.log_density_M
        tree = _Trees(state, momentum_MD, energy_M, self.max_doublings)
        for doubling in range(self.max_doublings):
            if not tree.growing_M.any():
                break
            tree.double(density, doubling)
        everywhere_M = torch.ones_like(tree.growing_M)
        new = moved(state, everywhere_M, tree.weights_MD, value=tree.value)
        acceptance_M = tree.acceptance_M / tree.leapfrogs_M
        info = Info(
            new.log_density_M,
            new.log_likelihood_M,
            energy_M,
            acceptance_M,
            state.step_size.step_size_M,
            tree.leapfrogs_M,
            tree.divergent_M.double(),
            tree.outside_M.double(),
            tree.faults,
        )
        info = TreeInfo(info, tree.growing_M.double())  # neither turned nor diverged
        return learned(self, density, new, acceptance_M=acceptance_M), info


class _Trees:
    """The trajectories of one iteration, of all chains, and the points drawn from them so far."""

    def __init__(self, state: State, momentum_MD: Tensor, energy_M: Tensor, slots: int) -> None:
        self._state, self._energy_M = state, energy_M
        members = len(momentum_MD)
        gradient_MD = state.gradient_MD
        # the two ends, backwards and forwards in time, (2, M, D)
        self._weights_2MD = torch.stack([state.weights_MD] * 2)
        self._momentum_2MD = torch.stack([momentum_MD] * 2)
        self._gradient_2MD = torch.stack([gradient_MD] * 2)
        self._sum_MD = momentum_MD  # ρ of the trajectory
        self._log_weight_M = torch.zeros_like(energy_M)  # log Σ exp(H_0 − H) over its points
        self._slots = slots
        self.weights_MD = state.weights_MD
        self.value = Value(state.log_density_M, gradient_MD, state.log_likelihood_M)
        self.growing_M = torch.ones(members, dtype=torch.bool, device=momentum_MD.device)
        self.divergent_M = torch.zeros_like(self.growing_M)
        self.outside_M = torch.zeros_like(self.growing_M)
        self.faults = Faults.none(momentum_MD)
        self.leapfrogs_M = torch.zeros_like(energy_M)
        self.acceptance_M = torch.zeros_like(energy_M)

    def double(self, density: Density, doubling: int) -> None:
        """Add a subtree of 2^doubling leapfrog steps at a random end of every trajectory that still grows."""
        uniforms_MU = self._uniforms(doubling)
        forwards_M = uniforms_MU[:, 0] < 0.5
        subtree = _Subtree(self, forwards_M, self._slots)
        far_MD = choose(forwards_M, self._momentum_2MD[0], self._momentum_2MD[1])
        old = Half(far_MD, subtree.momentum_MD.clone(), self._sum_MD)
        for number in range(2**doubling):
            if not subtree.growing_M.any():
                break
            subtree.grow(density, number, uniforms_MU[:, 2 + number])
        # a subtree that turned or diverged within is left out, and its trajectory is over
        whole_M = subtree.growing_M
        taken_M = whole_M & (uniforms_MU[:, 1].log() < subtree.log_weight_M - self._log_weight_M)
        self.weights_MD = choose(taken_M, subtree.weights_MD, self.weights_MD)
        self.value = Value(*(choose(taken_M, n, o) for n, o in zip(subtree.value, self.value, strict=True)))
        self._log_weight_M = torch.where(
            whole_M, torch.logaddexp(self._log_weight_M, subtree.log_weight_M), self._log_weight_M
        )
        self._sum_MD = choose(whole_M, self._sum_MD + subtree.sum_MD, self._sum_MD)
        for side, here_M in enumerate((whole_M & ~forwards_M, whole_M & forwards_M)):
            self._weights_2MD[side] = choose(here_M, subtree.end_MD, self._weights_2MD[side])
            self._momentum_2MD[side] = choose(here_M, subtree.momentum_MD, self._momentum_2MD[side])
            self._gradient_2MD[side] = choose(here_M, subtree.gradient_MD, self._gradient_2MD[side])
        new = Half(subtree.first_MD, subtree.momentum_MD, subtree.sum_MD)
        self.growing_M = whole_M & ~joined_turn(old, new, inverse_mass_MD=self._state.inverse_mass_MD)

    def _uniforms(self, doubling: int) -> Tensor:
        """Return numbers for direction, choice of half, and choice within the new subtree, (M, 2 + 2^doubling)."""
        state = self._state
        rows = [
            torch.rand(2 + 2**doubling, generator=generator(Purpose.TREE, s, state.step, doubling), dtype=torch.float64)
            for s in state.seeds
        ]
        return torch.stack(rows).to(self._energy_M.device)

    def ends(self, forwards_M: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return weights, momentum and gradient of the end that is to grow, copies."""
        pairs = (self._weights_2MD, self._momentum_2MD, self._gradient_2MD)
        weights, momentum, gradient = (choose(forwards_M, pair[1], pair[0]) for pair in pairs)
        return weights, momentum, gradient

    def leap(self, density: Density, rows: Tensor, subtree: _Subtree) -> tuple[Value, Tensor]:
        """Return the density and H_0 − H where some chains' subtrees are after one more step."""
        state, mass_MD = self._state, self._state.inverse_mass_MD[rows]
        sign_M = torch.where(subtree.forwards_M[rows], 1.0, -1.0).cpu()
        phase, faults = travelled(
            density,
            subtree.end_MD[rows],
            subtree.momentum_MD[rows],
            gradient_MD=subtree.gradient_MD[rows],
            step_size_M=state.step_size.step_size_M[rows.cpu()] * sign_M,
            steps_M=torch.ones(len(rows), dtype=torch.long),
            inverse_mass_MD=mass_MD,
        )
        gain_M = self._energy_M[rows] + phase.value.log_density - kinetic(phase.momentum_MD, mass_MD)
        subtree.end_MD[rows], subtree.momentum_MD[rows] = phase.weights_MD, phase.momentum_MD
        subtree.gradient_MD[rows] = phase.value.gradient
        finite_M = torch.isfinite(gain_M)
        gain_M = torch.where(finite_M, gain_M, -torch.inf)
        self.leapfrogs_M[rows] += 1
        self.acceptance_M[rows] += gain_M.clamp(max=0.0).exp()
        self.divergent_M[rows] |= gain_M < -DIVERGENCE
        self.outside_M[rows] |= ~finite_M
        self.faults.raised_M[rows] |= faults.raised_M
        self.faults = self.faults._replace(first=self.faults.first or faults.first)
        return phase.value, gain_M


class _Subtree:
    """Subtrees that grow at one end of their trajectories, of all chains."""

    def __init__(self, trees: _Trees, forwards_M: Tensor, slots: int) -> None:
        self._trees, self.forwards_M = trees, forwards_M
        self.end_MD, self.momentum_MD, self.gradient_MD = trees.ends(forwards_M)
        members, size = self.end_MD.shape
        self.sum_MD = torch.zeros_like(self.end_MD)
        self.log_weight_M = torch.full_like(trees.leapfrogs_M, -torch.inf)
        self.growing_M = trees.growing_M.clone()
        self.weights_MD, self.value = self.end_MD.clone(), Value(*(part.clone() for part in trees.value))
        self._first_KMD = self.end_MD.new_empty(slots, members, size)  # momenta at the beginnings of smaller subtrees
        self._previous_KMD = self.end_MD.new_empty(slots, members, size)  # momenta one step before those
        self._before_KMD = self.end_MD.new_empty(slots, members, size)  # sums of all momenta before them

    @property
    def first_MD(self) -> Tensor:
        """Momenta after the first step."""
        return self._first_KMD[0]

    def grow(self, density: Density, number: int, uniform_M: Tensor) -> None:
        """Take leapfrog step `number` in every subtree that still grows."""
        rows = self.growing_M.nonzero().squeeze(-1)
        previous = self.momentum_MD[rows]
        value, gain_M = self._trees.leap(density, rows, self)
        log_weight_M = torch.logaddexp(self.log_weight_M[rows], gain_M)
        chosen = uniform_M[rows].log() < gain_M - log_weight_M
        self.log_weight_M[rows] = log_weight_M
        picked = rows[chosen]
        self.weights_MD[picked] = self.end_MD[picked]
        for kept, new in zip(self.value, value, strict=True):
            kept[picked] = new[chosen]
        momentum, last, before = self.momentum_MD[rows], previous, self.sum_MD[rows]
        slot = (number >> 1).bit_count()
        if number % 2 == 0:
            self._first_KMD[slot, rows], self._previous_KMD[slot, rows] = momentum, previous
            self._before_KMD[slot, rows] = before
        self.sum_MD[rows] = before + momentum
        turned = torch.zeros_like(chosen)
        closed = (~number & (number + 1)).bit_length() - 1  # ones at the end of the number: subtrees that end here
        mass_MD = self._trees._state.inverse_mass_MD[rows]
        right = Half(momentum, momentum, momentum)  # the half that begins one slot further on: at first, this step
        for k in range(slot, slot - closed, -1):
            first = self._first_KMD[k, rows]
            left = Half(first, last, before - self._before_KMD[k, rows])
            turned |= joined_turn(left, right, inverse_mass_MD=mass_MD)
            last, before = self._previous_KMD[k, rows], self._before_KMD[k, rows]
            right = Half(first, momentum, left.sum_MD + right.sum_MD)
        self.growing_M[rows] = ~turned & (gain_M >= -DIVERGENCE)


class Half(NamedTuple):
    """One of two subtrees that are joined.

    Attributes:
        first_MD: momenta at the end where it begins.
        last_MD: momenta at the other.
        sum_MD: the sum of all momenta.
    """

    first_MD: Tensor
    last_MD: Tensor
    sum_MD: Tensor


def joined_turn(left: Half, right: Half, *, inverse_mass_MD: Tensor) -> Tensor:
    """Return which subtrees turn back when they are joined, or either half with the step of the other next to it.

    Args:
        left: the half that was there.
        right: the half that begins where that ends.
        inverse_mass_MD: diagonal of M⁻¹.

    Returns:
        Bool (M,).
    """
    mass: dict[str, Tensor] = {"inverse_mass_MD": inverse_mass_MD}
    whole = turns(left.first_MD, right.last_MD, left.sum_MD + right.sum_MD, **mass)
    beyond = turns(left.first_MD, right.first_MD, left.sum_MD + right.first_MD, **mass)
    return whole | beyond | turns(left.last_MD, right.last_MD, left.last_MD + right.sum_MD, **mass)


def turns(first_MD: Tensor, last_MD: Tensor, sum_MD: Tensor, *, inverse_mass_MD: Tensor) -> Tensor:
    """Return which subtrees turn back: v₋ᵀM⁻¹ρ ≤ 0 or v₊ᵀM⁻¹ρ ≤ 0, with ρ the sum less (v₋ + v₊)/2.

    Args:
        first_MD: momenta at one end.
        last_MD: momenta at the other.
        sum_MD: the sum of all momenta, those included.
        inverse_mass_MD: diagonal of M⁻¹.

    Returns:
        Bool (M,).
    """
    velocity_MD = inverse_mass_MD * (sum_MD - (first_MD + last_MD) / 2)
    return ((first_MD * velocity_MD).sum(-1) <= 0) | ((last_MD * velocity_MD).sum(-1) <= 0)
