"""Masses: how they begin, transform noise and gradients, and are learned in burn-in.

HMC and NUTS draw momenta with covariance M; MALA and the random walk propose steps with covariance ε² M⁻¹. For a
normal target of covariance M⁻¹ either is the method on N(0, I). Masses are learned only in burn-in: a proposal that
kept changing with the past of its chain would need further conditions to leave the target as it is (Haario, Saksman
and Tamminen 2001).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Literal

import torch
from torch import Tensor

from torchbayes.density.dynamics import Density
from torchbayes.health.chains import MANY, Sampled
from torchbayes.methods.mcmc.adaptation import (
    LEARNED,
    LEAST_BURN_IN,
    RunningCovariance,
    RunningVariance,
    StepSize,
    windows,
)
from torchbayes.methods.sampler import choose

Mass = Literal["unit", "prior", "diagonal", "layer", "dense"]
LARGEST_DENSE: Final = 2000  # most weights for which a dense mass is estimated


class Learning:
    """Base, beside `Sampler`, of samplers with a step size and a mass that may be learned in burn-in."""

    steps: int
    burn_in: int
    step_size: float | None  # ε; None adapts it
    mass: Mass
    target_acceptance: float  # δ of the adaptation

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc]  # of `Sampler`
        if self.burn_in == 0 and (self.step_size is None or self.mass in LEARNED):
            raise ValueError("a step size or mass is adapted during burn-in, and `burn_in` is 0. Give a `step_size`.")

    def ending(self, posterior: Any, state: Any) -> Sampled:
        """Return how chains are judged, with a problem if burn-in was too short for a mass and draws show it."""
        short = self.mass in LEARNED and self.burn_in < LEAST_BURN_IN and self.steps - self.burn_in >= MANY
        problem = (
            f"a burn-in of {self.burn_in} steps is too short to learn the mass, which stayed 1 (set `burn_in` to "
            f"{LEAST_BURN_IN} or more, better 200, or mass='unit')"
        )
        return Sampled(burn_in=self.burn_in, said=(problem,) if short else ())


def first_mass(method: Learning, density: Density, weights_MD: Tensor) -> Tensor:
    """Return M⁻¹ before anything is learned: its diagonal (M, D), or Cholesky factors (M, D, D), see `velocity`.

    Raises ValueError if mass="prior" and the prior's spread is not known, or mass="layer" and there are no layers, or
    mass="dense" and there are more than 2,000 weights.
    """
    if method.mass == "layer" and not hasattr(density, "model"):
        raise ValueError("`mass='layer'` needs a network, whose tensors are the layers. Choose mass='diagonal'.")
    if method.mass == "dense":
        chains, size = weights_MD.shape
        if size > LARGEST_DENSE:
            memory = 2 * chains * size**2 * weights_MD.element_size() / 1e9
            raise ValueError(
                f"`mass='dense'` takes at most {LARGEST_DENSE:,} weights; got {size:,}, for which the two matrices of "
                f"each of {chains} chains would take {memory:,.1f} GB. Choose mass='diagonal'."
            )
        return torch.diag_embed(torch.ones_like(weights_MD))
    if method.mass == "prior":
        stds_D = known_prior(density, "`mass='prior'`", advice="Choose another mass.")
        return stds_D.square().to(weights_MD).expand_as(weights_MD).clone()
    return torch.ones_like(weights_MD)


def first_spread(method: Learning, weights_MD: Tensor) -> RunningVariance | RunningCovariance:
    """Return the estimate of variances or covariances before any weights are seen."""
    return (RunningCovariance if method.mass == "dense" else RunningVariance).empty(weights_MD)


def known_prior(density: Density, quantity: str, *, advice: str) -> Tensor:
    """Return the prior standard deviation of every weight, float64 (D,); ValueError if it is infinite or not known.

    `quantity` is what it is needed for, and `advice` what to do where there is none, both for the message.
    """
    stds_D = density.prior_stds() if hasattr(density, "prior_stds") else torch.tensor(math.inf)  # type: ignore[attr-defined]
    if not torch.isfinite(stds_D).all():
        raise ValueError(
            f"{quantity} is derived from the prior's standard deviation, which is infinite or not known here. {advice}"
        )
    return stds_D


def learned(
    method: Learning,
    density: Density,
    state: Any,
    *,
    acceptance_M: Tensor,
    first: Callable[[Any], Tensor],
    longest: float = math.inf,
    least: int = 0,
) -> Any:
    """Return the state after adaptation in burn-in: a new step size, and at the end of a window a new mass.

    `first` gives step sizes (M,) to begin with after a change of mass, which changes their units, and `longest` bounds
    them. A window of fewer than `least` weights gives a diagonal mass instead of a dense one. After burn-in the state
    is unchanged.
    """
    if state.step > method.burn_in:
        return state
    adapts, step_size = method.step_size is None, state.step_size
    if adapts:
        step_size = step_size.adapted(acceptance_M, method.target_acceptance, longest=longest)
    start, ends = windows(method.burn_in)
    if method.mass in LEARNED and state.step > start:
        state = replace(state, spread=state.spread.collect(state.weights_MD))
        if state.step in ends:
            state = renewed(method, density, state, least=least)
            step_size = StepSize.at(first(state)) if adapts else step_size
    if state.step == method.burn_in:
        step_size = step_size.settled()
    return replace(state, step_size=step_size)


def renewed(method: Learning, density: Density, state: Any, *, least: int) -> Any:
    """Return the state with the mass of the window that ends here, and a new window."""
    model: Any = getattr(density, "model", None)  # a mass by layer is refused where there is none
    layers = tuple(model.layout.slices.values()) if method.mass == "layer" else ()
    estimate_MD = state.spread.inverse_mass(layers, least=least)
    scales_MD = estimate_MD if estimate_MD.ndim == 2 else estimate_MD.diagonal(dim1=-2, dim2=-1)
    # a chain that has not moved keeps its mass
    mass_MD = choose((scales_MD > 0).all(-1), estimate_MD, state.inverse_mass_MD)
    return replace(state, spread=state.spread.empty(state.weights_MD), inverse_mass_MD=mass_MD)
