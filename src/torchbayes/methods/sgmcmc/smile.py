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

times the exact ones, if rows are drawn anew for each batch; rows that are shuffled have less bias, and at large ρ
variances that are too small in all directions. `gradient_noise.py` measures the noise and has its share in the turning
of u, which bounds both, at every tenth step. So is the energy error of a step on its own batch, as in MCLMC.

Without `step_size` burn-in finds ε, the largest of that energy error by ALBA's rule (`langevin/alba.py`), and in its
second half of that share of noise. Before that, noise may heat the chain, as it finds the posterior. L is the root of
the summed variances of A w in the second quarter of burn-in, and again in the third.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchbayes.density.dynamics import Density
from torchbayes.density.plans import BackendName  # noqa: F401  (jsonargparse evaluates annotations of `Sampler` here)
from torchbayes.health.chains import SOME, Sampled, named
from torchbayes.methods.faults import evaluated
from torchbayes.methods.langevin.alba import Rule, refused, told
from torchbayes.methods.langevin.kinetics import Isokinetic, check_turns
from torchbayes.methods.mcmc.adaptation import RunningVariance
from torchbayes.methods.sampler import Sampler, choose
from torchbayes.methods.sgmcmc import stochastic
from torchbayes.methods.sgmcmc.gradient_noise import Noise
from torchbayes.methods.sgmcmc.stochastic import Seen, Stochastic, look, scaled_noise, temperature
from torchbayes.model.batches.batch import batch_size

_RAMP = 100  # steps in which a preconditioner is learned, and ε rises
_INTERVAL = 10  # steps from one measurement to the next, once twice the ramp is over
_FEW = 10  # weights that give no variance
_BIASED, _COARSE = 0.2, 0.02  # share of noise, and variance of the energy error, at which variances are off by 17 %


