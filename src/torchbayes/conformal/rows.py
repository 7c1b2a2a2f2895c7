"""Rows of calibration: predictions beside their targets, groups of rows and weights of rows, as tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, distributions

from torchbayes.assess.evaluate import predictives
from torchbayes.checks import as_numbers, check_kind, seen
from torchbayes.conformal.numbers import Forecast, Prediction, as_double, numbers_like
from torchbayes.model.likelihoods.protocol import scored
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.classes import class_probs

_ROWS = 1024  # that go through a network at once


class Judged(NamedTuple):
    """Targets of B rows that count."""

    targets: Tensor  # numbers, float64, in the shape of the predictions; or classes (B,), int64
    weights_B: Tensor  # how often each row counts, float64; those of weight 0 may hold any targets


def predicted_rows(posterior: Any, data: Any, *, seed: int) -> Iterator[tuple[Prediction, Any]]:
    """Yield predictions and targets; arguments as of `calibrate`."""
    if isinstance(posterior, Forecast):
        yield posterior, data
        return
    yield from predictives(posterior, data, seed=seed, chunk_size=_ROWS)


def is_over_classes(prediction: Any) -> bool:
    """Return whether targets are classes; a TypeError if `prediction` is none."""
    check_kind(
        (Predictive, Forecast), "a Predictive, as `predict` gives it, or a conformal.Forecast", prediction=prediction
    )
    return isinstance(prediction, Predictive) and isinstance(
        prediction.distribution, distributions.Categorical | distributions.Bernoulli
    )


def probs_of(predictive: Predictive) -> Tensor:
    """Return class probabilities (B, K), float64; a TypeError if there are several places in a row."""
    probs_BK = class_probs(as_double(predictive).distribution)
    if probs_BK.ndim == 3 and probs_BK.shape[1] == 1:
        probs_BK = probs_BK.squeeze(1)
    if probs_BK.ndim != 2:
        raise TypeError(
            f"sets of classes are of one class for each row; these predictions have shape {tuple(probs_BK.shape)}. "
            f"Give each place, such as a token or a label, as a row: Predictive.from_probs(probs.flatten(0, -2))."
        )
    return probs_BK


def judged(prediction: Prediction, targets: Any) -> Judged:
    """Return targets that fit a prediction, and how often each counts.

    A TypeError or a ValueError if they do not fit.
    """
    if isinstance(prediction, Forecast):
        numbers = numbers_like(targets, prediction.values.shape)
        return Judged(numbers, torch.ones(len(numbers), dtype=torch.float64, device=numbers.device))
    predictive: Any = prediction
    plain = scored(predictive.likelihood, predictive.outputs_SBK[0], targets)
    plain.likelihood.check(predictive.outputs_SBK[0], plain.targets)
    rows = predictive.outputs_SBK.shape[1]
    ones = torch.ones(rows, dtype=torch.float64, device=predictive.outputs_SBK.device)
    weights_B = ones if plain.row_weights is None else plain.row_weights.double()
    if not is_over_classes(prediction):
        if not isinstance(plain.targets, Tensor):
            raise TypeError(f"`targets` must be one tensor of numbers or classes; got {seen(plain.targets)}.")
        return Judged(numbers_like(plain.targets, predictive.mean.shape), weights_B)
    labels, probs_BK = plain.targets, probs_of(predictive)
    if labels.numel() != rows or (labels.is_floating_point() and not ((labels == 0) | (labels == 1)).all()):
        raise TypeError(
            f"`targets` must be one class for each of the {rows} rows; got {seen(labels)}. Soft labels have no sets."
        )
    labels = labels.reshape(rows).long()
    return Judged(torch.where(weights_B > 0, labels, 0).clamp(0, probs_BK.shape[1] - 1), weights_B)


def group_names(groups: Any, rows: int) -> list[Any]:
    """Return the group of each row, whole numbers or texts; an error if they are neither, or of another number."""
    values = groups.detach().cpu().numpy() if isinstance(groups, Tensor) else np.asarray(groups)
    names = values.tolist()
    if values.ndim != 1 or not (values.dtype.kind in "iubU" or all(isinstance(name, str) for name in names)):
        raise TypeError(f"`groups` must name one group for each row, as whole numbers or texts; got {seen(groups)}.")
    if len(names) != rows:
        raise ValueError(f"`groups` must name the group of each of the {rows} rows; got {len(names)}.")
    return names


def codes_of(names: Sequence[Any], known: Sequence[Any]) -> Tensor:
    """Return the position of each name among the known ones, int64; −1 where it is not there."""
    positions = {name: code for code, name in enumerate(known)}
    return torch.tensor([positions.get(name, -1) for name in names], dtype=torch.int64)


def weights_like(weights: Any, rows: int) -> Tensor:
    """Return weights of rows (B,), float64; a ValueError unless they are finite, at least 0 and as many as the rows."""
    weights_B = as_numbers("weights", weights)
    if weights_B.shape != (rows,):
        raise ValueError(f"`weights` must have shape ({rows},), one for each row; got {seen(weights)}.")
    if not ((weights_B >= 0) & weights_B.isfinite()).all():
        raise ValueError(f"`weights` must be finite and at least 0; the smallest is {float(weights_B.min()):g}.")
    return weights_B
