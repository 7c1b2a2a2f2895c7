"""What a predictive says of numbers, target by target: means, intervals, and how far out the targets lie."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, distributions

from torchbayes.assess.evaluate import batches
from torchbayes.assess.numbers import number_columns
from torchbayes.checks import check_counts
from torchbayes.model.likelihoods.protocol import scored
from torchbayes.posteriors.functions import Functions
from torchbayes.posteriors.posterior import Posterior
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.intervals import levels_reached
from torchbayes.predictive.predict import Source, as_source, stream


@dataclass(frozen=True)
class Numbers:
    """Predicted and observed numbers, of N rows with K' targets each, on the CPU, in the units that the model sees.

    Attributes:
        targets: observed, (N, K').
        mean: predictive mean, (N, K').
        scale: predictive standard deviation, (N, K'); NaN or infinite where the likelihood has none.
        low: lower end of the central 95 % interval, (N, K').
        high: upper end, (N, K').
        levels: level of the smallest central interval that holds each target, (N, K').
        weights: how often each row counts, (N,).
    """

    targets: Tensor = field(repr=False)
    mean: Tensor = field(repr=False)
    scale: Tensor = field(repr=False)
    low: Tensor = field(repr=False)
    high: Tensor = field(repr=False)
    levels: Tensor = field(repr=False)
    weights: Tensor = field(repr=False)

    @property
    def is_finite(self) -> bool:
        """Whether means and standard deviations exist."""
        return bool(self.mean.isfinite().all() and self.scale.isfinite().all())


def predicted_numbers(
    posterior: Posterior | Functions | Source,
    data: Any,
    *,
    draws: int | None = None,
    seed: int = 0,
    chunk_size: int = 1024,
) -> Numbers | None:
    """Return what a model average says of targets that are numbers.

    Args:
        posterior: a posterior, functions drawn from one, or a `Linearised` one.
        data: (inputs, targets), a Dataset, a DataLoader or an iterable of batches.
        draws: S, a multiple of the members; the posterior's default if None.
        seed: seed of the draws.
        chunk_size: rows that go through a network at once.

    Returns:
        The numbers, without rows of weight 0; None if the targets are classes, no tensor, of another shape than the
        predictions, or the likelihood's distribution can be neither inverted nor sampled.
    """
    check_counts(chunk_size=chunk_size)
    source, found = as_source(posterior, draws, seed), []
    for predictive, targets in stream(source, batches(source.model, data), chunk_size=chunk_size):
        rows = _rows(predictive, targets)
        if rows is None:
            return None
        found.append(rows)
    columns = [torch.cat(parts).cpu() for parts in zip(*found, strict=True)]
    return Numbers(*columns) if columns and len(columns[0]) else None


def _rows(predictive: Predictive, targets: Any) -> tuple[Tensor, ...] | None:
    """Return the columns of `Numbers` for a batch."""
    if isinstance(predictive.distribution, distributions.Categorical | distributions.Bernoulli):
        return None
    judged = scored(predictive.likelihood, predictive.outputs_SBK[0], targets)
    try:
        found = number_columns(predictive, judged.targets)
        if "numbers" not in found:
            return None
        columns = [found[name] for name in ("numbers", "mean", "scale", "low", "high")]
        columns.append(levels_reached(predictive, found["numbers"]))
    except NotImplementedError:
        return None
    mean = found["mean"]
    rows = len(mean)
    weights = mean.new_ones(rows) if judged.row_weights is None else judged.row_weights.to(mean)
    return *(column.reshape(rows, -1)[weights > 0] for column in columns), weights[weights > 0]
