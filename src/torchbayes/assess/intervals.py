"""What a predictive says of numbers, target by target: means, intervals, and how far out the targets lie."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, distributions

from torchbayes.assess.evaluate import batches
from torchbayes.assess.numbers import number_columns
from torchbayes.model.likelihoods.protocol import scored
from torchbayes.posteriors.functions import Functions
from torchbayes.posteriors.posterior import Posterior
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.intervals import levels_reached
from torchbayes.predictive.predict import Source, as_source, stream


@dataclass(frozen=True)
class Numbers:
    """Predicted and observed numbers of N rows with K' targets each, (N, K'), on the CPU, in the model's units."""

    targets: Tensor = field(repr=False)
    mean: Tensor = field(repr=False)
    scale: Tensor = field(repr=False)  # predictive standard deviation; NaN or infinite where the likelihood has none
    low: Tensor = field(repr=False)  # lower end of the central 95 % interval
    high: Tensor = field(repr=False)
    levels: Tensor = field(repr=False)  # level of the smallest central interval that holds each target
    weights: Tensor = field(repr=False)  # how often each row counts, (N,)

    @property
    def is_finite(self) -> bool:
        """Whether means and standard deviations exist."""
        return bool(self.mean.isfinite().all() and self.scale.isfinite().all())


def predicted_numbers(posterior: Posterior | Functions | Source, data: Any) -> Numbers | None:
    """Return predictions and targets that are numbers, without rows of weight 0; arguments as of `evaluate`.

    None if the targets are classes, no tensor, or of another shape than the predictions, or if the likelihood's
    distribution can be neither inverted nor sampled.
    """
    source, blocks = as_source(posterior, None, 0), []
    for predictive, targets in stream(source, batches(source.model, data)):
        rows = _rows(predictive, targets)
        if rows is None:
            return None
        blocks.append(rows)
    columns = [torch.cat(parts).cpu() for parts in zip(*blocks, strict=True)]
    return Numbers(*columns) if columns and len(columns[0]) else None


def _rows(predictive: Predictive, targets: Any) -> tuple[Tensor, ...] | None:
    """Return the columns of `Numbers` for a batch; None if its targets are not numbers."""
    if isinstance(predictive.distribution, distributions.Categorical | distributions.Bernoulli):
        return None
    judged = scored(predictive.likelihood, predictive.outputs_SBK[0], targets)
    try:
        numbers = number_columns(predictive, judged.targets)
        if "numbers" not in numbers:
            return None
        columns = [numbers[name] for name in ("numbers", "mean", "scale", "low", "high")]
        columns.append(levels_reached(predictive, numbers["numbers"]))
    except NotImplementedError:
        return None
    mean = numbers["mean"]
    rows = len(mean)
    weights = mean.new_ones(rows) if judged.row_weights is None else judged.row_weights.to(mean)
    return *(column.reshape(rows, -1)[weights > 0] for column in columns), weights[weights > 0]
