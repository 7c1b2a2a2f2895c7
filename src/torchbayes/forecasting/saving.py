"""Fitted forecasters in files: the estimator of the rows, what makes windows its rows, and the end of the series."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from torchbayes.forecasting.rows import Rows
from torchbayes.forecasting.series import Series
from torchbayes.forecasting.steps import entry_of, step_of
from torchbayes.posteriors.files import RESTORE, read_tensors, write_tensors
from torchbayes.sklearn import saving
from torchbayes.sklearn.regression import BayesianRegressor

_KEY = "forecaster"
_BEFORE = "forecaster."  # before the names of its tensors


def save(path: str | Path, series: Series, rows: Rows, *, regressor: BayesianRegressor) -> Path:
    """Write what a forecaster has learned to a file; return its path."""
    end = series.between(len(series) - rows.context, len(series), rows.horizon)
    arrays = {
        "centre": rows.centre_C,
        "scale": rows.scale_C,
        "values": end.values_TC,
        "covariates": end.covariates_UK,
        "times": None if end.times is None else end.times.asi8,
    }
    tensors, header = saving.contents(regressor)
    held = {_BEFORE + name: torch.tensor(array) for name, array in arrays.items() if array is not None}
    entries = {
        "horizon": rows.horizon,
        "season": rows.season,
        "context": rows.context,
        "season of times": end.season,
        "step": None if end.step is None else entry_of(end.step),
        "unit": None if end.times is None else end.times.unit,
        "zone": None if end.times is None else _zone_of(end.times),
    }
    return write_tensors(path, tensors | held, {**header, _KEY: entries})


def restored(path: str | Path, **objects: Any) -> tuple[Series, Rows, Any]:
    """Return what a file holds: the end of the series, the rows, and the estimator.

    `objects` are network, likelihood and prior, where these were not given by name.
    """
    tensors, header = read_tensors(path)
    if _KEY not in header:
        raise ValueError(f"{path} holds no forecaster. Read it by torchbayes.sklearn.load or torchbayes.load.")
    try:
        series, rows = _parts(tensors, header[_KEY])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: its parts do not fit ({error}). {RESTORE}") from error
    return series, rows, saving.load(path, **objects)


def _parts(tensors: dict[str, Tensor], entries: dict[str, Any]) -> tuple[Series, Rows]:
    held = {n.removeprefix(_BEFORE): t.numpy() for n, t in tensors.items() if n.startswith(_BEFORE)}
    rows = Rows(entries["horizon"], entries["season"], entries["context"], held["centre"], held["scale"])
    times = None
    if "times" in held:
        times = pd.DatetimeIndex(held["times"].astype(f"M8[{entries['unit']}]"))
        if entries["zone"] is not None:
            times = times.tz_localize("UTC").tz_convert(entries["zone"])
    step = None if entries["step"] is None else step_of(*entries["step"])
    return Series(held["values"], held.get("covariates"), times, step, entries["season of times"]), rows


def _zone_of(times: pd.DatetimeIndex) -> str | None:
    """Return the name of the time zone, None if there is none; a ValueError if the name would not give it back."""
    if times.tz is None:
        return None
    try:
        times.tz_convert(str(times.tz))
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"the time zone {times.tz} has no name by which it could be read again. Fit the series with one that "
            f"has: series.tz_convert('Europe/Vienna')."
        ) from error
    return str(times.tz)
