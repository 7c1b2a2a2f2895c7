"""Langevin dynamics without rejections: microcanonical (MCLMC) and underdamped.

MCLMC (Robnik, De Luca, Silverstein and Seljak 2023; Robnik and Seljak 2023) moves at a constant speed of 1,

    w' = u,     u' = (I − u uᵀ) ∇log p(w)/(D − 1) + √(2/(L (D − 1))) (I − u uᵀ) · white noise

and underdamped Langevin dynamics at a normal velocity p,

    w' = p,     p' = ∇log p(w) − p/L + √(2/L) · white noise.

Either leaves p(w) as it is, L is the length (of the second: the time) on which a velocity is forgotten, and a step is
half of the noise, a step of an integrator, and the other half of the noise. No step is rejected, so there is no price
in acceptance for many weights; instead the step size ε leaves a bias. With h = ε/√D for MCLMC and ε for underdamped
Langevin dynamics, the variances of N(0, I) are

    MCLMC, leapfrog        1 + h²/12 + …           underdamped, leapfrog     1/(1 − h²/4)

times the exact ones. ε, L and the mass are found in burn-in by ALBA (`alba.py`): at the target 5·10⁻⁴ of Var[E]/D the
variances of normal targets are right to about 4 % with leapfrog steps and 2 % with those of minimal norm. A smaller
target makes them better, as Var[E]^⅓.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torchbayes.density.dynamics import Density
from torchbayes.health.chains import SOME, Sampled, named
from torchbayes.methods.langevin.kinetics import Isokinetic, Newtonian
from torchbayes.methods.langevin.walk import Info, State, Walk, counted
from torchbayes.methods.sampler import Sampler

_FACTOR = 0.4  # a of the rule for L
# Var[E]/D above which variances are not to be trusted: of normal targets they are then off by 17 %, as (Var[E]/4D)^⅓
_BIASED = 0.02
_LOST = 0.2  # share of refused steps above which a chain does not follow its dynamics


@dataclass(frozen=True)
class MCLMC(Walk, Sampler):
    """Microcanonical Langevin Monte Carlo, unadjusted: dynamics of constant speed, without rejections."""

    steps: int = 6000
    burn_in: int = 2000
    thin: int = 4

    kinetics = Isokinetic()

    def move(self, density: Density, state: State, batch: Any, *, donate: bool = False) -> tuple[State, Info]:
        return _moved(self, density, state)

    def ending(self, posterior: Any, state: State) -> Sampled:
        """Return how chains are judged, with a problem if steps were refused, or too long for their bias."""
        return _judged(super().ending(posterior, state), state)


@dataclass(frozen=True)
class UnderdampedLangevin(Walk, Sampler):
    """Underdamped Langevin dynamics, unadjusted: momenta with friction and noise, without rejections."""

    steps: int = 6000
    burn_in: int = 2000
    thin: int = 4
    # a tenth of what suits MCLMC: momenta carry a chain into regions of larger curvature, where steps of that size are
    # refused (of a network with 41 weights up to 66 %, at this one 0.2 %)
    energy_error: float = 3e-5

    kinetics = Newtonian()

    def move(self, density: Density, state: State, batch: Any, *, donate: bool = False) -> tuple[State, Info]:
        return _moved(self, density, state)

    def ending(self, posterior: Any, state: State) -> Sampled:
        """Return how chains are judged, with a problem if steps were refused, or too long for their bias."""
        return _judged(super().ending(posterior, state), state)


def _moved(method: MCLMC | UnderdampedLangevin, density: Density, state: State) -> tuple[State, Info]:
    """Return every chain one step on, and the report of the step."""
    new, info, error_M = method.walked(density, state)
    if new.step <= method.burn_in:
        return method.tuned(density, new, error_M, steps=method.burn_in, factor=_FACTOR), info
    return counted(new, info), info


def _judged(ending: Sampled, state: State) -> Sampled:
    """Return an ending with what energy errors after burn-in tell of the steps."""
    taken = state.step - ending.burn_in
    if taken < SOME:
        return ending
    said, lost_M = list(ending.said), state.refused_M > _LOST * taken
    error_M = state.error_M / (taken - state.refused_M).clamp_min(1)
    biased_M = (error_M > _BIASED) & ~lost_M
    if lost_M.any():
        share = float(state.refused_M[lost_M].max()) / taken
        said.append(
            f"up to {share:.0%} of the steps of {named(lost_M.cpu())} were refused, as their energy errors were "
            f"large or not finite (take smaller steps, or a longer burn-in)"
        )
    if biased_M.any():
        said.append(
            f"the energy error of {named(biased_M.cpu())} has a variance of {float(error_M[biased_M].max()):.2g} per "
            f"weight, at which variances are biased by 15 % and more (take smaller steps, a longer burn-in, or MAMS)"
        )
    return replace(ending, said=tuple(said))
