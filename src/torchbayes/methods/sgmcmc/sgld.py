"""Stochastic gradient Langevin dynamics (Welling and Teh 2011), plain or preconditioned (Li et al. 2016).

    w ← w + (ε_t/2) G ∇log p(w) + √(ε_t T) G^{1/2} z,     z ~ N(0, I)

with the gradient of the full-data log density estimated from a minibatch. Without preconditioner G = 1; with it

    V ← λ V + (1 − λ) ∇log p(w)²,     G = 1/(√V + δ)

elementwise. The exact dynamics has a further drift (T ε_t/2) Σ_j ∂G_ij/∂w_j, which needs second derivatives and is
left out, as in Li et al. It is negligible while V hardly changes as w crosses the target, but not for small steps: V
then follows every gradient, and the stationary law is p(w)/G(w), normalised. On N(0, 1) with exact gradients the
variance is 1.1, 1.5 and 1.9 at ε = 0.1, 0.01 and 0.001, and 2 in the limit. With all the data and without
preconditioner the chain is the unadjusted Langevin algorithm; MALA corrects it.

On a normal density of variance σ² with exact gradients the stationary variance is σ²/(1 − ε/(4σ²)).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchbayes.density.dynamics import Density
from torchbayes.methods.sampler import Sampler
from torchbayes.methods.sgmcmc.stochastic import Info, State, Stochastic, add_, look, scaled_noise, temperature


@dataclass(frozen=True)
class SGLD(Stochastic, Sampler):
    """Stochastic gradient Langevin dynamics."""

    rate = 0.03  # learning rate on the mean loss, doubled
    preconditioned_rate = 0.03
    least_floor = 1e-5
    has_momentum = False

    def move(self, density: Density, state: State, batch: Any, *, donate: bool = False) -> tuple[State, Info]:
        seen = look(self, density, state, batch=batch, donate=donate)
        now, drift_MD, step_size, noisy, mass_MD, *_ = seen
        noise_MD = scaled_noise(state, state.step, (step_size * temperature(density)) ** 0.5) if noisy else None
        if mass_MD is not None:
            inverse_MD = mass_MD.reciprocal_()
            drift_MD.mul_(inverse_MD)
            noise_MD = None if noise_MD is None else noise_MD.mul_(inverse_MD.sqrt_())
        add_(now.weights_MD, drift_MD, step_size / 2)
        if noise_MD is not None:
            now.weights_MD.add_(noise_MD)
        return seen.done(now)
