"""The weight of the KL divergence, where it is left open: chosen by trial runs, on rows that others are held out of.

β begins at 1, which is Bayes. While that makes the held-out rows more likely, it is lowered by a factor of √10:

    β* = β_k,    β_k = 10^{−k/2},    k the first with v(β_{k+1}) > v(β_k) − 0.02

where v is their mean negative log likelihood under the average prediction, in nats a row. A normal distribution of
independent weights is far from the posterior of a network. Where there are few rows, to come closer to the prior gains
its bound more than to explain the data, so that at β = 1 it underfits. Less weight on the divergence is what is
commonly done about it (Wenzel et al. 2020 list examples); held-out rows say how much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.methods.optimise.trials import lowered
from torchbayes.methods.protocol import Chosen, Fold
from torchbayes.model.network import Buffers

WEIGHTS = tuple(round(10 ** (-power / 2), 4) for power in range(7))  # 1 to 0.001


def choose_kl_weight(
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
    """Return the weight of the KL divergence that held-out rows choose.

    Args:
        method: the other settings.
        density: a target of the rows that are not held out, in training mode.
        folds: rows to train on with those held out, a trial run for each.
        weights_MD: where the trial runs start, (1, D).
        buffers: the network's buffers there.
        seeds: of the member, one.
        scale_MD: standard deviations to begin with, as of `trial`.
        told: called after each weight with their number, the largest there can be, and the negative log likelihood.

    Returns:
        `kl_weight`, and a record of the search; 1 where the runs diverged.
    """
    begin = {"weights_MD": weights_MD, "buffers": buffers, "seeds": seeds, "scale_MD": scale_MD}
    chosen, nlls = lowered(
        WEIGHTS,
        lambda _: density,
        lambda weight: replace(method, members=1, kl_weight=weight),
        folds=folds,
        told=told,
        **begin,
    )
    tried = [{"kl_weight": weight, "nll": nll} for weight, nll in nlls.items()]
    return Chosen({"kl_weight": chosen}, {"tried": tried})
