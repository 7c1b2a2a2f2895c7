"""Stochastic gradient Hamiltonian Monte Carlo (Chen et al. 2014), in two forms, plain or preconditioned.

`form="momentum"`, that of Izmailov et al. (2021), with momentum β and mass A (1, or √V + δ with preconditioner):

    m ← β m + √ε ∇log p(w) + √(2 (1 − β) T) A^{1/2} z,     w ← w + √ε A⁻¹ m

`form="friction"`, that of Chen et al. with α = 1 − β and an estimate b of the gradient noise:

    v ← (1 − α) v + ε ∇log p(w) + √(2 (α − b) ε T) z,      w ← w + v

With v = √ε m and b = 0 they are the same chain as long as ε does not change; when it does, m keeps its scale and v
does not. V ← λ V + (1 − λ) ∇log p(w)² elementwise; the drift term for a changing A is left out. The gradient is that
of the full-data log density, estimated from a minibatch. With `Cycles` this is cSGHMC (Zhang et al. 2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torchbayes.density.dynamics import Density
from torchbayes.methods.sampler import Sampler
from torchbayes.methods.sgmcmc.stochastic import Info, State, Stochastic, add_, look, scaled_noise, temperature


@dataclass(frozen=True)
class SGHMC(Stochastic, Sampler):
    """Stochastic gradient Hamiltonian Monte Carlo.

    Attributes:
        momentum: β; the friction is 1 − β.
        form: momentum or friction, which has no preconditioner.
        noise_estimate: b, for the friction form.
    """

    momentum: float = 0.9
    form: Literal["momentum", "friction"] = "momentum"
    noise_estimate: float = 0.0

    rate = 0.01  # learning rate on the mean loss
    preconditioned_rate = 0.003

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form == "friction" and self.preconditioned is None:
            object.__setattr__(self, "preconditioned", False)
        if self.noise_estimate >= 1 - self.momentum:
            raise ValueError(
                f"`noise_estimate` must lie in [0, {1 - self.momentum:g}), below the friction; "
                f"got {self.noise_estimate}."
            )
        if (self.noise_estimate and self.form == "momentum") or (self.preconditioned and self.form == "friction"):
            raise ValueError("`noise_estimate` is for form='friction', and `preconditioned` for form='momentum'.")

    def move(self, density: Density, state: State, batch: Any, *, donate: bool = False) -> tuple[State, Info]:
        seen = look(self, density, state, batch=batch, donate=donate)
        now, drift_MD, step_size, noisy, mass_MD, *_ = seen
        friction, root = 1 - self.momentum, step_size**0.5
        kick, move = (root, root) if self.form == "momentum" else (step_size, 1.0)
        injected = 2 * (friction - self.noise_estimate) * temperature(density)
        variance = injected * (1.0 if self.form == "momentum" else step_size)
        add_(now.momentum_MD.mul_(self.momentum), drift_MD, kick)
        if noisy:
            noise_MD = scaled_noise(state, state.step, variance**0.5)
            now.momentum_MD.add_(noise_MD if mass_MD is None else noise_MD.mul_(mass_MD.sqrt()))
        add_(now.weights_MD, now.momentum_MD if mass_MD is None else now.momentum_MD / mass_MD, move)
        return seen.done(now)
