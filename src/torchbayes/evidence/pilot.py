"""Moves at one temperature, and a pilot run: where to place temperatures, and how to move at each.

Moves are those of Hamiltonian Monte Carlo with a Metropolis test and fixed settings. Their random numbers depend on
(seed, number of the move) alone.

A few particles go from the prior to the posterior by sequential Monte Carlo (Del Moral, Doucet and Jasra 2006). The
next β is the one at which the conditional effective sample size (Zhou, Johansen and Aston 2016) of the increments
u_p = p(D|w_p)^{β' − β} is a given share of the particles,

    CESS = (Σ_p u_p)² / Σ_p u_p²

Particles are resampled in proportion to u, and moved. Step sizes are adapted to the particles' mean acceptance, and
masses are the inverse variances of the weights. Only the settings found in a pilot run enter an estimate.
Estimators use other random numbers, so with these settings fixed they stay unbiased.

The distance between neighbours, √log(P/CESS), adds up to the length Λ of the path: ∫ √Var_β[log p(D|w)] dβ for
small steps. Equally spaced temperatures are the best choice of K, and the variance of the log weights of annealed
importance sampling is then about Λ²/K where particles mix at once (Gelman and Meng 1998; Neal 2001, section 4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy.interpolate import PchipInterpolator
from torch import Tensor

from torchbayes.checks import as_numbers, check_counts, check_positive, is_whole, whole
from torchbayes.density.dynamics import Value, leapfrog
from torchbayes.evidence.path import Parts, Target
from torchbayes.methods.mcmc.hamiltonian import filled, kinetic
from torchbayes.methods.sampler import acceptance, choose
from torchbayes.native.process import undisturbed
from torchbayes.randomness.seeds import Purpose, generator, mix

PARTICLES = 64
_SHARE = 0.6  # of the particles: target of the conditional effective sample size
_MOVES = 6  # of every particle at every temperature
_ACCEPTANCE = 0.8  # target of the step sizes
_QUARTER = math.pi / 2  # of the period of a normal target whose variances are the inverse masses
_LONGEST = _QUARTER / 2  # longest step: a quarter of a period at once is accepted 71 % of the time at best, for N(0, 1)
_MOST = 20_000  # temperatures of a pilot run

Temperatures = int | Sequence[float] | Tensor


class Place(NamedTuple):
    """The weights of M particles, and prior and likelihood there."""

    weights_MD: Tensor
    parts: Parts


class Tuning(NamedTuple):
    """Settings of the moves at one temperature."""

    step_size: float  # ε, the largest leapfrog step
    inverse_mass_D: Tensor  # diagonal of M⁻¹: roughly the variances of the weights
    leapfrogs: int  # bound on the number of steps

    @property
    def steps(self) -> tuple[float, int]:
        """Size and number L of the steps of a move: L = ⌈π/2ε⌉ steps of size π/2L, or at most `leapfrogs` of size ε.

        Each particle's size is multiplied by a number uniform in [0.8, 1.2].
        """
        length, largest = torch.tensor([_QUARTER, self.step_size], dtype=torch.float64)
        size, number = filled(length, largest, self.leapfrogs)
        return float(size), int(number)


def move(target: Target, place: Place, beta: float, *, tuning: Tuning, seed: int, number: int) -> tuple[Place, Tensor]:
    """Move every particle once, leaving p_β invariant; return them, and their acceptance probabilities, float64 (M,).

    Step sizes do not depend on the particles, so the move is reversible with respect to p_β. `number` counts the
    moves of the run.
    """
    weights_MD, count, device = place.weights_MD, len(place.weights_MD), place.weights_MD.device
    inverse_mass_D = tuning.inverse_mass_D.to(weights_MD)
    source = generator(Purpose.MOVE_MOMENTUM, seed, number)
    momentum_MD = torch.randn(weights_MD.shape, generator=source, dtype=weights_MD.dtype)
    momentum_MD = momentum_MD.to(device) * inverse_mass_D.rsqrt()
    jitter_M, chance_M = (
        torch.rand(count, generator=generator(purpose, seed, number), dtype=torch.float64)
        for purpose in (Purpose.MOVE_JITTER, Purpose.MOVE_ACCEPT)
    )
    beta_1 = torch.tensor([beta], dtype=torch.float64, device=device)
    last = [place.parts]

    def density(at_MD: Tensor) -> Value:
        last[0] = target.parts(at_MD)  # the next temperature needs the two parts separately
        return last[0].at(beta_1)

    before, (step_size, steps) = place.parts.at(beta_1), tuning.steps
    end = leapfrog(
        density,
        weights_MD,
        momentum_MD,
        gradient_MD=before.gradient,
        step_size_M=(step_size * (0.8 + 0.4 * jitter_M)).to(device),
        steps_M=torch.full((count,), steps, device=device),
        inverse_mass_MD=inverse_mass_D,
    )
    # Potential and kinetic differences are formed separately: both are small compared with the energies.
    gain_M = (end.value.log_density - before.log_density) + (
        kinetic(momentum_MD, inverse_mass_D) - kinetic(end.momentum_MD, inverse_mass_D)
    )
    probability_M = acceptance(gain_M)
    accepted_M = chance_M.to(device) < probability_M
    parts = Parts(*(choose(accepted_M, new, old) for new, old in zip(last[0], place.parts, strict=True)))
    return Place(choose(accepted_M, end.weights_MD, weights_MD), parts), probability_M


class Rung(NamedTuple):
    """The result of a pilot run at one temperature."""

    beta: float
    length: float  # of the path from the prior to this temperature
    step_size: float  # with the target acceptance
    variance_D: Tensor  # variances of the weights, float64
    weights_PD: Tensor


class Ladder(NamedTuple):
    """Temperatures, and how to move at each."""

    beta_K: Tensor  # from 0 to 1, float64
    tunings: tuple[Tuning, ...]  # settings of the moves at each

    def reversed(self) -> Ladder:
        """Return the ladder from the posterior to the prior."""
        return Ladder(self.beta_K.flip(0), self.tunings[::-1])


@dataclass(frozen=True)
class Pilot:
    """The result of a pilot run."""

    rungs: tuple[Rung, ...]  # one for each of its temperatures
    leapfrogs: int  # bound on the leapfrog steps of a move

    @property
    def length(self) -> float:
        """Λ, the length of the path."""
        return self.rungs[-1].length

    def even(self, count: int) -> Tensor:
        """Return `count` inverse temperatures from 0 to 1, equally spaced along the path, float64."""
        beta_R, length_R = self._columns()
        if len(beta_R) == 2:
            return torch.linspace(0, 1, count, dtype=torch.float64)
        beta_K = torch.as_tensor(PchipInterpolator(length_R, beta_R)(np.linspace(0, length_R[-1], count)))
        beta_K[0], beta_K[-1] = 0.0, 1.0
        return beta_K

    def ladder(self, beta_K: Tensor) -> Ladder:
        """Return how to move at given temperatures; between rungs, logarithms are interpolated along the path."""
        beta_R, length_R = self._columns()
        position_K = np.interp(beta_K.numpy(), beta_R, length_R)
        log_step_K = np.interp(position_K, length_R, np.log([rung.step_size for rung in self.rungs]))
        after_K = np.searchsorted(length_R, position_K, side="left").clip(1, len(length_R) - 1)
        share_K = (position_K - length_R[after_K - 1]) / (length_R[after_K] - length_R[after_K - 1])
        tunings = []
        for log_step, after, share in zip(log_step_K, after_K, share_K, strict=True):
            low_D, high_D = (self.rungs[r].variance_D.log() for r in (after - 1, after))
            tunings.append(Tuning(math.exp(log_step), torch.lerp(low_D, high_D, float(share)).exp(), self.leapfrogs))
        return Ladder(beta_K, tuple(tunings))

    def _columns(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array([r.beta for r in self.rungs]), np.array([r.length for r in self.rungs])


def pilot(target: Target, *, leapfrogs: int, seed: int) -> Pilot:
    """Run a few particles from the prior to the posterior, with at most `leapfrogs` steps per move.

    A ValueError if log likelihoods are NaN or +∞, or too few are finite, or the run does not terminate.
    """
    weights_PD = target.draw(PARTICLES, mix(Purpose.PILOT_START, seed))
    place = Place(weights_PD, target.parts(weights_PD))
    first_step = min(weights_PD.shape[1] ** -0.25, _LONGEST)
    rungs = [Rung(0.0, 0.0, first_step, _variance(weights_PD), weights_PD)]
    moves = mix(Purpose.PILOT_MOVES, seed)
    while rungs[-1].beta < 1:
        if len(rungs) == _MOST:
            raise ValueError(
                f"a pilot run of {_MOST} temperatures came to β = {rungs[-1].beta:g}, not 1. Scale the data."
            )
        beta, distance, share_P = _next(place.parts.log_likelihood.cpu(), rungs[-1].beta)
        place = _resampled(place, share_P, generator(Purpose.PILOT_RESAMPLING, seed, len(rungs)))
        step_size, variance_D = rungs[-1].step_size, _variance(place.weights_MD)
        for number in range(_MOVES):
            tuning = Tuning(step_size, variance_D, leapfrogs)
            move_number = len(rungs) * _MOVES + number
            place, acceptance_P = move(target, place, beta, tuning=tuning, seed=moves, number=move_number)
            step_size *= math.exp(2 * (float(acceptance_P.mean()) - _ACCEPTANCE) / math.sqrt(number + 1))
            step_size = min(step_size, _LONGEST)
        length = rungs[-1].length + distance
        rungs.append(Rung(beta, length, step_size, _variance(place.weights_MD), place.weights_MD))
    return Pilot(tuple(rungs), leapfrogs)


def _variance(weights_PD: Tensor) -> Tensor:
    """Return variances, float64 (D,), shrunk towards a thousandth of their mean with the weight of five draws."""
    variance_D, count = weights_PD.double().cpu().var(0), len(weights_PD)
    return (count * variance_D + 5 * 1e-3 * variance_D.mean()) / (count + 5)


def _next(log_likelihood_P: Tensor, beta: float) -> tuple[float, float, Tensor]:
    """Return the next β, its distance, and the shares of the particles there."""
    if log_likelihood_P.isnan().any() or (log_likelihood_P == torch.inf).any():
        raise ValueError("a log likelihood is NaN or +inf at a draw of the prior. Look for extreme values in the data.")
    finite = float(torch.isfinite(log_likelihood_P).double().mean())
    if finite <= _SHARE:
        raise ValueError(
            f"the log likelihood is −inf at {1 - finite:.0%} of the draws from the prior, so there is no path to the "
            f"posterior. Choose a narrower prior or another likelihood."
        )

    def share(step: float) -> float:
        log_u_P = step * log_likelihood_P
        return float((2 * log_u_P.logsumexp(0) - (2 * log_u_P).logsumexp(0)).exp()) / len(log_u_P)

    low, high = math.log(1e-30), math.log(1 - beta)
    step = 1 - beta
    if share(step) < _SHARE:
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if share(math.exp(middle)) > _SHARE else (low, middle)
        step = math.exp(high)
    new = 1.0 if step == 1 - beta else beta + step
    return new, math.sqrt(max(-math.log(share(step)), 1e-12)), (step * log_likelihood_P).softmax(0)


def _resampled(place: Place, share_P: Tensor, from_: torch.Generator) -> Place:
    """Return particles drawn in proportion to their shares, with one uniform number (Kitagawa 1996)."""
    count = len(share_P)
    quantile_P = (
        torch.arange(count, dtype=torch.float64) + torch.rand((), generator=from_, dtype=torch.float64)
    ) / count
    index_P = torch.searchsorted(share_P.cumsum(0), quantile_P).clamp(max=count - 1).to(place.weights_MD.device)
    return Place(place.weights_MD[index_P], Parts(*(tensor[index_P] for tensor in place.parts)))


def as_temperatures(
    temperatures: Temperatures | None, *, least: int = 2, why: str = "the prior's and the posterior's"
) -> Tensor | int | None:
    """Return the given inverse temperatures, float64 (K,), or their number, checked; None for neither.

    A ValueError if they are fewer than `least`, for the reason `why`, or do not ascend from 0 to 1.
    """
    if temperatures is None:
        return None
    if is_whole(temperatures):
        checked = count = whole("temperatures", temperatures)
    else:
        checked = as_numbers("temperatures", temperatures).flatten()
        count = len(checked)
        if count < 2 or checked[0] != 0 or checked[-1] != 1 or not (checked.diff() > 0).all():
            raise ValueError(
                f"`temperatures` must be inverse temperatures that rise from 0 to 1; got {checked.tolist()[:8]}. Give "
                f"their number to have them placed."
            )
    if count < least:
        raise ValueError(f"`temperatures` must be at least {least}, {why}; got {count}.")
    return checked


@undisturbed
def sigmoidal(count: int, sharpness: float = 4.0) -> Tensor:
    """Return inverse temperatures on a sigmoid, dense at both ends (Grosse, Ghahramani and Adams 2015).

    β_k = (s_k − s_0)/(s_{K−1} − s_0) with s_k = σ(sharpness (2k/(K − 1) − 1)), float64 (K,), from 0 to 1.

    Args:
        count: K, at least 2.
        sharpness: how dense they are at the ends.
    """
    check_counts(least=2, count=count)
    check_positive(sharpness=sharpness)
    values_K = torch.linspace(-sharpness, sharpness, count, dtype=torch.float64).sigmoid()
    return (values_K - values_K[0]) / (values_K[-1] - values_K[0])


@undisturbed
def power(count: int, exponent: float = 5.0) -> Tensor:
    """Return inverse temperatures β_k = (k/(K − 1))^exponent, dense at the prior (Friel and Pettitt 2008).

    Float64 (K,), from 0 to 1.

    Args:
        count: K, at least 2.
        exponent: how dense they are there.
    """
    check_counts(least=2, count=count)
    check_positive(exponent=exponent)
    return torch.linspace(0, 1, count, dtype=torch.float64) ** exponent
