"""Microcanonical Langevin dynamics on minibatches, SMILE (Sommer et al. 2026), with refreshment of the velocity.

In coordinates A w, with g the gradient of the log density from the present minibatch (N/B times the sum over its B
rows, and the prior), and u of length 1, a step is

    u ← K(ε/2) R(ε) K(ε/2) u,     w ← w + ε A⁻¹ u

where K turns u by the force A⁻¹ g, and R refreshes it on the length L (`langevin/kinetics.py`). It is a leapfrog step
with one gradient, which is of its own batch. A = 1, or with preconditioner A = √V + δ as in SGLD, in proportion to the
noise of the gradient (pSMILE): weights are then known about as well as each other, and as noisy.

SMILE has no R: the noise of the gradient alone turns u, and the law is that of the posterior only if it is equal in
all directions. With R and Σ the covariance of A⁻¹ g, variances along the i-th direction of Σ are

    (1 + ρ D Σ_i/tr Σ)/(1 + ρ),     ρ = ε L tr Σ/(2 D (D − 1))

times the exact ones, if rows are drawn anew for each batch. The noise of rows that are shuffled turns u to and fro, and
leaves variances of about 1/(1 + share), with the share that is measured along the noise (`gradient_noise.py`). Without
`step_size` burn-in finds ε, so that neither this share nor the energy error of a step on its own batch, as in MCLMC,
is above a target (`constant_speed.py`). On all the data it is MCLMC with leapfrog steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from torchbayes.density.dynamics import Density
from torchbayes.density.plans import BackendName  # noqa: F401  (jsonargparse evaluates annotations of `Sampler` here)
from torchbayes.health.chains import SOME, Sampled, named
from torchbayes.methods.langevin.kinetics import Isokinetic, check_turns
from torchbayes.methods.sampler import Sampler
from torchbayes.methods.schedules import StepSchedule  # noqa: F401  (so of `Stochastic`)
from torchbayes.methods.sgmcmc import stochastic
from torchbayes.methods.sgmcmc.constant_speed import State, Step, measured
from torchbayes.methods.sgmcmc.stochastic import Stochastic, by_chain, look, scaled_noise, temperature

_BIASED, _COARSE = 0.2, 0.02  # share of noise, and variance of the energy error, at which variances are off by 17 %


@dataclass(frozen=True)
class Info(stochastic.Info):
    """The report of a step: `noise_share_M` bounds the bias that noise leaves, `energy_error_M` that of the steps."""

    noise_share_M: Tensor
    energy_error_M: Tensor


@dataclass(frozen=True)
class SMILE(Stochastic, Sampler):
    """Microcanonical Langevin dynamics on minibatches: constant speed, with refreshment beside the gradient's noise.

    Attributes:
        step_size: ε, the path of a step in units of A times weights; None finds it in burn-in, for each chain.
        trajectory: L, on which the velocity is forgotten, in the units of ε; None finds it in burn-in.
        energy_error: target of the variance of a step's energy error on its batch over D.
        noise_share: the largest share of the gradient's noise in the turning of the velocity, beside refreshment.
        preconditioned: whether A is √V + δ; for chains that begin at trained weights, as V is large far from these.
    """

    preconditioned: bool | None = False
    trajectory: float | None = None
    energy_error: float = 5e-4
    noise_share: float = 0.1

    adapts = True
    single_gradient = False  # some steps also measure the density where they lead
    kinetics = Isokinetic()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.burn_in == 0 and None in (self.step_size, self.trajectory):
            raise ValueError(
                "a step size and a length are found in burn-in, and `burn_in` is 0. Give `step_size` and `trajectory`."
            )

    def begin(
        self, density: Density, weights_MD: Tensor, buffers: Any, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> State:
        check_turns(self, weights_MD)
        state = super().begin(density, weights_MD, buffers, seeds=seeds, steps_per_epoch=steps_per_epoch)
        return State.at(self, state)

    def move(self, density: Density, state: State, batch: Any, *, donate: bool = False) -> tuple[State, Info]:
        seen = look(self, density, state, batch=batch, donate=donate)
        now, scale_MD = seen.now, seen.mass_MD
        force_MD = seen.drift_MD.div_(temperature(density))
        force_MD = force_MD if scale_MD is None else force_MD.div_(scale_MD)
        step_M = (now.step_size_M.unsqueeze(-1) * by_chain(seen.sizes, now.step_size_M)).squeeze(-1)
        velocity_MD, _ = self.kinetics.kicked(now.momentum_MD, force_MD, step_M / 2)
        if seen.noisy:  # a velocity of 0, with which a chain begins, becomes a direction even where ε is 0
            noise_MD, time_M = scaled_noise(state, state.step, 1.0), step_M.clamp_min(1e-12 * now.length_M)
            velocity_MD = self.kinetics.refreshed(velocity_MD, noise_MD, time_M, length_M=now.length_M)
        velocity_MD, gain_M = self.kinetics.kicked(velocity_MD, force_MD, step_M / 2)
        path_MD = step_M.to(velocity_MD).unsqueeze(-1) * velocity_MD
        weights_MD = now.weights_MD + (path_MD if scale_MD is None else path_MD / scale_MD)
        new = replace(now, weights_MD=weights_MD, momentum_MD=velocity_MD)
        new = measured(self, density, seen, step=Step(step_M, force_MD, gain_M, new), batch=batch)
        share_M = new.noise.share(step_M, new.length_M, steps_per_epoch=new.track.steps_per_epoch)
        if new.step >= self.burn_in:
            new = replace(new, shares_M=new.shares_M + share_M)
        done, info = seen.done(new)
        report = {**vars(info), "step_size_M": step_M}
        return done, Info(**report, noise_share_M=share_M, energy_error_M=new.error_M)

    def ending(self, posterior: Any, state: Any) -> Sampled:
        """Return how chains that may have diverged are judged, with a problem if noise or steps bias them."""
        ending, taken = super().ending(posterior, state), state.step - self.burn_in
        if taken < SOME:
            return ending
        share_M, error_M = state.shares_M.cpu() / taken, state.errors_M.cpu() / max(state.measured, 1)
        said = list(ending.said)
        if (noisy_M := share_M > _BIASED).any():
            said.append(
                f"the noise of gradients has a share of {float(share_M.max()):.2g} in the turning of {named(noisy_M)}, "
                f"at which variances are biased by 15 % and more (take smaller steps, or larger batches)"
            )
        if (coarse_M := error_M > _COARSE).any():
            said.append(
                f"the energy error of {named(coarse_M)} has a variance of {float(error_M.max()):.2g} per weight, "
                f"at which variances are biased by 15 % and more (take smaller steps, or a longer burn-in)"
            )
        return replace(ending, said=tuple(said))
