"""The predictions to decide by: a predictive, with the names of its classes or the units of its numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchbayes.checks import as_numbers, seen
from torchbayes.conformal.numbers import as_double, numbers_like
from torchbayes.conformal.rows import is_over_classes, judged
from torchbayes.data.base import Standardise
from torchbayes.data.user.rows import shortened
from torchbayes.decisions.costs import names_of
from torchbayes.metrics._checks import check_probs
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.classes import probs_of_draws
from torchbayes.predictive.mixture import Mixture
from torchbayes.predictive.predict import predict


@dataclass(frozen=True)
class Given:
    """Predictions of B rows.

    Attributes:
        predictive: the model average.
        classes: names of its classes; empty where they are numbers in order.
        units: from raw to standardised targets; None where they are not standardised.
        by_name: whether targets are names of classes, or raw numbers, and not what the likelihood takes.
    """

    predictive: Predictive
    classes: tuple[Any, ...] = ()
    units: Standardise | None = None
    by_name: bool = False

    def named(self, classes: Any) -> Given:
        """Return the same predictions, of classes of these names where they have none; a ValueError if they differ.

        Columns of a data frame, none of which is called like one of these classes, such as p(ill), are no names.
        """
        if classes is None:
            return self
        names = names_of("classes", classes)
        given, before = ({*map(str, each)} for each in (names, self.classes))
        if not self.by_name and not given & before:
            return replace(self, classes=names)
        if given != before:
            raise ValueError(f"`classes` must be those of the predictions, {shortened(self.classes)}; got {names}.")
        return self

    @property
    def over_classes(self) -> bool:
        """Whether targets are classes."""
        return is_over_classes(self.predictive)

    @property
    def mean(self) -> Tensor:
        """Means of numbers, (B, K'), in raw units, float64."""
        mean = self.predictive.mean.double()
        return (mean if self.units is None else self._raw(mean)).cpu()

    def judged(self, targets: Any) -> tuple[Tensor, Tensor]:
        """Return classes (B,) or raw numbers (B, K'), and how often each row counts, (B,); an error unless they fit."""
        if not self.by_name:
            rows = judged(self.predictive, targets)
            known = rows.targets if self.over_classes or self.units is None else self._raw(rows.targets)
            return known.cpu(), rows.weights_B.cpu()
        ones = torch.ones(self.predictive.outputs_SBK.shape[1], dtype=torch.float64)
        if self.over_classes:
            return codes_of(targets, self.classes, len(ones)), ones
        return numbers_like(np.asarray(targets), self.predictive.mean.shape), ones

    def _raw(self, numbers: Tensor) -> Tensor:
        assert self.units is not None
        units = self.units.to(torch.float64)
        return numbers.cpu() * units.scale + units.mean


def given_of(prediction: Any, inputs: Any = None, *, targets: Standardise | None = None) -> Given:
    """Return the predictions of a predictive, of class probabilities, or of a posterior or an estimator at inputs.

    A TypeError if it is none of these; a ValueError if probabilities are none.
    """
    if isinstance(prediction, Given):
        return prediction
    if isinstance(prediction, Predictive) or _is_array(prediction):
        if inputs is not None:
            raise ValueError(f"these predictions are made already; got `inputs` {seen(inputs)}. Leave them out.")
        predictive = prediction if isinstance(prediction, Predictive) else _of_probs(prediction)
        columns = [*getattr(prediction, "columns", ())]  # of a data frame, numbers unless they are names
        classes = names_of("columns of prediction", columns) if columns != [*range(len(columns))] else ()
        return Given(predictive, classes, targets)
    if inputs is None and (hasattr(prediction, "predict_proba") or hasattr(prediction, "model")):
        raise ValueError("`inputs` must be the rows to decide on, as a posterior or an estimator is given; got None.")
    if hasattr(prediction, "classes_") and hasattr(prediction, "predict_proba"):
        classes = tuple(np.asarray(prediction.classes_).tolist())
        average = getattr(prediction, "predictive", None)
        predictive = _of_probs(prediction.predict_proba(inputs)) if average is None else average(inputs)
        return Given(predictive, classes, by_name=True)
    if hasattr(prediction, "target_units_"):
        return Given(prediction.predictive(inputs), units=prediction.target_units_, by_name=True)
    if hasattr(prediction, "get_params") and hasattr(prediction, "fit"):
        raise TypeError(
            f"`prediction` must be a fitted estimator that has `predict_proba`, or one of torchbayes.sklearn; got "
            f"{seen(prediction)}."
        )
    return Given(predict(prediction, inputs), units=targets)


def codes_of(targets: Any, classes: tuple[Any, ...], rows: int) -> Tensor:
    """Return the number of the class of each row, (B,); a ValueError if one has another name."""
    names = np.asarray(targets)
    if names.shape != (rows,):
        raise ValueError(f"`targets` must be the class of each of the {rows} rows; got {seen(targets)}.")
    places = {str(name): place for place, name in enumerate(classes)}
    codes = [places.get(str(name), -1) for name in names.tolist()]
    if -1 in codes:
        raise ValueError(
            f"`targets` must be among the classes {', '.join(places)}; row {codes.index(-1)} is "
            f"{names[codes.index(-1)].item()!r}."
        )
    return torch.tensor(codes)


def probs_of(mixture: Mixture) -> Tensor:
    """Return class probabilities of each draw, (S, B, K), float64; a TypeError unless a row has one class."""
    probs = probs_of_draws(as_double(mixture).distribution)
    if probs.ndim == 4 and probs.shape[2] == 1:
        probs = probs.squeeze(2)
    if probs.ndim != 3:
        raise TypeError(
            f"decisions are made by one class for each row; these predictions have shape {tuple(probs.shape[1:])}. "
            f"Give each place, such as a token or a label, as a row: Predictive.from_probs(probs.flatten(0, -2))."
        )
    return probs.cpu()


def _is_array(value: Any) -> bool:
    is_frame = hasattr(value, "to_numpy") and hasattr(value, "columns")
    return is_frame or isinstance(value, Tensor | np.ndarray | list | tuple)


def _of_probs(probs: Any) -> Predictive:
    """Return the predictive of class probabilities (B, K), or (S, B, K)."""
    values = as_numbers("prediction", np.array(probs.to_numpy()) if hasattr(probs, "to_numpy") else probs)
    if values.ndim not in {2, 3}:
        raise ValueError(
            f"`prediction` must be probabilities of shape (B, K), or (S, B, K) with one set per draw; got "
            f"{seen(probs)}. Of a probability p of the second of two classes give numpy.stack([1 - p, p], axis=1)."
        )
    check_probs("prediction", values)
    return Predictive.from_probs(values)
