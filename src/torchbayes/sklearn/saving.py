"""Estimators in files: the posterior's, with what makes a table its inputs and outputs its targets in the header."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from torchbayes.catalogue.imports import is_path
from torchbayes.checks import check_kind, given
from torchbayes.conformal.conformal import Conformal
from torchbayes.conformal.conformal import packed as packed_calibration
from torchbayes.conformal.conformal import restored as restored_calibration
from torchbayes.data.base import Standardise
from torchbayes.data.user.columns import Column, Columns
from torchbayes.data.user.dates import Dates
from torchbayes.native.process import full_path
from torchbayes.networks import ColumnEncoding
from torchbayes.posteriors.files import RESTORE, read_header, read_tensors, write_tensors
from torchbayes.posteriors.load import load as load_posterior
from torchbayes.posteriors.posterior import packed
from torchbayes.sklearn.classification import BayesianClassifier
from torchbayes.sklearn.estimator import BayesianEstimator, Network, model_of
from torchbayes.sklearn.intervals import Split
from torchbayes.sklearn.perceptrons import BayesianMLPClassifier, BayesianMLPRegressor
from torchbayes.sklearn.regression import BayesianRegressor
from torchbayes.sklearn.tables import FITTED, Preparation

_KEY = "estimator"
_CALIBRATION = "conformal."  # before the names of the tensors of the calibration
_CLASSES = (BayesianClassifier, BayesianRegressor, BayesianMLPClassifier, BayesianMLPRegressor)
_KINDS: dict[str, type[BayesianEstimator]] = {kind.__name__: kind for kind in _CLASSES}
_PLAIN = ("seed_", "num_data_", "automatic_", "weighted_", "outputs_", "fit_seconds_", "n_features_in_")
_SETTINGS = str | int | float | tuple | list | None
_GIVEN = ("network", "likelihood", "prior")  # names, or objects that are no part of a file


def save(estimator: BayesianEstimator, path: str | Path) -> Path:
    """Write a fitted estimator, without its training rows, to a safetensors file, completely or not at all.

    Args:
        estimator: a fitted one.
        path: where to write, such as `prices.safetensors`.

    Returns:
        The path.

    Raises:
        TypeError: if it is no estimator of this package.
        sklearn.exceptions.NotFittedError: if it has not been fitted.
        ValueError: if the score of `conformal` is none of this library.
    """
    return write_tensors(path, *contents(estimator))


def contents(estimator: BayesianEstimator) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the header of the file of a fitted estimator."""
    check_kind(tuple(_KINDS.values()), "a fitted BayesianRegressor or BayesianClassifier", estimator=estimator)
    check_is_fitted(estimator)
    preparation, units = estimator.preparation_, estimator.target_units_
    names, classes = (getattr(estimator, name, None) for name in ("feature_names_in_", "classes_"))
    entries = {
        "kind": type(estimator).__name__,
        "settings": {n: s for n, s in estimator.get_params(deep=False).items() if isinstance(s, _SETTINGS)},
        "columns": [_entries_of(column) for column in preparation.columns.columns],
        "scale": {name: tensor.tolist() for name, tensor in _numbers_of(preparation.scale).items()},
        "notes": preparation.notes,
        "names": None if names is None else names.tolist(),
        **{name: vars(estimator)[name] for name in _PLAIN},
        "units": None if units is None else [units.mean.tolist(), units.scale.tolist()],
        "classes": None if classes is None else classes.tolist(),
    }
    tensors, header = packed(estimator.posterior_)
    if estimator.conformal_ is not None:
        scores, calibration = packed_calibration(estimator.conformal_)
        tensors |= {_CALIBRATION + name: tensor for name, tensor in scores.items()}
        entries["conformal"] = {**calibration, "groups": estimator.split_.groups}
    return tensors, {**header, _KEY: entries}


