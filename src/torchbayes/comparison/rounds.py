"""Empirical Bayes: train, approximate by Laplace, choose the prior by the evidence, train again under it.

A Laplace approximation needs a mode of the model whose evidence it estimates. A prior chosen at a mode moves the mode,
so training and choosing the prior alternate, towards the fixed point of MacKay (1992), with networks in the place of
his linear models. The weights shrink and grow with the prior, so plain alternation approaches the fixed point slowly.
Each round therefore takes a longer step than the evidence at the present weights suggests: with x the log precision
that the weights were trained under and y(x) the one that the evidence then chooses, the next is x + (y − x)/(1 − ρ), ρ
the slope of y between rounds (Wegstein 1958).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from torchbayes.driver.progress import Callback
from torchbayes.health.mode import AWAY
from torchbayes.methods.laplace.laplace import Laplace
from torchbayes.methods.laplace.tuning import Groups, tune
from torchbayes.methods.optimise.map import MAP
from torchbayes.model import Model
from torchbayes.posteriors import LaplacePosterior, Point
from torchbayes.posteriors.problems import ProblemWarning
from torchbayes.selection import fit

_STRIDE, _LONGEST = 1.5, 4.0  # 1/(1 − ρ) before a slope is known, and its maximum
_WIDEST = 16.0  # maximum factor on a precision per round, because weights that the data do not determine have no bound


@dataclass(frozen=True)
class Round:
    """A trained network with its Laplace approximations.

    `fitted` is under the prior that the weights were trained under. `tuned` is under the prior that maximises the
    evidence at these weights; its mode is elsewhere. `at_mode` says, by the gradient, whether the weights are at a
    mode.
    """

    mode: Point
    fitted: LaplacePosterior
    tuned: LaplacePosterior
    at_mode: bool


def train_in_rounds(
    model: Model,
    data: Any,
    first: MAP,
    *,
    laplace: Laplace,
    groups: Groups = "scalar",
    again: Sequence[MAP] = (),
    seed: int = 0,
    callbacks: Sequence[Callback] | None = (),
) -> list[Round]:
    """Train, choose the prior by the evidence, and train again under it, starting from the weights of the last round.

    `first` trains the first round and each of `again` a further one. The `prior` of `laplace` should be "model".
    `groups` are the free factors on the prior's precision, as in `tune`. Returns all rounds, in order; their problems
    are in the posteriors, whose use warns of them.
    """
    rounds: list[Round] = []
    with warnings.catch_warnings():  # the posteriors keep the problems, and their use warns
        warnings.simplefilter("ignore", ProblemWarning)
        for method in (first, *again):
            current = _next(rounds) if rounds else model
            start = rounds[-1].mode if rounds else None
            mode = cast("Point", fit(current, data, method, start=start, seed=seed, callbacks=callbacks))
            fitted, at_mode = laplace_at(current, data, laplace, start=mode)
            rounds.append(Round(mode, fitted, tune(fitted, prior=groups), at_mode))
    return rounds


def _next(rounds: Sequence[Round]) -> Model:
    """Return the model to train under in the next round."""
    last = rounds[-1].fitted
    gap_D = rounds[-1].tuned.strength_D.log()
    if (gap_D == 0).all():
        return last.model
    stride_D = torch.full_like(gap_D, _STRIDE)
    if len(rounds) > 1:
        # y − x changes by (ρ − 1) times the change of x; without a change of x there is no slope
        moved_D = (last.reference_MD[0] / rounds[-2].fitted.reference_MD[0]).log()
        closed_D = rounds[-2].tuned.strength_D.log() - gap_D
        stride_D = torch.where(moved_D.abs() > 1e-4, moved_D / closed_D, stride_D).nan_to_num(nan=_STRIDE)
        stride_D = torch.where(stride_D > 0, stride_D, _LONGEST).clamp(1.0, _LONGEST)
    return last.with_strength((gap_D * stride_D).exp().clamp(1 / _WIDEST, _WIDEST)).model


def best_round(rounds: Sequence[Round]) -> Round:
    """Return the round with the largest evidence, each under the prior that it was trained under."""
    return max(rounds, key=lambda round_: float(round_.fitted.log_evidence()))


def laplace_at(model: Model, data: Any, method: Laplace, *, start: Tensor | Point) -> tuple[LaplacePosterior, bool]:
    """Return a Laplace posterior at weights, and whether they are at a mode, as a value instead of a warning.

    Other problems stay with the posterior.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProblemWarning)
        posterior = cast("LaplacePosterior", fit(model, data, method, start=start, callbacks=()))
    others = tuple(problem for problem in posterior.problems if AWAY not in problem)
    return replace(posterior, problems=others), len(others) == len(posterior.problems)
