"""Predictions as columns of a table, in the units of the raw targets: what `torchbayes predict` writes.

For classes: the most probable one, the probability of each, and two measures of uncertainty in nats: the entropy of
the averaged probabilities, and the mutual information, the disagreement of the drawn functions. For numbers: mean,
standard deviation, its part that is due to the function, and the ends of a central interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributions

from torchbayes.data.base import Standardise
from torchbayes.display import MOST_ROWS, Overview, brief
from torchbayes.model.likelihoods.quantiles import check_level
from torchbayes.predictive.intervals import central_interval
from torchbayes.predictive.mixture import Mixture, some_rows


@dataclass(frozen=True)
class Units:
    """The units in which predictions are reported."""

    classes: tuple[str, ...] = ()  # names; none for a regression
    targets: Standardise | None = None  # from raw to standardised targets; None where they are not standardised
    level: float = 0.95  # share of the targets that an interval should hold

    def __post_init__(self) -> None:
        check_level(self.level)

    @property
    def digits(self) -> int:
        """Significant digits of written numbers: 7, and those by which the mean of the targets exceeds their spread."""
        if self.targets is None:
            return 7
        ratio = float((self.targets.mean / self.targets.scale).abs().max())
        return min(7 + max(int(math.log10(ratio + 1)) - 2, 0), 17)


def columns(predictive: Mixture, units: Units) -> dict[str, np.ndarray]:
    """Return predictions at N inputs as columns, name -> (N,); a TypeError unless they are classes or numbers."""
    kind = predictive.distribution
    if isinstance(kind, distributions.Categorical | distributions.Bernoulli):
        return _of_classes(predictive, units.classes)
    if not kind.event_shape and kind.batch_shape == predictive.outputs_SBK.shape[:2]:
        return _of_numbers(predictive, units, width=1)
    if not kind.event_shape and len(kind.batch_shape) == 3:
        return _of_numbers(predictive, units, width=kind.batch_shape[2])
    raise TypeError(
        f"predictions under {type(predictive.likelihood).__name__} are no columns: neither classes nor one number for "
        f"each output. Use torchbayes.predict from Python."
    )


def _of_classes(predictive: Mixture, classes: Sequence[str]) -> dict[str, np.ndarray]:
    """Return class, probabilities and uncertainty; a TypeError if there are several places in a row."""
    rows = predictive.outputs_SBK.shape[1]
    probs = predictive.probs.double()
    if isinstance(predictive.distribution, distributions.Bernoulli):
        probs = probs.reshape(rows, -1)
        probs = torch.cat([1 - probs, probs], dim=1) if probs.shape[1] == 1 else probs
    if probs.ndim != 2 or probs.shape[1] < 2 or (classes and probs.shape[1] != len(classes)):
        raise TypeError(
            f"predictions of shape {tuple(probs.shape)} are no columns: one class for each row is. Use "
            f"torchbayes.predict from Python."
        )
    names = list(classes) or [str(k) for k in range(probs.shape[1])]
    columns = {"prediction": np.array(names)[_array(probs.argmax(1))]}
    columns |= {f"p({name})": _array(column) for name, column in zip(names, probs.T, strict=True)}
    columns["entropy"] = _array(predictive.entropy.reshape(rows))
    if predictive.draws > 1:  # a single function, or a closed form over functions, has no mutual information
        columns["mutual_information"] = _array(predictive.mutual_information.reshape(rows))
    return columns


def _of_numbers(predictive: Mixture, units: Units, *, width: int) -> dict[str, np.ndarray]:
    """Return mean, standard deviations and interval of each output, in raw units."""
    low, high = central_interval(predictive, 1 - units.level)
    shift, scale = (0.0, 1.0) if units.targets is None else (units.targets.mean.double(), units.targets.scale.double())
    locations = {"mean": predictive.mean, f"low_{units.level:g}": low, f"high_{units.level:g}": high}
    spreads = {"sd": predictive.variance.sqrt(), "sd_of_function": predictive.epistemic.sqrt()}
    columns: dict[str, np.ndarray] = {}
    raw = {name: value.double().cpu() * scale + shift for name, value in locations.items()}
    raw |= {name: value.double().cpu() * scale for name, value in spreads.items()}
    for name in ("mean", "sd", "sd_of_function", *list(locations)[1:]):
        for k, column in enumerate(raw[name].reshape(-1, width).T):
            columns[name if width == 1 else f"{name}[{k}]"] = _array(column)
    return columns


def _array(values: Tensor) -> np.ndarray:
    return values.detach().cpu().numpy()


def frame_of(
    predictive: Mixture, *, level: float = 0.9, classes: Sequence[str] = (), targets: Standardise | None = None
) -> Any:
    """Return predictions as a pandas DataFrame, one row per input.

    For numbers: mean, sd, sd_of_function, and the ends of the central interval. For classes: prediction, p(CLASS),
    entropy, and mutual_information where there are several draws.

    Args:
        predictive: the predictions.
        level: probability inside the interval, in (0, 1).
        classes: their names; by default their numbers.
        targets: from raw to standardised targets, such as `data.target_standardise`: numbers are then in raw units.

    Raises:
        ImportError: if pandas is not installed.
        TypeError: if predictions are neither classes nor one number for each output.
        ValueError: if the level is not in (0, 1).
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError("`frame` needs pandas. Install it: pip install pandas.") from error
    return pandas.DataFrame(columns(predictive, Units(tuple(classes), targets, level)))


def overview_of(predictive: Mixture) -> Overview:
    """Return what is displayed of a predictive: numbers of functions and rows, and columns of the first rows."""
    draws, rows = predictive.outputs_SBK.shape[:2]
    facts = {"draws": draws, "rows": rows, "likelihood": brief(predictive.likelihood)}
    if predictive.outputs_SBK.ndim > 2:
        facts["outputs"] = " × ".join(map(str, predictive.outputs_SBK.shape[2:]))
    table: dict[str, np.ndarray] = {}
    with suppress(TypeError, ValueError, RuntimeError, NotImplementedError):  # not all predictions are columns
        table = columns(some_rows(predictive, slice(MOST_ROWS)), Units())
        probs = [table.pop(name) for name in [*table] if name.startswith("p(")]
        if probs:
            table = {"prediction": table.pop("prediction"), "probability": np.max(probs, axis=0), **table}
    cells = list(zip(*(np.asarray(column).tolist() for column in table.values()), strict=True))
    return Overview("Predictive", facts, header=tuple(table), rows=cells, of=rows)
