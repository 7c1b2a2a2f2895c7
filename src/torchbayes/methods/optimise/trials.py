"""Which settings of a method predict held-out rows best: a trial run of one member for each of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.methods.optimise.health import log_likelihoods, num_targets
from torchbayes.methods.protocol import DivergedError, Fold
from torchbayes.model.network import Buffers
from torchbayes.posteriors.posterior import Posterior

_DRAWS = 16  # at most


def most_likely(
    method: Any,
    candidates: Sequence[Mapping[str, Any]],
    density: LogDensity,
    *,
    folds: Sequence[Fold],
    weights_MD: Tensor,
    buffers: Buffers,
    seed: int,
) -> tuple[Mapping[str, Any], list[float]]:
    """Return the settings under which held-out rows are most likely, and how likely they are under each.

    Args:
        method: the other settings, of a method on minibatches.
        candidates: settings to try, by name; the first of equals is chosen.
        density: the target of the rows that are not held out, in training mode.
        folds: rows to train on with those held out, a trial run for each.
        weights_MD: where they begin, (1, D).
        buffers: the network's buffers there.
        seed: of the run.

    Returns:
        One of the candidates, and for each of them the mean negative log likelihood of the held-out rows under the
        average prediction, in nats a target; infinite where a run diverged.
    """
    nlls, begin = [], {"weights_MD": weights_MD, "buffers": buffers, "seed": seed}
    for settings in candidates:
        having = replace(method, **settings)
        try:
            found = [_score(trial(having, density, fold, **begin), fold) for fold in folds]
        except DivergedError:
            found = [math.inf]
        nlls.append(sum(found) / len(found))
    return candidates[nlls.index(min(nlls))], nlls


def trial(
    method: Any, density: LogDensity, fold: Fold, *, weights_MD: Tensor, buffers: Buffers, seed: int
) -> Posterior:
    """Return the posterior of one member after a run on the rows of a fold that are not held out."""
    per_epoch = fold.rows.steps_per_epoch
    state = method.init(density, weights_MD, buffers, seeds=[seed], steps_per_epoch=per_epoch)
    for epoch in range(method.length(per_epoch) // per_epoch):
        for batch in fold.rows.epoch([seed], epoch):
            state, _ = method.step(density, state, batch, donate=True)
    return method.posterior(density, state).calibrated(fold.rows.inputs)


def _score(posterior: Posterior, fold: Fold) -> float:
    """Return the mean negative log likelihood of the held-out rows of a fold."""
    draws = min(posterior.default_draws, _DRAWS)
    seen_SB = log_likelihoods(posterior, fold.held_out, draws=draws)[:, 0]
    total = float((seen_SB.logsumexp(0) - math.log(draws)).sum())
    return -total / num_targets(posterior.model, fold.held_out)
