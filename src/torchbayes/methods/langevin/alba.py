"""ALBA: what chains without rejections learn in burn-in, each for itself (Robnik and Seljak 2024).

The step size ε is the one at which the variance of a step's energy error E is a target, per weight:

    Var[E]/D = v,     ξ_t = E_t²/(D v),     r_t = exp(−½ (log ξ_t/(6 · 1.5))²)
    X ← ρ X + r_t ξ_t/ε_t⁶,     T ← ρ T + r_t,     ρ = 149/151,     ε_{t+1} = (X/T)^(−1/6)

because E² grows like ε⁶; the weights r keep a single error from deciding much. A normal E meets 0.97 v. In three
windows, each twice as long as the one before, the mass is learned, and at the end of each the sums begin anew. In the
last third of burn-in ε and the mass stay, and give the length L on which velocities are forgotten:

    L = a ε mean_i τ_i,     τ_i = (steps)/(effective draws of weight i)

What a step that failed reports decides whether ε is found. If it were nothing, ε would grow without end. So a step is
refused where its error is above √(1000 D v), or not finite; the chain then stays and takes a new direction, and the
rule is told the error that the step had, or 1000 times that bound if it was larger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchbayes.density.dynamics import Density
from torchbayes.diagnostics import ess
from torchbayes.methods.mcmc.adaptation import LEARNED, LEAST_BURN_IN, StepSize
from torchbayes.methods.mcmc.mass import renewed

_MEMORY, _TRUST = 150, 1.5  # steps that X and T remember, and factor of e⁶ in E² within which an error counts
_REFUSED, _CAP = 1000.0, 1000.0  # E² over its target above which a step is refused, and bound on |E| beyond that
# The beginning, and the ends of three windows, in shares of the steps in which ε and the mass are learned. A step moves
# a chain much less than an iteration of HMC does: a window of few steps, or one on the way to the bulk, sees too little
# of the wide directions, which are then thought narrow, and narrower again in the next.
_SHARES = (0.15, 0.25, 0.45, 0.85)
_FEW = 10.0  # effective draws of a weight below which its memory is not known
# steps and weights whose memory is computed, and their product: the bound on what it needs
_ROWS, _COLUMNS, _NUMBERS = 10_000, 256, 1 << 20
_BLOCK = 64  # steps that are stored together, so that a step copies no more than these


@dataclass(frozen=True)
class Rule:
    """The sums of the step size's rule, float64 (M,)."""

    sum_M: Tensor  # X
    weight_M: Tensor  # T

    @classmethod
    def empty(cls, like_M: Tensor) -> Rule:
        """Return the sums before any step."""
        return cls(torch.zeros_like(like_M), torch.zeros_like(like_M))

    def adapted(self, step_size_M: Tensor, ratio_M: Tensor) -> tuple[Rule, Tensor]:
        """Return the sums and the step sizes after steps of ξ, `ratio_M`."""
        ratio_M = ratio_M.to(step_size_M) + 1e-8
        trust_M = (-0.5 * (ratio_M.log() / (6 * _TRUST)).square()).exp()
        decay = (_MEMORY - 1) / (_MEMORY + 1)
        sum_M = decay * self.sum_M + trust_M * ratio_M / step_size_M.pow(6)
        rule = Rule(sum_M, decay * self.weight_M + trust_M)
        return rule, (rule.sum_M / rule.weight_M).pow(-1 / 6)


class Stages(NamedTuple):
    """When burn-in learns what, in steps from 1."""

    first: int  # steps before the first window of a mass
    ends: tuple[int, ...]  # steps that end a window
    settled: int  # steps in which ε and the mass are learned; the path after them gives L
    end: int


@lru_cache
def stages(steps: int, *, measures: bool) -> Stages:
    """Return the stages of a tuning of some steps; without L to be measured all are for ε and the mass."""
    settled = steps - steps // 3 if measures else steps
    if settled < LEAST_BURN_IN:
        return Stages(settled, (), settled, steps)
    first, *ends = (round(share * settled) for share in _SHARES)
    return Stages(first, tuple(ends), settled, steps)