def load(path: str | Path, *, network: Network | None = None, likelihood: Any = None, prior: Any = None) -> Any:
    """Read an estimator that `save` wrote.

    Args:
        path: the file.
        network: the one it was fitted with, if that was not given by a name: a file holds no code.
        likelihood: likewise.
        prior: likewise.

    Returns:
        The estimator, which predicts as before. A `method` that was not given by its name is not in the file, so that
        `fit` would take the default.

    Raises:
        ValueError: if the file is damaged or holds no estimator, or network, likelihood or prior are others.
    """
    path = full_path(path)
    entries = read_header(path).get(_KEY)
    if entries is None:
        raise ValueError(f"{path} holds a posterior without a table. Read it by torchbayes.load.")
    try:
        estimator = _restored(entries, given(network=network, likelihood=likelihood, prior=prior))
        estimator.conformal_, estimator.split_ = _calibration(path, entries.get("conformal"))
        if estimator.split_ is not None and "conformal" not in entries["settings"]:
            estimator.conformal = estimator.split_
        model = model_of(estimator)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: its parts do not fit ({error}). {RESTORE}") from error
    estimator.posterior_ = load_posterior(path, model)
    return estimator


def _restored(entries: Mapping[str, Any], objects: Mapping[str, Any]) -> Any:
    """Return an estimator as it was, but for its posterior."""
    kind = _KINDS[entries["kind"]]
    known = inspect.signature(kind.__init__).parameters
    # a file chooses no code (docs/decisions/0032-files-do-not-choose-code.md): import paths are given again
    named = {name: value for name, value in entries["settings"].items() if not is_path(value)}
    settings = {**named, **objects}
    estimator: Any = kind(**{name: value for name, value in settings.items() if name in known})
    lacking = [name for name in _GIVEN if name in known and name not in settings]
    if lacking:
        raise ValueError(f"the estimator was fitted with a {lacking[0]} that is not in its file. Give `{lacking[0]}`.")
    columns = tuple(_column_of(column) for column in entries["columns"])
    dtypes = dict.fromkeys(("column", "marked"), torch.int64)
    numbers = {n: torch.tensor(v, dtype=dtypes.get(n, torch.float64)) for n, v in entries["scale"].items()}
    scale = (ColumnEncoding if "centre" in numbers else Standardise)(**numbers)
    estimator.preparation_ = Preparation(Columns(columns, FITTED), scale, tuple(entries["notes"]))
    estimator.notes_ = estimator.preparation_.notes
    for name in _PLAIN:
        setattr(estimator, name, entries[name])
    units, classes, names = (entries[name] for name in ("units", "classes", "names"))
    if units is not None:
        units = Standardise(*torch.tensor(units, dtype=torch.float64))
    estimator.target_units_ = units
    if classes is not None:
        estimator.classes_ = np.array(classes)
    if names is not None:
        estimator.feature_names_in_ = np.array(names, dtype=object)
    return estimator


def _calibration(path: Path, entries: Mapping[str, Any] | None) -> tuple[Conformal | None, Split | None]:
    """Return the calibration in a file, and its settings."""
    if entries is None:
        return None, None
    held = {n.removeprefix(_CALIBRATION): t for n, t in read_tensors(path)[0].items() if n.startswith(_CALIBRATION)}
    conformal = restored_calibration(path, held, entries)
    return conformal, Split(conformal.coverage, conformal.score, entries["groups"], conformal.confidence)


def _numbers_of(scale: Standardise | ColumnEncoding) -> dict[str, Tensor]:
    return scale.state_dict() if isinstance(scale, ColumnEncoding) else vars(scale)


def _entries_of(column: Column | Dates) -> dict[str, Any]:
    return asdict(column) | ({"first": column.first.isoformat()} if isinstance(column, Dates) else {})


def _column_of(entries: Mapping[str, Any]) -> Column | Dates:
    if "form" in entries:
        first, parts = datetime.fromisoformat(entries["first"]), tuple(entries["parts"])
        return Dates(**{**entries, "first": first, "parts": parts})
    values = entries["values"]
    return Column(**{**entries, "values": None if values is None else tuple(values)})
