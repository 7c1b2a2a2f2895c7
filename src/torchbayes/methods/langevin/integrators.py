"""Symmetric splittings of a dynamics into kicks of the velocity and moves of the weights.

With kicks K and moves X, each over a share of the step ε:

    leapfrog        K(½) X(1) K(½)
    minimal norm    K(λ) X(½) K(1 − 2λ) X(½) K(λ),     λ = 0.1931833275037836

The second takes two gradients a step, and steps more than twice as long for the same error (McLachlan 1995; Omelyan,
Mryglod and Folk 2003). Either is its own reverse if the velocity changes its sign at the end. The error of a step is

    E = Σ ΔK + U(w') − U(w)

0 for an exact solution, because the kicks' ΔK are the work of the force. Var[E]/D bounds the bias that steps leave
behind: on normal targets the mean square of the relative errors of variances is at most (Var[E]/(4D))^⅔ with leapfrog
steps of underdamped Langevin dynamics (Robnik and Seljak 2024).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor

from torchbayes.density.dynamics import Value, displaced, whitened
from torchbayes.methods.langevin.kinetics import Kinetics

Integrator = Literal["minimal_norm", "leapfrog"]
_LAMBDA = 0.1931833275037836
# shares of the step in kicks and moves in turn, a kick first
SHARES: Final[dict[str, tuple[float, ...]]] = {
    "minimal_norm": (_LAMBDA, 0.5, 1 - 2 * _LAMBDA, 0.5, _LAMBDA),
    "leapfrog": (0.5, 1.0, 0.5),
}


class Moving(NamedTuple):
    """Weights with velocities, in coordinates in which the mass is the identity, and the gradient at the weights."""

    weights_MD: Tensor
    velocity_MD: Tensor
    gradient_MD: Tensor


class Moved(NamedTuple):
    """Where steps led."""

    weights_MD: Tensor
    velocity_MD: Tensor
    value: Value
    gain_M: Tensor  # Σ ΔK, float64


def gradients_of(integrator: str) -> int:
    """Return the number of gradients of a step."""
    return len(SHARES[integrator]) // 2


def integrated(
    kinetics: Kinetics,
    density: Callable[[Tensor], Value],
    start: Moving,
    *,
    step_size_LM: Tensor,
    integrator: str,
    inverse_mass_MD: Tensor | None,
) -> Moved:
    """Return the end of L ≥ 1 steps of given sizes, float64 (L, M); a member whose size is 0 stays.

    M⁻¹ is as for `velocity` of `torchbayes.density.dynamics`: the weights move by ε R u and the force is Rᵀ ∇log p,
    where M⁻¹ = R Rᵀ.
    """
    weights_MD, velocity_MD, _ = start
    force_MD, value = whitened(start.gradient_MD, inverse_mass_MD), None
    gain_M = torch.zeros(len(weights_MD), dtype=torch.float64, device=weights_MD.device)
    for step_size_M in step_size_LM.to(weights_MD.device):
        for number, share in enumerate(SHARES[integrator]):
            time_M = share * step_size_M
            if number % 2 == 0:
                velocity_MD, more_M = kinetics.kicked(velocity_MD, force_MD, time_M)
                gain_M = gain_M + more_M
            else:
                weights_MD = weights_MD + time_M.to(weights_MD).unsqueeze(-1) * displaced(velocity_MD, inverse_mass_MD)
                value = density(weights_MD)
                force_MD = whitened(value.gradient, inverse_mass_MD)
    assert value is not None, "at least one step is taken"
    return Moved(weights_MD, velocity_MD, value, gain_M)
