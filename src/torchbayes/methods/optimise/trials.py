"""Which settings of a method predict held-out rows best: a trial run of one member for each of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.methods.constant import num_targets
from torchbayes.methods.optimise.health import log_likelihoods
from torchbayes.methods.protocol import DivergedError, Fold
from torchbayes.model.likelihoods.protocol import scored
from torchbayes.model.model import Batch
from torchbayes.model.network import Buffers
from torchbayes.posteriors.posterior import Posterior, on_trial
from torchbayes.predictive.predict import predict

_DRAWS = 16  # at most
_FOLDS, _EQUAL = 3, 0.02  # of `lowered`: folds at most, and nats that are no gain
_ROWS = 500  # of each fold that predictions are made for, in whole batches


def most_likely(
    method: Any,
    candidates: Sequence[Mapping[str, Any]],
    density: LogDensity,
    *,
    folds: Sequence[Fold],
    weights_MD: Tensor,
    buffers: Buffers,
    seeds: Sequence[int],
) -> tuple[Mapping[str, Any], list[float]]:
    """Return the settings under which held-out rows are most likely, and how likely they are under each.

    Args:
        method: the other settings, of a method on minibatches.
        candidates: settings to try, by name; the first of equals is chosen.
        density: the target of the rows that are not held out, in training mode.
        folds: rows to train on with those held out, a trial run for each.
        weights_MD: where they begin, (1, D).
        buffers: the network's buffers there.
        seeds: of the member, one.

    Returns:
        One of the candidates, and for each of them the mean negative log likelihood of the held-out rows under the
        average prediction, in nats a target; infinite where a run diverged.
    """
    nlls, begin = [], {"weights_MD": weights_MD, "buffers": buffers, "seeds": seeds}
    for settings in candidates:
        having = replace(method, **settings)
        try:
            found = [_score(trial(having, density, fold, **begin), fold) for fold in folds]
        except DivergedError:
            found = [math.inf]
        nlls.append(sum(found) / len(found))
    return candidates[nlls.index(min(nlls))], nlls


def trial(
    method: Any,
    density: LogDensity,
    fold: Fold,
    *,
    weights_MD: Tensor,
    buffers: Buffers,
    seeds: Sequence[int],
    scale_MD: Tensor | None = None,
    after_epoch: Callable[[], object] = lambda: None,
) -> Posterior:
    """Return the posterior after a run on the rows of a fold that are not held out.

    Args:
        method: the settings.
        density: the target.
        fold: the rows.
        weights_MD: where the members begin.
        buffers: the network's buffers there.
        seeds: one seed per member.
        scale_MD: standard deviations that they begin with; None for the method's own.
        after_epoch: called after each epoch.
    """
    per_epoch = fold.rows.steps_per_epoch
    state = method.init(density, weights_MD, buffers, seeds=seeds, steps_per_epoch=per_epoch)
    state = state if scale_MD is None else method.spread(density, state, scale_MD)
    shelf = _Kept()
    for epoch in range(-(-method.length(per_epoch) // per_epoch)):
        for batch in fold.rows.epoch(seeds, epoch):
            if method.visit(state) is None:
                break
            state, _ = method.step(density, state, batch, donate=True)
            shelf.add(method.draw(state))
        after_epoch()
    return on_trial(method.posterior(density, state, shelf).calibrated(fold.rows.inputs))


class _Kept:
    """The draws of a trial run, in memory."""

    def __init__(self) -> None:
        self._draws: list[Tensor] = []

    def add(self, weights_MD: Tensor | None) -> None:
        """Keep a copy of the weights; None is ignored."""
        if weights_MD is not None:
            self._draws.append(weights_MD.clone())

    def weights_MSD(self) -> Tensor:
        """Return them, (M, S, D)."""
        return torch.stack(self._draws, 1)


def lowered(
    values: Sequence[float],
    density: Callable[[float], LogDensity],
    method: Callable[[float], Any],
    *,
    folds: Sequence[Fold],
    told: Callable[[int, int, float], object],
    **begin: Any,
) -> tuple[float, dict[float, float]]:
    """Return the first of falling values of a setting after which the next gains less than 0.02 nats a held-out row.

    The search goes down step by step, and ends where a step does not make the held-out rows more likely by as much.

    Args:
        values: the first is what the setting is where nothing is gained.
        density: a target under a value.
        method: the settings under a value.
        folds: rows to train on with those held out; at most three, as values that matter differ by more than the noise
            of so many.
        told: called after each value with their number, the largest there can be, and the negative log likelihood.
        **begin: weights, buffers and seeds, as of `trial`.

    Returns:
        The value, and the mean negative log likelihood of the held-out rows under the average prediction for each value
        that was tried, in nats a row; infinite where a run diverged.
    """
    nlls: dict[float, float] = {}
    chosen, folds = values[0], folds[:_FOLDS]
    for value in values:
        try:
            target, having = density(value), method(value)
            nlls[value] = mean_nll([trial(having, target, fold, **begin) for fold in folds], folds)
        except DivergedError:
            nlls[value] = math.inf
        told(len(nlls), len(values), nlls[value])
        if value != chosen and not nlls[value] < nlls[chosen] - _EQUAL:
            break
        chosen = value
    return chosen, nlls


def _score(posterior: Posterior, fold: Fold) -> float:
    """Return the mean negative log likelihood of the held-out rows of a fold."""
    draws = min(posterior.default_draws, _DRAWS)
    seen_SB = log_likelihoods(posterior, fold.held_out, draws=draws)[:, 0]
    total = float((seen_SB.logsumexp(0) - math.log(draws)).sum())
    return -total / num_targets(posterior.model, fold.held_out)


def mean_nll(posteriors: Sequence[Any], folds: Sequence[Fold]) -> float:
    """Return the mean negative log likelihood of held-out rows under predictive distributions, in nats a row.

    It is infinite where no row counts, as all are ignored or have weight 0.

    Args:
        posteriors: what `predict` takes, one for each fold.
        folds: of whose held-out rows at most about 500 each are predicted.
    """
    total = weight = 0.0
    for posterior, fold in zip(posteriors, folds, strict=True):
        for batch in _some(fold.held_out):
            predictive = predict(posterior, batch.inputs)
            weights_B = scored(predictive.likelihood, predictive.outputs_SBK[0], batch.targets).row_weights
            log_prob_B = predictive.log_prob(batch.targets).double()
            weights_B = torch.ones_like(log_prob_B) if weights_B is None else weights_B.double()
            total -= float((weights_B * log_prob_B).sum())
            weight += float(weights_B.sum())
    return total / weight if weight else math.inf


def _some(batches: Sequence[Batch]) -> Iterator[Batch]:
    """Yield the first batches, with about as many rows as are needed."""
    rows = 0
    for batch in batches:
        if rows >= _ROWS:
            return
        rows += batch.size
        yield batch
