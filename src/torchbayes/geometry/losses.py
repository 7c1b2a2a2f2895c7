"""Mean loss and error of one network over data."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, distributions

from torchbayes.metrics.scoring import hits
from torchbayes.model.likelihoods.protocol import scored
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers
from torchbayes.model.probes.functions import refuse_coupled
from torchbayes.model.sources.sources import Source
from torchbayes.posteriors.functions import Functions
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.predict import Sampled


class Judged(NamedTuple):
    """Mean losses of one network."""

    nll: float  # mean negative log likelihood per row, in nats, at temperature 1
    error: float  # error rate of a classification, root mean squared error of numbers; 0 for other likelihoods
    kind: str  # "error rate", "rmse" or ""


def network_at(model: Model, weights_D: Tensor, buffers: Buffers, *, fitted: Source) -> Functions:
    """Return a network as a function; batch-norm statistics, if any, are those of the rows of `fitted`."""
    if model.network.batch_norms:
        buffers = model.network.recalibrate(model.split(weights_D)[0], fitted.inputs(), buffers)
    return Functions(model, weights_D[None], {n: b[None] for n, b in buffers.items()} or None)


def judged(functions: Functions, source: Source, chunk_size: int) -> Judged:
    """Return the mean losses of one function over data; a ValueError if no row counts, or rows are coupled."""
    refuse_coupled(functions.model)
    sums = torch.zeros(4, dtype=torch.float64)
    kind = ""
    for inputs, targets in source.batches():
        predictive = Sampled(functions).predictive(inputs, chunk_size=chunk_size)
        scoring = scored(predictive.likelihood, predictive.outputs_SBK[0], targets)
        log_prob = predictive.log_prob(targets).double()
        weights = torch.ones_like(log_prob) if scoring.row_weights is None else scoring.row_weights.double()
        counts = weights > 0
        kind, errors, places = _errors(predictive, scoring.targets, scoring.weights)
        sums += torch.stack([
            (weights * -log_prob)[counts].sum(), weights.sum(), (errors * places)[places > 0].sum(), places.sum()
        ]).cpu()  # fmt: skip
    if not sums[1] > 0:
        raise ValueError("no row of `data` counts: all are ignored, or have weight 0. Check their targets.")
    nll, error = float(sums[0] / sums[1]), float(sums[2] / sums[3].clamp_min(1e-300))
    return Judged(nll, error**0.5 if kind == "rmse" else error, kind)


def _errors(predictive: Predictive, targets: Any, weights: Tensor | None) -> tuple[str, Tensor, Tensor]:
    """Return the kind of error, the error of each place of each row, and how often each counts."""
    nothing = "", torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    if not isinstance(targets, Tensor):
        return nothing
    distribution = predictive.distribution
    if isinstance(distribution, distributions.Categorical | distributions.Bernoulli):
        binary = isinstance(distribution, distributions.Bernoulli)
        scores = torch.as_tensor(distribution.logits)[0]  # of the only function; ordered as its probabilities
        scores = torch.stack([-scores, scores], dim=-1) if binary else scores
        rows, kind = len(scores), "error rate"
        errors = _wrong(scores.flatten(0, -2), targets, binary)
    elif not distribution.event_shape and targets.numel() == distribution.mean.numel():
        rows, kind = len(distribution.mean[0]), "rmse"
        errors = (distribution.mean.flatten() - targets.flatten()).double().square()
    else:
        return nothing
    if weights is None:
        return kind, errors, torch.ones_like(errors)
    each = weights.flatten() if weights.numel() == len(errors) else weights.repeat_interleave(len(errors) // rows)
    return kind, errors, each.to(errors)


def _wrong(scores: Tensor, targets: Tensor, binary: bool) -> Tensor:
    """Return 1 where the class of the highest score is not the target, else 0; for soft labels the others' share."""
    if binary and targets.is_floating_point():
        targets = torch.stack([1 - targets.flatten(), targets.flatten()], dim=-1)
    if targets.is_floating_point():
        return 1 - hits(scores, targets.reshape(scores.shape))
    return 1 - hits(scores, targets.flatten())
