"""The scale of a prior that was left open: chosen by trial runs of two chains, on rows that others are held out of.

The prior N(0, σ²) of every weight begins at σ = 1. While that makes the held-out rows more likely, σ is halved:

    σ* = σ_k,    σ_k = 2^−k,    k the first with v(σ_{k+1}) > v(σ_k) − 0.02

where v is their mean negative log likelihood under the average prediction of two chains, in nats a row. A standard
normal prior suits most tables; where there are few rows and much noise a network drawn from it varies too much, and
even its exact posterior predicts worse than a network whose training was stopped early.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.methods.optimise.trials import lowered
from torchbayes.methods.protocol import Chosen, Fold
from torchbayes.model.model import having_scale
from torchbayes.model.network import Buffers

SCALES = tuple(2.0**-power for power in range(7))  # 1 to 1/64


def choose_scale(
    method: Any,
    density: LogDensity,
    folds: Sequence[Fold],
    *,
    weights_MD: Tensor,
    buffers: Buffers,
    seeds: Sequence[int],
    scale_MD: Tensor | None = None,
    told: Callable[[int, int, float], object] = lambda *_: None,
) -> Chosen:
    """Return the scale of the prior that held-out rows choose.

    Args:
        method: settings of a method on minibatches.
        density: a target of the rows that are not held out, of a model whose prior is open.
        folds: rows to sample on with those held out, a trial run for each.
        weights_MD: where its members start, (M, D).
        buffers: the network's buffers there.
        seeds: of the members.
        scale_MD: standard deviations to begin with, as of `trial`.
        told: called after each scale with their number, the largest there can be, and the negative log likelihood.

    Returns:
        The scale, and a record of the search; 1 where chains diverged.
    """
    chosen, nlls = lowered(
        SCALES,
        lambda scale: LogDensity(having_scale(density.model, scale), density.num_data, None, plan=method.plan),
        lambda _: replace(method, **{method.needs.members: len(seeds)}),
        folds=folds,
        told=told,
        weights_MD=weights_MD,
        buffers=buffers,
        seeds=seeds,
        scale_MD=scale_MD,
    )
    return Chosen({}, {"tried": [{"prior_scale": scale, "nll": nll} for scale, nll in nlls.items()]}, chosen)