@dataclass(frozen=True)
class State(stochastic.State):
    """Where the chains are; `momentum_MD` is the velocity, and numbers (M,) are float64."""

    step_size_M: Tensor  # ε before its schedule, or 1 where it is given
    length_M: Tensor  # L
    rule: Rule  # of ε in burn-in
    spread: RunningVariance  # of the weights in a quarter of burn-in
    noise: Noise
    error_M: Tensor  # E²/D of the last step that was measured
    errors_M: Tensor  # its sum after burn-in
    shares_M: Tensor  # the sum of the shares of noise there
    measured: int  # steps measured there


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
    """

    trajectory: float | None = None
    energy_error: float = 5e-4
    noise_share: float = 0.1

    adapts = True
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
        one_M = weights_MD.new_ones(len(weights_MD), dtype=torch.float64)
        scale = self.kinetics.scale(weights_MD.shape[1])
        return State(
            **vars(state),
            step_size_M=one_M if self.step_size else one_M * scale / 50,
            length_M=one_M * (self.trajectory or scale),
            rule=Rule.empty(one_M),
            spread=RunningVariance.empty(weights_MD[:, :0]),
            noise=Noise.none(weights_MD),
            error_M=0 * one_M,
            errors_M=0 * one_M,
            shares_M=0 * one_M,
            measured=0,
        )

    def move(self, density: Density, state: State, batch: Any, *, donate: bool = False) -> tuple[State, Info]:
        seen = look(self, density, state, batch=batch, donate=donate)
        now, scale_MD = seen.now, seen.mass_MD
        force_MD = seen.drift_MD.div_(temperature(density))
        force_MD = force_MD if scale_MD is None else force_MD.div_(scale_MD)
        step_M = torch.tensor(seen.sizes, dtype=torch.float64).to(now.step_size_M) * now.step_size_M
        velocity_MD, _ = self.kinetics.kicked(now.momentum_MD, force_MD, step_M / 2)
        if seen.noisy:  # a velocity of 0, with which a chain begins, becomes a direction even where ε is 0
            noise_MD, time_M = scaled_noise(state, state.step, 1.0), step_M.clamp_min(1e-12 * now.length_M)
            velocity_MD = self.kinetics.refreshed(velocity_MD, noise_MD, time_M, length_M=now.length_M)
        velocity_MD, gain_M = self.kinetics.kicked(velocity_MD, force_MD, step_M / 2)
        path_MD = step_M.to(velocity_MD).unsqueeze(-1) * velocity_MD
        weights_MD = now.weights_MD + (path_MD if scale_MD is None else path_MD / scale_MD)
        new = replace(now, weights_MD=weights_MD, momentum_MD=velocity_MD)
        if now.step < 2 * _RAMP or now.step % _INTERVAL == 0:
            new = _measured(self, density, seen, _Step(step_M, force_MD, gain_M, new), batch=batch)
        share_M = new.noise.share(step_M, new.length_M, steps_per_epoch=new.track.steps_per_epoch)
        if new.step >= self.burn_in:
            new = replace(new, shares_M=new.shares_M + share_M)
        done, info = seen.done(new)
        report = {**vars(info), "step_size_M": step_M}
        return done, Info(**report, noise_share_M=share_M, energy_error_M=new.error_M)

    def ending(self, posterior: Any, state: State) -> Sampled:
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


class _Step(NamedTuple):
    """A step and the state it led to."""

    size_M: Tensor  # ε
    force_MD: Tensor  # at its beginning
    gain_M: Tensor  # ΔK of the kick after refreshment
    new: State


def _measured(method: SMILE, density: Density, seen: Seen, step: _Step, *, batch: Any) -> State:
    """Return the state after a step with its energy error and its noise; in burn-in ε and L follow, or it is refused.

    ε follows once the preconditioner is learned.
    """
    now, size, (size_M, force_MD, gain_M, new) = seen.now, step.new.weights_MD.shape[1], step
    there, _ = evaluated(density, new.weights_MD, known_MD=now.track.sound_MD, batch=batch)
    _, more_M = method.kinetics.kicked(new.momentum_MD, _force(there.gradient, seen), size_M / 2)
    error_M = gain_M + more_M + (seen.value.log_density - there.log_density)
    ratio_M = told(error_M, size=size, target=method.energy_error)
    new = replace(new, error_M=ratio_M * method.energy_error, noise=_noise(density, seen, force_MD, batch=batch))
    if now.step >= method.burn_in:
        return replace(new, errors_M=new.errors_M + new.error_M, measured=new.measured + 1)
    if method.step_size is None and (seen.mass_MD is None or now.step >= _RAMP):
        rule, longest_M = now.rule.adapted(size_M.clamp_min(1e-30), ratio_M)
        if now.step >= method.burn_in // 2:
            epoch = now.track.steps_per_epoch
            bound_M = new.noise.longest(method.noise_share, now.length_M, steps_per_epoch=epoch)
            longest_M = torch.minimum(longest_M, bound_M)
        lost_M = refused(error_M, size=size, target=method.energy_error)
        weights_MD = choose(lost_M, now.weights_MD, new.weights_MD)
        velocity_MD = choose(lost_M, torch.zeros_like(new.momentum_MD), new.momentum_MD)
        new = replace(new, weights_MD=weights_MD, momentum_MD=velocity_MD, rule=rule, step_size_M=longest_M)
    return new if method.trajectory else _with_length(method, seen, new)


def _force(gradient_MD: Tensor, seen: Seen) -> Tensor:
    """Return A⁻¹ g."""
    return gradient_MD if seen.mass_MD is None else gradient_MD / seen.mass_MD


def _noise(density: Any, seen: Seen, force_MD: Tensor, *, batch: Any) -> Noise:
    """Return the moments of the noise with that of a batch; ValueError if all batches have a single row."""
    now: State = seen.now
    rows = num_data = getattr(density, "num_data", 1)
    if batch is not None:
        rows = batch_size(batch.inputs, 1)
    if rows == 1 < num_data and now.step == 0:
        raise ValueError("a batch has one row, so that the noise of its gradient is not known. Take two or more.")
    if rows in (1, num_data):
        return now.noise
    half, _ = evaluated(
        density, now.weights_MD, known_MD=now.track.sound_MD, batch=batch.map(lambda rows_MB: rows_MB[:, : rows // 2])
    )
    return now.noise.after(_force(half.gradient, seen), force_MD, rows=rows, num_data=num_data)


def _with_length(method: SMILE, seen: Seen, new: State) -> State:
    """Return the state with its weights among those whose spread gives L, and at the end of a quarter with L."""
    step, burn_in, nothing_MD = seen.now.step, method.burn_in, new.weights_MD[:, :0]
    if (quarter := 4 * step // burn_in) not in (1, 2):
        return new
    spread = (new.spread if new.spread.count else RunningVariance.empty(new.weights_MD)).collect(new.weights_MD)
    if 4 * (step + _INTERVAL) // burn_in == quarter or spread.count < _FEW:
        return replace(new, spread=spread)
    deviations_MD = (spread.squares_MD / (spread.count - 1)).sqrt()
    deviations_MD = deviations_MD if seen.mass_MD is None else deviations_MD * seen.mass_MD
    length_M = torch.linalg.vector_norm(deviations_MD, dim=-1, dtype=torch.float64)
    length_M = torch.where(length_M > 0, length_M, new.length_M)  # a chain that has not moved has no spread
    return replace(new, spread=RunningVariance.empty(nothing_MD), length_M=length_M)
