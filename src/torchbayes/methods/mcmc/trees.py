"""The trees of NUTS: trajectories that double until they turn, for many chains at once.

Subtrees are built step by step, without recursion (Phan et al. 2019, Lao and Dillon 2020): momentum and ρ at the
beginnings of smaller subtrees are kept on a stack, and a step whose number ends in k binary ones closes k subtrees.
Chains advance together, and the density is evaluated only for the L of M chains whose trees still grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchbayes.density.dynamics import Density, Value, velocity
from torchbayes.methods.faults import Faults, travelled
from torchbayes.methods.mcmc.hamiltonian import State, kinetic
from torchbayes.methods.noise import uniforms_of
from torchbayes.methods.sampler import DIVERGENCE, choose


class _Point(NamedTuple):
    """Where trajectories are in phase space, and the gradient of the log density there."""

    weights_LD: Tensor
    momentum_LD: Tensor
    gradient_LD: Tensor


class _Chosen(NamedTuple):
    """Points drawn from trajectories, and the density there."""

    weights_MD: Tensor
    value: Value

    def replaced(self, here_L: Tensor, new: _Chosen) -> _Chosen:
        """Return these points, with some rows replaced by the new ones."""
        value = Value(*(choose(here_L, n, o) for n, o in zip(new.value, self.value, strict=True)))
        return _Chosen(choose(here_L, new.weights_MD, self.weights_MD), value)


class _Beginning(NamedTuple):
    """The beginning of a nested subtree."""

    first_LD: Tensor  # momentum there
    previous_LD: Tensor  # momentum one step before
    before_LD: Tensor  # sum of all momenta before it


class _Rows:
    """Fields with a row for each of the L chains that still grow."""

    def keep(self, growing_L: Tensor) -> None:
        """Drop the chains that have stopped, so that no step has to select the others."""
        rows = _indices(growing_L)
        for name, values in vars(self).items():
            setattr(self, name, _select(values, rows))


def _indices(mask_L: Tensor) -> Tensor:
    """Return the indices of the rows at which a mask is true."""
    return mask_L.nonzero().squeeze(-1)


def _select(tree: Any, rows: Tensor) -> Any:
    """Return some rows of a tensor, or of all tensors in lists and named tuples."""
    if isinstance(tree, Tensor):
        return tree.index_select(0, rows.to(tree.device))
    selected = [_select(branch, rows) for branch in tree]
    return selected if isinstance(tree, list) else type(tree)(*selected)


@dataclass
class _Growing(_Rows):
    """The trajectories that still grow, and the points drawn from them so far."""

    chain_L: Tensor  # number of the chain
    inverse_mass_LD: Tensor
    energy_L: Tensor
    step_size_L: Tensor
    ends: list[_Point]  # backwards and forwards in time
    sum_LD: Tensor  # ρ
    log_weight_L: Tensor  # log Σ exp(H_0 − H) over the points
    chosen: _Chosen


@dataclass
class _Subtree(_Rows):
    """Subtrees that grow at one end of their trajectories."""

    place_L: Tensor  # position of its trajectory among those that grow
    chain_L: Tensor
    inverse_mass_LD: Tensor
    energy_L: Tensor
    step_size_L: Tensor  # negative where it goes back in time
    log_uniforms_LU: Tensor
    end: _Point
    sum_LD: Tensor
    log_weight_L: Tensor
    acceptance_L: Tensor
    chosen: _Chosen
    beginnings: list[_Beginning]  # beginnings of the unfinished subtrees within it, from the largest

    def leap(self, density: Density, number: int) -> tuple[Tensor, Faults]:
        """Take leapfrog step `number`; return H_0 − H, −∞ where it is not finite, and the exceptions raised."""
        previous_LD, before_LD = self.end.momentum_LD, self.sum_LD
        phase, faults = travelled(
            density,
            self.end.weights_LD,
            previous_LD,
            gradient_MD=self.end.gradient_LD,
            step_size_M=self.step_size_L,
            steps_M=torch.ones(len(self.chain_L), dtype=torch.long),
            inverse_mass_MD=self.inverse_mass_LD,
        )
        gain_L = self.energy_L + phase.value.log_density - kinetic(phase.momentum_MD, self.inverse_mass_LD)
        gain_L = gain_L.nan_to_num(-torch.inf, posinf=-torch.inf, neginf=-torch.inf)
        self.end = _Point(phase.weights_MD, phase.momentum_MD, phase.value.gradient)
        self.sum_LD = before_LD + phase.momentum_MD
        self.acceptance_L = self.acceptance_L + gain_L.clamp(max=0.0).exp()
        self.log_weight_L = torch.logaddexp(self.log_weight_L, gain_L)
        taken_L = self.log_uniforms_LU[:, number] < gain_L - self.log_weight_L
        self.chosen = self.chosen.replaced(taken_L, _Chosen(phase.weights_MD, phase.value))
        if number % 2 == 0:
            del self.beginnings[(number >> 1).bit_count() :]
            self.beginnings.append(_Beginning(phase.momentum_MD, previous_LD, before_LD))
        return gain_L, faults

    def turned(self, number: int) -> Tensor:
        """Return whether a subtree that ends with step `number` turns back, bool (L,)."""
        closed = (~number & (number + 1)).bit_length() - 1  # number of binary ones at its end
        momentum_LD = self.end.momentum_LD
        right = Half(momentum_LD, momentum_LD, momentum_LD)  # at first only this step
        last_LD = self.beginnings[-1].first_LD  # momentum of the step before
        before_LD = self.beginnings[-1].before_LD + last_LD
        pairs = []
        for beginning in self.beginnings[len(self.beginnings) - closed :][::-1]:
            left = Half(beginning.first_LD, last_LD, before_LD - beginning.before_LD)
            pairs.append((left, right))
            last_LD, before_LD = beginning.previous_LD, beginning.before_LD
            right = Half(left.first_MD, momentum_LD, left.sum_MD + right.sum_MD)
        return joined_turn(pairs, inverse_mass_MD=self.inverse_mass_LD)


class Trees:
    """The trajectories of one iteration, of all chains, and their statistics."""

    def __init__(self, state: State, momentum_MD: Tensor, energy_M: Tensor, *, streams_M: np.ndarray) -> None:
        self._streams_M = streams_M
        start = _Point(state.weights_MD, momentum_MD, state.gradient_MD)
        value = Value(state.log_density_M, state.gradient_MD, state.log_likelihood_M)
        nothing_M = torch.zeros_like(energy_M)
        self.chosen = _Chosen(state.weights_MD, value)  # points of the finished trajectories
        self.growing = _Growing(
            torch.arange(len(momentum_MD), device=momentum_MD.device),
            state.inverse_mass_MD,
            energy_M,
            state.step_size.step_size_M,
            [start, start],
            momentum_MD,
            nothing_M,
            self.chosen,
        )
        self.divergent_M = nothing_M > 0
        self.outside_M = self.divergent_M.clone()
        self.faults = Faults.none(momentum_MD)
        self.leapfrogs_M, self.acceptance_M = nothing_M.clone(), nothing_M.clone()

    def double(self, density: Density, doubling: int) -> None:
        """Add a subtree of 2^doubling leapfrog steps at a random end of every trajectory that still grows."""
        uniforms_LU = self._uniforms(doubling)
        forwards_L, log_uniform_L = uniforms_LU[:, 0] < 0.5, uniforms_LU[:, 1].log()
        subtree = self._new_subtrees(forwards_L, uniforms_LU[:, 2:].log())
        start_LD = subtree.end.momentum_LD
        for number in range(2**doubling):
            self._grow(subtree, density, number)
            if not len(subtree.chain_L):
                break
        else:
            self._count(subtree, slice(None), 2**doubling)
        # a subtree that turned or diverged within is discarded, and its trajectory is finished
        if len(subtree.chain_L) < len(start_LD):
            whole_L = torch.zeros_like(forwards_L).index_fill_(0, subtree.place_L, value=True)
            self._retain(whole_L)
            forwards_L, log_uniform_L, start_LD = forwards_L[whole_L], log_uniform_L[whole_L], start_LD[whole_L]
        if len(start_LD):
            self._join(subtree, forwards_L, log_uniform_L, start_LD)

    def stop(self) -> Tensor:
        """Finish the trajectories that still grow, with the points drawn from them.

        Return which these are, bool (M,).
        """
        growing_M = torch.zeros_like(self.divergent_M).index_fill_(0, self.growing.chain_L, value=True)
        self._retain(torch.zeros_like(self.growing.chain_L, dtype=torch.bool))
        return growing_M

    def _uniforms(self, doubling: int) -> Tensor:
        """Return numbers for direction, choice of half, and choice within the new subtree, (L, 2 + 2^doubling)."""
        streams_L = self._streams_M[self.growing.chain_L.tolist()]
        return uniforms_of(streams_L, doubling, count=2 + 2**doubling).to(self.growing.energy_L.device)

    def _new_subtrees(self, forwards_L: Tensor, log_uniforms_LU: Tensor) -> _Subtree:
        """Return the subtrees before their first step."""
        trees = self.growing
        nothing_L = torch.zeros_like(trees.energy_L)
        return _Subtree(
            torch.arange(len(forwards_L), device=forwards_L.device),
            trees.chain_L,
            trees.inverse_mass_LD,
            trees.energy_L,
            torch.where(forwards_L.to(trees.step_size_L.device), trees.step_size_L, -trees.step_size_L),
            log_uniforms_LU,
            _Point(*(choose(forwards_L, new, old) for old, new in zip(*trees.ends, strict=True))),
            torch.zeros_like(trees.sum_LD),
            nothing_L - torch.inf,
            nothing_L,
            trees.chosen,
            [],
        )

    def _grow(self, subtree: _Subtree, density: Density, number: int) -> None:
        """Take a leapfrog step in every subtree, and drop those that turn or diverge."""
        gain_L, faults = subtree.leap(density, number)
        growing_L = gain_L >= -DIVERGENCE
        if number % 2:
            growing_L &= ~subtree.turned(number)
        if faults.first:
            self.faults.raised_M[subtree.chain_L] |= faults.raised_M
            self.faults = self.faults._replace(first=self.faults.first or faults.first)
        if growing_L.all():
            return
        self.divergent_M[subtree.chain_L] = gain_L < -DIVERGENCE
        self.outside_M[subtree.chain_L] = gain_L == -torch.inf
        self._count(subtree, _indices(~growing_L), number + 1)
        subtree.keep(growing_L)

    def _count(self, subtree: _Subtree, rows: Tensor | slice, steps: int) -> None:
        """Add up the steps of finished subtrees, and their probabilities of acceptance."""
        chains = subtree.chain_L[rows]
        self.leapfrogs_M[chains] += steps
        self.acceptance_M[chains] += subtree.acceptance_L[rows]

    def _join(self, subtree: _Subtree, forwards_L: Tensor, log_uniform_L: Tensor, start_LD: Tensor) -> None:
        """Join complete subtrees to their trajectories, and finish those that turn."""
        trees, end = self.growing, subtree.end
        backwards, forwards = trees.ends
        far_LD = choose(forwards_L, backwards.momentum_LD, forwards.momentum_LD)
        old = Half(far_LD, start_LD, trees.sum_LD)
        new = Half(subtree.beginnings[0].first_LD, end.momentum_LD, subtree.sum_LD)
        taken_L = log_uniform_L < subtree.log_weight_L - trees.log_weight_L
        trees.chosen = trees.chosen.replaced(taken_L, subtree.chosen)
        trees.log_weight_L = torch.logaddexp(trees.log_weight_L, subtree.log_weight_L)
        trees.sum_LD = trees.sum_LD + subtree.sum_LD
        trees.ends = [
            _Point(*(choose(here_L, n, o) for n, o in zip(end, point, strict=True)))
            for here_L, point in ((~forwards_L, backwards), (forwards_L, forwards))
        ]
        turned_L = joined_turn([(old, new)], inverse_mass_MD=trees.inverse_mass_LD)
        if turned_L.any():
            self._retain(~turned_L)

    def _retain(self, growing_L: Tensor) -> None:
        """Finish the other trajectories with the points drawn from them."""
        trees, old, finished = self.growing, self.chosen, _indices(~growing_L)
        chains, (weights, value) = trees.chain_L[finished], _select(trees.chosen, finished)
        self.chosen = _Chosen(
            old.weights_MD.index_copy(0, chains, weights),
            Value(*(o.index_copy(0, chains, n) for n, o in zip(value, old.value, strict=True))),
        )
        trees.keep(growing_L)


class Half(NamedTuple):
    """One of two subtrees that are joined."""

    first_MD: Tensor  # momenta at the end where it begins
    last_MD: Tensor  # momenta at the other end
    sum_MD: Tensor  # sum of all momenta, both ends included


def joined_turn(pairs: Sequence[tuple[Half, Half]], *, inverse_mass_MD: Tensor) -> Tensor:
    """Return whether one of the pairs turns back when its halves are joined, bool (M,).

    A pair is the earlier half, and the one that begins where it ends. Either half, with the step of the other next to
    it, is checked too.
    """
    parts = [
        momenta
        for left, right in pairs
        for momenta in (
            (left.first_MD, right.last_MD, left.sum_MD + right.sum_MD),
            (left.first_MD, right.first_MD, left.sum_MD + right.first_MD),
            (left.last_MD, right.last_MD, left.last_MD + right.sum_MD),
        )
    ]
    first, last, total = (torch.stack(momenta) for momenta in zip(*parts, strict=True))
    return turns(first, last, total, inverse_mass_MD=inverse_mass_MD).any(0)


def turns(first_MD: Tensor, last_MD: Tensor, sum_MD: Tensor, *, inverse_mass_MD: Tensor) -> Tensor:
    """Return which subtrees turn back, bool (M,): v₋ᵀM⁻¹ρ ≤ 0 or v₊ᵀM⁻¹ρ ≤ 0, with ρ the sum less (v₋ + v₊)/2."""
    distance_MD = velocity(sum_MD - (first_MD + last_MD) / 2, inverse_mass_MD)
    return ((first_MD * distance_MD).sum(-1) <= 0) | ((last_MD * distance_MD).sum(-1) <= 0)
