"""Where Laplace begins if nobody says: at weights of a training run, under a prior that held-out rows choose.

A run whose length held-out rows chose ends before its mode, with weights that predict well as they are. The evidence
takes them for a mode, and a Gaussian under the prior that it chooses is then too wide: on eight of fifteen tables its
linearised predictive was worse than the network alone, by up to 0.5 nats. So the same held-out rows choose the factor d
on the precision of the prior: of those whose mean negative log likelihood, in nats a row, is within 0.005 of the least,
the smallest, which leaves the posterior as wide as these rows allow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.methods.optimise.length import choose_epochs
from torchbayes.methods.optimise.map import MAP
from torchbayes.methods.optimise.trials import trial
from torchbayes.methods.protocol import Chosen, Fold
from torchbayes.model.likelihoods.protocol import scored
from torchbayes.model.model import Batch, Model
from torchbayes.model.network import Buffers, refuse_by_batch
from torchbayes.posteriors.laplace import LaplacePosterior
from torchbayes.predictive.linearised import Linearised
from torchbayes.predictive.predict import predict

SEEKER = MAP()
"""The training whose weights a Gaussian is put around."""

FACTORS = tuple(10.0 ** (power / 2) for power in range(-2, 11))  # 0.1 to 100,000
_EQUAL = 0.005  # nats a row
_ROWS = 500  # of each fold that the predictions are made for, in whole batches


def search(
    method: Any,
    model: Model,
    folds: Sequence[Fold],
    *,
    weights_MD: Tensor,
    buffers: Buffers,
    seed: int,
    told: Callable[[int, int, float], object] = lambda *_: None,
) -> Chosen:
    """Return what held-out rows choose: how long to train, and the prior.

    Args:
        method: settings of `Laplace`; its prior is chosen if that is to be one factor.
        model: the model.
        folds: rows to train on with those held out, a run for each.
        weights_MD: where training begins, (1, D).
        buffers: the network's buffers there.
        seed: of the run.
        told: as `choose_epochs` takes it.

    Returns:
        `prior`, the factor d; and a record of the search, in which `mode` holds settings of the training.
    """
    refuse_by_batch(model.network)
    begin = {"weights_MD": weights_MD, "buffers": buffers, "seed": seed}
    num_data = folds[0].rows.num_data
    training = LogDensity(model, num_data, None, plan="auto", training=True)
    found = choose_epochs(SEEKER, training, folds, told=told, **begin)
    record = {**found.record, "mode": found.settings}
    if not found.settings or method.prior != "scalar" or method.noise:
        return Chosen({}, record)
    seeker, around = replace(SEEKER, **found.settings), replace(method, prior="model", check_mode=False)
    density = LogDensity(model, num_data, None, plan=method.plan)
    posteriors = []
    for fold in folds:
        point: Any = trial(seeker, training, fold, **begin)
        there = {"weights_MD": point.weights_MD, "buffers": point.buffers_M or {}, "seed": seed}
        posteriors.append(trial(around, density, fold, **there))
    if any(bool((posterior.strength_D == 0).any()) for posterior in posteriors):  # flat: there is nothing to multiply
        return Chosen({}, record)
    nlls = [_nll([_under(p, factor) for p in posteriors], folds) for factor in FACTORS]
    chosen = next(factor for factor, nll in zip(FACTORS, nlls, strict=True) if nll <= min(nlls) + _EQUAL)
    tried = [{"prior": factor, "nll": nll} for factor, nll in zip(FACTORS, nlls, strict=True)]
    # that these weights are no mode is known, and allowed for
    return Chosen({"prior": chosen, "check_mode": False}, {**record, "tried": tried})


def _under(posterior: LaplacePosterior, factor: float) -> LaplacePosterior:
    return posterior.with_strength(posterior.strength_D * factor)


def _nll(posteriors: Sequence[LaplacePosterior], folds: Sequence[Fold]) -> float:
    """Return the mean negative log likelihood of held-out rows under linearised predictives, in nats a row."""
    total = weight = 0.0
    for posterior, fold in zip(posteriors, folds, strict=True):
        for batch in _some(fold.held_out):
            predictive = predict(Linearised(posterior), batch.inputs)
            weights_B = scored(predictive.likelihood, predictive.outputs_SBK[0], batch.targets).row_weights
            log_prob_B = predictive.log_prob(batch.targets).double()
            weights_B = torch.ones_like(log_prob_B) if weights_B is None else weights_B.double()
            total -= float((weights_B * log_prob_B).sum())
            weight += float(weights_B.sum())
    return total / weight


def _some(batches: Sequence[Batch]) -> Iterator[Batch]:
    """Yield the first batches, with about as many rows as are needed."""
    rows = 0
    for batch in batches:
        if rows >= _ROWS:
            return
        rows += batch.size
        yield batch
