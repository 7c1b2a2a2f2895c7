"""Chains of constant speed on minibatches: where they are, what is measured of a step, and what follows in burn-in.

A step is measured by gradients of its own batch: at its end, which gives its energy error, and of the first half of its
rows, which gives the noise. In burn-in ε is the largest of an energy error, by ALBA's rule (`langevin/alba.py`), and in
the second half of it of a share of noise (`gradient_noise.py`). Before that noise may heat a chain, as it has to find
the posterior. A step whose error is far above the target is refused: the chain stays, and takes a new direction. L is
the root of the summed variances of A w in the second quarter of burn-in, and again of those in the third.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchbayes.density.dynamics import Density
from torchbayes.methods.faults import evaluated
from torchbayes.methods.langevin.alba import Rule, refused, told
from torchbayes.methods.mcmc.adaptation import RunningVariance
from torchbayes.methods.sampler import choose
from torchbayes.methods.schedules import RAMP
from torchbayes.methods.sgmcmc import stochastic
from torchbayes.methods.sgmcmc.gradient_noise import Noise
from torchbayes.methods.sgmcmc.stochastic import Seen
from torchbayes.model.batches.batch import batch_size

_INTERVAL = 10  # steps from one that is measured to the next, once twice the ramp is over
_FEW = 10  # weights that give no variance


@dataclass(frozen=True)
class State(stochastic.State):
    """Where the chains are; `momentum_MD` is the velocity, and numbers (M,) are float64."""

    step_size_M: Tensor  # ε before its schedule, or 1 where it is given
    length_M: Tensor  # L
    rule: Rule  # of ε in burn-in
    spread: RunningVariance  # of the weights in a quarter of burn-in; (M, 0) where L is given
    noise: Noise
    error_M: Tensor  # E²/D of the last step that was measured
    errors_M: Tensor  # its sum after burn-in
    shares_M: Tensor  # the sum of the shares of noise there
    measured: int  # steps measured there

    @classmethod
    def at(cls, method: Any, state: stochastic.State) -> State:
        """Return the state before the first step."""
        weights_MD = state.weights_MD
        one_M = weights_MD.new_ones(len(weights_MD), dtype=torch.float64)
        scale = method.kinetics.scale(weights_MD.shape[1])
        return cls(
            **vars(state),
            step_size_M=one_M if method.step_size else one_M * scale / 50,
            length_M=one_M * (method.trajectory or scale),
            rule=Rule.empty(one_M),
            spread=RunningVariance.empty(weights_MD[:, :0] if method.trajectory else weights_MD),
            noise=Noise.none(weights_MD),
            error_M=0 * one_M,
            errors_M=0 * one_M,
            shares_M=0 * one_M,
            measured=0,
        )


class Step(NamedTuple):
    """A step, and the state it led to."""

    size_M: Tensor  # ε
    force_MD: Tensor  # A⁻¹ g where it began
    gain_M: Tensor  # ΔK of the kick after refreshment
    new: State


def measured(method: Any, density: Density, seen: Seen, *, step: Step, batch: Any) -> State:
    """Return the state after a step, measured if that is due; in burn-in ε and L follow, or the step is refused."""
    now, (size_M, force_MD, gain_M, new) = seen.now, step
    if now.step >= 2 * RAMP and now.step % _INTERVAL:
        return new
    there, _ = evaluated(density, new.weights_MD, known_MD=now.track.sound_MD, batch=batch)
    _, more_M = method.kinetics.kicked(new.momentum_MD, _force(there.gradient, seen), size_M / 2)
    error_M = gain_M + more_M + (seen.value.log_density - there.log_density)
    size, target = new.weights_MD.shape[1], method.energy_error
    ratio_M = told(error_M, size=size, target=target)
    new = replace(new, error_M=ratio_M * target, noise=_noise(density, seen, force_MD, batch=batch))
    if now.step >= method.burn_in:
        return replace(new, errors_M=new.errors_M + new.error_M, measured=new.measured + 1)
    if method.step_size is None:
        new = _paced(method, now, new, size_M=size_M, ratio_M=ratio_M)
        lost_M = refused(error_M, size=size, target=target)
        weights_MD = choose(lost_M, now.weights_MD, new.weights_MD)
        velocity_MD = choose(lost_M, torch.zeros_like(new.momentum_MD), new.momentum_MD)
        new = replace(new, weights_MD=weights_MD, momentum_MD=velocity_MD)
    return new if method.trajectory else _with_length(method, seen, new)


def _paced(method: Any, now: State, new: State, *, size_M: Tensor, ratio_M: Tensor) -> State:
    """Return the state with ε after a step of size `size_M` and ξ, `ratio_M`.

    Steps that a ramp, a schedule or a return makes shorter than half of ε tell nothing of its energy error.
    """
    told_M = size_M >= 0.5 * now.step_size_M
    rule, longest_M = now.rule.adapted(size_M, ratio_M)
    rule = Rule(*(torch.where(told_M, *sums) for sums in zip(_sums(rule), _sums(now.rule), strict=True)))
    longest_M = torch.where(told_M, longest_M, now.step_size_M)
    if now.step >= method.burn_in // 2:
        epoch = now.track.steps_per_epoch
        quiet_M = new.noise.longest(method.noise_share, now.length_M, steps_per_epoch=epoch)
        longest_M = torch.minimum(longest_M, quiet_M)
    return replace(new, rule=rule, step_size_M=longest_M)


def _sums(rule: Rule) -> tuple[Tensor, Tensor]:
    return rule.sum_M, rule.weight_M


def _force(gradient_MD: Tensor, seen: Seen) -> Tensor:
    """Return A⁻¹ g."""
    return gradient_MD if seen.mass_MD is None else gradient_MD / seen.mass_MD


def _noise(density: Any, seen: Seen, force_MD: Tensor, *, batch: Any) -> Noise:
    """Return the noise with that of one more batch; ValueError if the first batch has a single row."""
    now: State = seen.now
    num_data = getattr(density, "num_data", 1)
    if batch is None or (rows := batch_size(batch.inputs, 1)) == num_data:
        return now.noise
    if rows == 1:
        if now.step == 0:
            raise ValueError("a batch has one row, so that the noise of its gradient is not known. Take two or more.")
        return now.noise
    half = batch.map(lambda rows_MB: rows_MB[:, : rows // 2])
    value, _ = evaluated(density, now.weights_MD, known_MD=now.track.sound_MD, batch=half)
    return now.noise.after(_force(value.gradient, seen), force_MD, rows=rows, num_data=num_data)


def _with_length(method: Any, seen: Seen, new: State) -> State:
    """Return the state with its weights among those whose spread gives L, and at the end of a quarter with L."""
    quarter, after = (4 * step // method.burn_in for step in (seen.now.step, seen.now.step + _INTERVAL))
    if quarter not in (1, 2):
        return new
    spread = new.spread.collect(new.weights_MD)
    if after == quarter or spread.count < _FEW:
        return replace(new, spread=spread)
    deviations_MD = (spread.squares_MD / (spread.count - 1)).sqrt()
    deviations_MD = deviations_MD if seen.mass_MD is None else deviations_MD * seen.mass_MD
    length_M = torch.linalg.vector_norm(deviations_MD, dim=-1, dtype=torch.float64)
    length_M = torch.where(length_M > 0, length_M, new.length_M)  # a chain that has not moved has no spread
    return replace(new, spread=RunningVariance.empty(new.weights_MD), length_M=length_M)
