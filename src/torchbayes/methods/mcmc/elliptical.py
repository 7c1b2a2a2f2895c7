"""Elliptical slice sampling (Murray, Adams and MacKay 2010): no gradients, and nothing to tune.

The target is a normal prior times a likelihood, p(w) ∝ N(w; m, S) exp(ℓ(w)). A step draws a second point ν ~ N(0, S)
and a height, and moves along the ellipse through both to a point above that height:

    log y = ℓ(w) + log u,                       u ~ U(0, 1)
    w'(φ) = m + (w − m) cos φ + ν sin φ,        φ ~ U(φ₋, φ₊),   at first φ₊ − φ₋ = 2π

If ℓ(w') > log y it is the next state. Otherwise φ replaces φ₋ or φ₊, whichever has its sign, and a new angle is drawn.
The interval shrinks to φ = 0, where the chain is, so a step always ends, and leaves the target invariant. It mixes
well where the prior is informative or the weights are few, as in a subspace. Where the likelihood is much narrower
than the prior along many directions, steps become short.

ℓ is the likelihood, divided by the temperature. Other priors, and densities without a known prior, are sampled exactly
as well: N(m, S) is then a normal distribution of the same means and standard deviations, or of a given scale, and
ℓ(w) = log p(w) − log N(w; m, S) for the whole target (Nishihara, Murray and Adams 2014).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.density.dynamics import Density
from torchbayes.methods.faults import Faults, evaluated
from torchbayes.methods.mcmc.mass import known_prior
from torchbayes.methods.mcmc.slice_kernel import slice_along
from torchbayes.methods.noise import normals, uniforms
from torchbayes.methods.sampler import Info, Sampler, begin, choose
from torchbayes.model.model import Model
from torchbayes.model.priors import Normal
from torchbayes.model.priors.joint import Joint, like
from torchbayes.randomness.seeds import Purpose

# Most evaluations of a step, after which the chain stays where it is: each cuts the interval by a third on average,
# and 2π e^(−100/3) = 2e-14 is a rounding error.
_MOST = 100

_PLACE = ("weights_MD", "log_density_M", "log_likelihood_M", "level_M")  # fields of a state that move with a chain


@dataclass(frozen=True)
class State:
    """Where the chains are; densities are float64."""

    weights_MD: Tensor
    log_density_M: Tensor
    log_likelihood_M: Tensor
    level_M: Tensor  # ℓ at the weights
    seeds: tuple[int, ...]
    step: int


@dataclass(frozen=True)
class EllipticalSlice(Sampler):
    """Elliptical slice sampling on all the data.

    The log of a run has the angle |φ| of each step as `step_size`, and the number of evaluations, each a pass over the
    data without a gradient, as `gradients`.

    Attributes:
        scale: standard deviation, around the prior's means or 0, of the normal distribution N(m, S); None for the
            prior's own. Where the prior is normal this is the fastest choice. It is needed for densities without
            prior, and for priors of infinite variance.
    """

    scale: float | None = None

    def begin(
        self, density: Density, weights_MD: Tensor, buffers: Any, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> State:
        ellipse = _Ellipse.of(self, density, weights_MD)
        weights_MD = weights_MD.detach().clone()
        value = begin(density, weights_MD)
        level_M = ellipse.level(weights_MD, value.log_density, value.log_likelihood)
        return State(weights_MD, value.log_density, value.log_likelihood, level_M, tuple(seeds), 0)

    def move(self, density: Density, state: State, batch: Any, *, donate: bool = False) -> tuple[State, Info]:
        ellipse = _Ellipse.of(self, density, state.weights_MD)
        of_step = density, state, ellipse, ellipse.drawn(state), *_first(state)
        return _at_once(*of_step) or _in_turn(*of_step)


@dataclass(frozen=True)
class _Interval:
    """The intervals from which a step draws its angles, and the angles, each float64 (M,), on the CPU."""

    low_M: Tensor  # φ₋
    high_M: Tensor  # φ₊
    angle_M: Tensor  # φ

    def shrink(self, rows_R: Tensor, share_M: Tensor) -> None:
        """Cut the intervals of some chains at their angles, and draw new angles at shares of what remains, in place."""
        angle_R = self.angle_M[rows_R]
        self.low_M[rows_R] = torch.where(angle_R < 0, angle_R, self.low_M[rows_R])
        self.high_M[rows_R] = torch.where(angle_R < 0, self.high_M[rows_R], angle_R)
        self.angle_M[rows_R] = torch.lerp(self.low_M[rows_R], self.high_M[rows_R], share_M[rows_R])


@dataclass(frozen=True)
class _Ellipse:
    """N(m, S), from which the ellipses are made."""

    loc_D: Tensor  # m
    std_D: Tensor  # roots of the diagonal of S, float64
    joint: Joint | None = None  # the prior, where S is not diagonal
    factor: float | None = None  # of the log likelihood in ℓ; None where ℓ is the whole target over N(m, S)
    spread: float = 1.0  # √T, a factor on a draw of `joint`

    @classmethod
    def of(cls, method: EllipticalSlice, density: Density, weights_MD: Tensor) -> _Ellipse:
        """Return the ellipse of a target, made once for each model.

        Raises ValueError if no scale is given and the prior has none.
        """
        model: Any = getattr(density, "model", None)
        ellipses = {} if model is None else _ELLIPSES.setdefault(model, {})
        key = method.scale, weights_MD.device
        if key not in ellipses:
            ellipses[key] = cls._made(method, density, weights_MD)
        return ellipses[key]

    @classmethod
    def _made(cls, method: EllipticalSlice, density: Density, weights_MD: Tensor) -> _Ellipse:
        model: Any = getattr(density, "model", None)
        locs_D = torch.zeros(weights_MD.shape[1]) if model is None else model.prior.locs()
        locs_D = locs_D.to(weights_MD.device, torch.float64)
        if method.scale is not None:
            return cls(locs_D, torch.full_like(locs_D, method.scale))
        stds_D = known_prior(density, "an ellipse", advice="Give `scale`, about that of the weights.")
        assert model is not None, "only models have priors"
        stds_D, scales = stds_D.to(locs_D), model.scales(1, 1)
        if model.prior.joint is not None:
            return cls(locs_D, stds_D, model.prior.joint, scales.likelihood, scales.prior**-0.5)
        normal = all(isinstance(segment.prior, Normal) for segment in model.prior.segments)
        return cls(locs_D, stds_D, None, scales.likelihood if normal else None)

    def level(self, weights_MD: Tensor, log_density_M: Tensor, log_likelihood_M: Tensor) -> Tensor:
        """Return ℓ of each row, float64, up to a constant."""
        if self.factor is not None:
            return self.factor * log_likelihood_M.double()
        return log_density_M.double() + 0.5 * ((weights_MD - self.loc_D) / self.std_D).square().sum(-1)

    def drawn(self, state: State) -> Tensor:
        """Return ν ~ N(0, S) of each chain, (M, D)."""
        like_MD = state.weights_MD
        size = like_MD.shape[1] if self.joint is None else self.joint.covariance.noise_size
        like_MZ = like_MD.new_empty(len(like_MD), size)
        noise_MZ = normals(state.seeds, Purpose.SLICE_ELLIPSE, state.step, like=like_MZ)
        if self.joint is None:
            return noise_MZ * self.std_D.to(like_MD)
        return self.spread * like(self.joint, like_MD).covariance.sqrt_matvec(noise_MZ.unsqueeze(1)).squeeze(1)

    def at(self, weights_MD: Tensor, second_MD: Tensor, angle_M: Tensor) -> Tensor:
        """Return the points at angles on the ellipses through weights and second points."""
        loc_D = self.loc_D.to(weights_MD)
        cos_M1, sin_M1 = torch.stack((angle_M.cos(), angle_M.sin())).to(weights_MD).unsqueeze(-1)
        return loc_D + (weights_MD - loc_D) * cos_M1 + second_MD * sin_M1


_ELLIPSES: WeakKeyDictionary[Model, dict[tuple[float | None, torch.device], _Ellipse]] = WeakKeyDictionary()


def _first(state: State) -> tuple[Tensor, _Interval]:
    """Return the heights log y, float64 (M,) on the device of the chains, and the first intervals and angles."""
    level_M, angle_M = uniforms(state.seeds, Purpose.SLICE_LEVEL, state.step, count=2).unbind(1)
    angle_M = 2 * math.pi * angle_M
    height_M = state.level_M + torch.log1p(-level_M).to(state.level_M.device)
    return height_M, _Interval(angle_M - 2 * math.pi, angle_M.clone(), angle_M)


def _shares(state: State) -> Tensor:
    """Return where in its interval each later angle is drawn, (M, U)."""
    return uniforms(state.seeds, Purpose.SLICE_ANGLE, state.step, count=_MOST)


def _at_once(
    density: Density, state: State, ellipse: _Ellipse, second_MD: Tensor, height_M: Tensor, interval: _Interval
) -> tuple[State, Info] | None:
    """Return every chain one step on by a call of the kernel; None if it does not have this target."""
    if ellipse.factor is None or not isinstance(density, LogDensity):
        return None
    landed = slice_along(
        density,
        state.weights_MD,
        second_MD,
        location_D=ellipse.loc_D,
        height_M=height_M,
        angles_M3=torch.stack((interval.low_M, interval.high_M, interval.angle_M), dim=1),
        shares_MU=_shares(state),
        factor=ellipse.factor,
    )
    if landed is None:
        return None
    accepted_M, level_M = landed.found_M, ellipse.factor * landed.log_likelihood_M
    new_values = (landed.log_density_M, landed.log_likelihood_M, level_M)
    named_values = zip(_PLACE[1:], new_values, strict=True)
    moved = {name: torch.where(accepted_M, value_M, getattr(state, name)) for name, value_M in named_values}
    new = replace(state, weights_MD=landed.weights_MD, **moved, step=state.step + 1)
    moved_M, outside_M = accepted_M.double(), (landed.failures_M > 0).double()
    statistics = (moved_M, landed.angle_M.abs() * moved_M, landed.evaluations_M.double(), torch.zeros_like(moved_M))
    faults = Faults.none(state.weights_MD)
    return new, Info(new.log_density_M, new.log_likelihood_M, None, *statistics, outside_M, faults)


def _in_turn(
    density: Density, state: State, ellipse: _Ellipse, second_MD: Tensor, height_M: Tensor, interval: _Interval
) -> tuple[State, Info]:
    """Return every chain one step on, by one evaluation after the other of all chains that still search."""
    copies = {name: getattr(state, name).clone() for name in _PLACE}
    new, faults = replace(state, **copies, step=state.step + 1), Faults.none(state.weights_MD)
    evaluations_M, outside_M = torch.zeros(2, len(state.seeds), dtype=torch.float64)
    searching_R = torch.arange(len(state.seeds))
    for share_M in _shares(state).unbind(1):
        rows_R = searching_R.to(state.weights_MD.device)
        here_RD = state.weights_MD[rows_R]
        there_RD = ellipse.at(here_RD, second_MD[rows_R], interval.angle_M[searching_R])
        value, raised = evaluated(density, there_RD, known_MD=here_RD, gradient=False)
        level_R = ellipse.level(there_RD, value.log_density, value.log_likelihood)
        finite_R = torch.isfinite(level_R)  # because an infinite density would hold a chain for ever
        above_R = finite_R & (level_R > height_M[rows_R])
        accepted_R, inside_R = torch.stack((above_R, finite_R)).cpu()  # the only wait for the device in an evaluation
        if accepted_R.any():
            _move(new, rows_R, above_R, (there_RD, value.log_density, value.log_likelihood, level_R))
        evaluations_M[searching_R] += 1
        outside_M[searching_R[~inside_R]] = 1.0
        if raised.first:
            faults.raised_M[rows_R] |= raised.raised_M
            faults = faults._replace(first=faults.first or raised.first)
        searching_R = searching_R[~accepted_R]
        if not len(searching_R):
            break
        interval.shrink(searching_R, share_M)
    moved_M = torch.ones_like(evaluations_M).index_fill_(0, searching_R, 0.0)
    statistics = (moved_M, interval.angle_M.abs() * moved_M, evaluations_M, torch.zeros_like(moved_M), outside_M)
    return new, Info(new.log_density_M, new.log_likelihood_M, None, *statistics, faults)


def _move(new: State, on: Tensor, above_R: Tensor, candidates: Sequence[Tensor]) -> None:
    """Move those of some chains whose new point is above their height there, in place."""
    for values, new_values in zip((getattr(new, name) for name in _PLACE), candidates, strict=True):
        values.index_copy_(0, on, choose(above_R, new_values.to(values), values[on]))
