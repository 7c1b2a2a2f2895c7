"""Restarts of chains on minibatches that diverge: each goes back to sound weights, and on with half the step size.

Such a chain has no proposals to reject. It has diverged where its density cannot be computed, where that or its
gradient is not finite, and where

    log p(w) < log p(w₀) − 1000 (N + D)/min(T, 1) − 10 |log p(w₀)|

with N rows, D weights and w₀ its start: no law keeps a chain there, and no minibatch moves the estimate as far. It
then begins again, as at a start, from weights that it had at most 100 steps before. The other chains are not affected.
The eighth time it ends, and stays there. Its draws of the 200 steps before it diverged are replaced by their nearest
other draws. On a CPU every step is checked; elsewhere, where a check waits for the device, every 50th and the last of
an epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from torchbayes.density.dynamics import Density, Value
from torchbayes.methods.finite import FOR_STEPS, lag_of
from torchbayes.methods.protocol import DivergedError

APART = 100  # steps between weights that are kept to go back to
MOST = 8  # times that a chain may diverge
FAR = 1000.0  # nats per row and weight by which a chain that has diverged is below its start


@dataclass(frozen=True)
class Track:
    """What is known of chains that may diverge."""

    sound_MD: Tensor = field(metadata=FOR_STEPS)  # weights to go back to
    bound_M: Tensor  # log density below which a chain has diverged, float64
    strayed_M: Tensor  # which chains have diverged since the last check, bool
    lost_MR: Tensor  # steps at which a divergence was seen, int64 (M, 8); −1 for none yet
    times: tuple[int, ...]  # how often each has diverged
    begun: tuple[int, ...]  # the step at which each began, or began again
    steps_per_epoch: int
    fault: str = ""  # the first exception that the density raised, or empty

    @classmethod
    def of(cls, weights_MD: Tensor, steps_per_epoch: int) -> Self:
        """Return the track before the first step."""
        members = len(weights_MD)
        none_M = weights_MD.new_zeros(members, dtype=torch.float64)
        lost_MR = torch.full((members, MOST), -1, device=weights_MD.device)
        zeros = (0,) * members
        return cls(weights_MD.clone(), none_M, none_M > 0, lost_MR, zeros, zeros, steps_per_epoch)

    def ages(self, step: int) -> list[int]:
        """Return how many steps each chain has taken since it began, or began again."""
        return [step - begun for begun in self.begun]

    def lost(self) -> list[list[int]]:
        """Return the steps at which each chain was seen to have diverged."""
        return [[step for step in steps if step >= 0] for steps in self.lost_MR.tolist()]

    def factors(self) -> list[float]:
        """Return the factor on the step size of each chain; 0 where it has ended."""
        return [0.5**count if count < MOST else 0.0 for count in self.times]

    def check(self, method: Any, step_size: float) -> None:
        """Raise DivergedError if every chain has ended.

        The message names the length of `method` and ε before a chain's own factor.
        """
        if min(self.times) < MOST:
            return
        last = int(self.lost_MR.max())
        began = f"the chain diverged at step {last} of {method.steps}"
        advice = "Lower the step size, or look for extreme values in the data."
        if self.fault:
            began = f"the log density cannot be computed at step {last} of {method.steps}: {self.fault}"
            advice = "Lower the step size, or mend the density."
        raise DivergedError(
            f"{began}. A chain on minibatches has no proposals to reject; each has gone back {MOST - 1} times to where "
            f"it was sound, at last with a step size of {0.5 ** (MOST - 1) * step_size:.3g} in the place of "
            f"{step_size:.3g}. {advice}"
        )

    def seen(self, step: int, weights_MD: Tensor, value: Value, *, density: Density, fault: str) -> Track:
        """Return the track after the density of a step was seen; every 100th time it keeps the weights."""
        health_M = value.log_density + torch.linalg.vector_norm(value.gradient, dim=-1)
        bound_M = _bound(value, density) if step == 0 else self.bound_M
        strayed_M = self.strayed_M | ~torch.isfinite(health_M) | (value.log_density < bound_M)
        sound_MD = self.sound_MD
        if step % APART == 0:
            sound_MD = torch.where(strayed_M.unsqueeze(-1), sound_MD, weights_MD)
        return replace(self, sound_MD=sound_MD, bound_M=bound_M, strayed_M=strayed_M, fault=self.fault or fault)


def _bound(value: Value, density: Density) -> Tensor:
    """Return the log density below which chains have diverged, (M,)."""
    start_M, model = value.log_density, getattr(density, "model", None)
    size = getattr(density, "num_data", 1) + value.gradient.shape[-1]
    margin = FAR * size / (1.0 if model is None else min(model.temperature, 1.0))
    lowest = torch.finfo(torch.float64).min
    return (start_M - margin - 10 * start_M.abs()).nan_to_num(nan=lowest, neginf=lowest).double()


def gone_back(state: Any, fresh: Mapping[str, Any]) -> tuple[Any, Tensor]:
    """Return the state one step on, and which chains have gone back to sound weights, (M,), float64 on the CPU.

    The state may be overwritten. Momentum and squares of chains that go back begin with 0; `fresh` gives the initial
    values of other tensors of the state, by name.
    """
    track, step = state.track, state.step
    ends = (step + 1) % track.steps_per_epoch == 0
    if ends:  # what is saved must be finite, and no later density has been computed that would show it
        tensors = (getattr(state, name) for name in ("weights_MD", "momentum_MD", "squares_MD", *fresh))
        sums_M = [tensor.view(len(tensor), -1).sum(1, dtype=torch.float64) for tensor in tensors]  # `isfinite` is slow
        finite_M = torch.isfinite(torch.stack(sums_M)).all(0)
        strayed_M = track.strayed_M | ~finite_M
        track = replace(track, strayed_M=strayed_M)
    strayed = track.strayed_M.tolist() if ends or step % lag_of(track.sound_MD) == 0 else [False]
    if not any(strayed):
        return replace(state, track=track, step=step + 1), torch.zeros(len(track.times), dtype=torch.float64)
    going_M, lost_MR = track.strayed_M, track.lost_MR.clone()
    for m, has_strayed in enumerate(strayed):
        if has_strayed and track.times[m] < MOST:
            lost_MR[m, track.times[m]] = step
    state.weights_MD[going_M] = track.sound_MD[going_M]
    for name, first in {"momentum_MD": 0.0, "squares_MD": 0.0, **fresh}.items():
        getattr(state, name)[going_M] = first
    times = tuple(min(count + has_strayed, MOST) for count, has_strayed in zip(track.times, strayed, strict=True))
    begun = tuple(step + 1 if has_strayed else at for has_strayed, at in zip(strayed, track.begun, strict=True))
    track = replace(track, strayed_M=torch.zeros_like(going_M), lost_MR=lost_MR, times=times, begun=begun)
    return replace(state, track=track, step=step + 1), torch.tensor(strayed).double()


def mended(weights_MSD: Tensor, steps: Sequence[int], lost: Sequence[Sequence[int]]) -> Tensor:
    """Return draws in which those that chains took while they diverged are replaced by their nearest other ones.

    `steps` are those after which each draw was taken, and `lost` those at which each chain was seen to have diverged.
    """
    if not any(lost) or not len(steps):
        return weights_MSD
    at_S, mended_MSD = torch.tensor(steps), weights_MSD.clone()
    for m, lost_steps in enumerate(lost):
        before_LS = torch.tensor(lost_steps).view(-1, 1) - at_S
        lost_S = ((before_LS >= 0) & (before_LS < 2 * APART)).any(0)
        sound = (~lost_S).nonzero()[:, 0]
        if lost_S.any() and len(sound):
            nearest_S = sound[(sound - torch.arange(len(at_S)).unsqueeze(-1)).abs().argmin(-1)]
            mended_MSD[m] = weights_MSD[m, nearest_S.to(weights_MSD.device)]
    return mended_MSD