def refused(error_M: Tensor, *, size: int, target: float) -> Tensor:
    """Return the steps whose energy error is not finite or far above its target v, bool (M,)."""
    return ~(error_M.square() <= _REFUSED * size * target)


def told(error_M: Tensor, *, size: int, target: float) -> Tensor:
    """Return ξ of steps, bounded where they were refused, float64 (M,)."""
    most = _REFUSED * _CAP**2
    ratio_M = error_M.square() / (size * target)
    return ratio_M.nan_to_num(nan=most, posinf=most).clamp(max=most)


def tuned(method: Any, density: Density, state: Any, *, error_M: Tensor, steps: int, factor: float) -> Any:
    """Return the state after a step of a tuning of `steps` steps, whose energy errors were `error_M`.

    `factor` is a of the rule for L. What is given in the settings stays as it is.
    """
    plan, size = stages(steps, measures=method.trajectory is None), state.weights_MD.shape[1]
    if state.step <= plan.settled:
        ratio_M = told(error_M, size=size, target=method.energy_error)
        return _stepped(method, density, state, plan=plan, ratio_M=ratio_M)
    stretch = plan.end - plan.settled
    stride = -(-stretch // _ROWS)
    row, rest = divmod(state.step - plan.settled, stride)
    if rest == 0:
        columns = max(1, min(size, _COLUMNS, _NUMBERS * stride // stretch))
        state = replace(state, path=_longer(state.path, state.weights_MD, row=row - 1, columns=columns))
    if state.step < plan.end:
        return state
    length_M = state.trajectory_M
    if state.path:
        path_MRP = torch.cat([state.path[name] for name in sorted(state.path)], 1)
        found_M = factor * state.step_size.step_size_M * stride * _memory(path_MRP).to(length_M)
        length_M = torch.where(found_M.isfinite() & (found_M > 0), found_M, length_M)
    return replace(state, trajectory_M=length_M, path={})


def _stepped(method: Any, density: Density, state: Any, *, plan: Stages, ratio_M: Tensor) -> Any:
    """Return the state with the step size and the mass that follow from one more step."""
    if method.step_size is None:
        rule, step_size_M = state.rule.adapted(state.step_size.step_size_M, ratio_M)
        state = replace(state, rule=rule, step_size=StepSize.at(step_size_M))
    if method.mass in LEARNED and plan.ends and plan.first < state.step <= plan.ends[-1]:
        state = replace(state, spread=state.spread.collect(state.weights_MD))
        if state.step in plan.ends:
            state = renewed(method, density, state, least=0)
            state = replace(state, rule=Rule.empty(state.rule.sum_M))
    return state


def _longer(path: Mapping[str, Tensor], weights_MD: Tensor, *, row: int, columns: int) -> dict[str, Tensor]:
    """Return the path with some columns of the present weights, spread over all of them, as its row of a number."""
    size = weights_MD.shape[1]
    columns_P = torch.arange(columns, device=weights_MD.device) * size // columns
    row_M1P, name = weights_MD[:, columns_P].unsqueeze(1), f"{row // _BLOCK:08}"  # sorted as numbers are
    return {**path, name: torch.cat([path[name], row_M1P], 1) if name in path else row_M1P}


def _memory(path_MRP: Tensor) -> Tensor:
    """Return the mean over weights of rows per effective draw, float64 (M,); NaN where too few draws tell.

    Weights that do not move are left out.
    """
    chains, rows, _ = path_MRP.shape
    if rows < _FEW:
        return torch.full((chains,), math.nan, dtype=torch.float64)
    rows_per_ess = []
    for path_RP in path_MRP.double().cpu():
        sizes_P = ess(path_RP.unsqueeze(0))
        sizes_P = sizes_P[sizes_P.isfinite()]
        rows_per_ess.append((rows / sizes_P).mean() if len(sizes_P) else torch.tensor(math.nan))
    return torch.stack(rows_per_ess).double()
