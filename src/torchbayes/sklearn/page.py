"""The page about a fitted estimator, judged on rows that it has not seen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from torchbayes.assess.baselines import warnings_of
from torchbayes.assess.columns.table import predictor
from torchbayes.checks import seen
from torchbayes.data.base import Data, Pair, Standardise
from torchbayes.data.user.rows import repeated
from torchbayes.display import brief
from torchbayes.model.likelihoods.weighted import unweighted
from torchbayes.predictive.linearised import preferred
from torchbayes.report.fit import Fitted, judged, label_of, metric_table, predicts, sections
from torchbayes.report.html import Page, page
from torchbayes.sklearn.intervals import model_targets

_UNITS = "targets [standard deviations]"  # of several targets, each of which has a unit


def page_of(estimator: Any, X: Any, y: Any, *, given: Any) -> Page:
    """Return the page about an estimator; `BayesianEstimator.report` says more.

    Args:
        estimator: which is fitted.
        X: rows, at least 2.
        y: their targets.
        given: both, checked.
    """
    if not hasattr(estimator, "_rows"):
        raise ValueError(
            "a page compares with the training rows, which neither a saved nor a pickled estimator holds. Fit it again."
        )
    data, known = _data(estimator, given, _name(y)), estimator._rows
    posterior, preparation, units = estimator.posterior_, estimator.preparation_, data.target_standardise
    functions = preferred(posterior, seed=estimator.seed_)

    def prepare(values: torch.Tensor) -> torch.Tensor:
        return preparation.scale(values).float()

    fitted = judged(
        label_of(type(estimator.method_), posterior),
        data,
        posterior,
        functions=functions,
        rows=(preparation(given.table), data.test.targets),
        target_scale=1.0 if units is None else float(units.scale),
        table=predictor(functions, preparation.columns, prepare, train=known.table, rows=given.table),
    )
    tables, drawn, remarks = sections(fitted)
    lead = [*_lead(estimator, fitted), *filter(None, [_promise(estimator, X, given), " ".join(remarks)])]
    return page(
        title=f"{type(estimator).__name__} of {data.target_label}",
        lead="\n\n".join(lead),
        tables=[metric_table(fitted), *tables],
        figures=drawn.values(),
        settings={name: brief(value) for name, value in estimator.get_params(deep=False).items()},
    )


def _data(estimator: Any, given: Any, name: str) -> Data:
    """Return training rows and the given ones as a data set, whose inputs are the columns as numbers."""
    known, units, columns = estimator._rows, estimator.target_units_, estimator.preparation_.columns
    if given.targets.shape[1:] != known.targets.shape[1:]:
        count, before = (each.targets.shape[1:] or (1,) for each in (given, known))
        raise ValueError(f"y must have {before[0]} targets in each row, as in the fit; it has {count[0]}.")
    several = units is not None and units.scale.numel() > 1
    train, test = (
        Pair(torch.from_numpy(columns(rows.table).values), model_targets(_numbers(estimator, rows.targets), units))
        for rows in (known, given)
    )
    return Data(
        "X",
        "classification" if hasattr(estimator, "classes_") else "regression",
        train,
        test,
        tuple(map(str, getattr(estimator, "classes_", np.empty(0)).tolist())),
        Standardise.identity(),
        Standardise.identity() if several else units,
        "",
        target_name=_UNITS if several else name,
    )


def _numbers(estimator: Any, targets: np.ndarray) -> np.ndarray:
    """Return targets as numbers: of classes, their places in `classes_`."""
    classes = getattr(estimator, "classes_", None)
    if classes is None:
        return targets.copy()  # those of a series may be read-only
    unknown = np.setdiff1d(targets, classes)
    if len(unknown):
        raise ValueError(f"y must hold classes of the training rows; {seen(unknown.tolist()[0])} is none of them.")
    return np.searchsorted(classes, targets).astype(np.int64)


def _name(y: Any) -> str:
    """Return the name of a series or of a frame of one column; empty if there is none."""
    columns = list(getattr(y, "columns", []))
    name = columns[0] if len(columns) == 1 else getattr(y, "name", None)
    return name if isinstance(name, str) else ""


def _lead(estimator: Any, fitted: Fitted) -> Iterator[str]:
    """Yield paragraphs on what was fitted to what, how it predicts, and what is wrong with it."""
    model, data = fitted.posterior.model, fitted.data
    shared = " ".join(repeated(data, data.test.inputs))
    yield (
        f"Data: {estimator.num_data_:,} training rows; judged by {len(data.test.inputs):,} rows. "
        f"{' '.join(estimator.notes_)} {shared}"
    )
    yield (
        f"Network: {model.layout.size:,} weights. Likelihood: {brief(unweighted(model.likelihood))}. Method: "
        f"{brief(estimator.method_)}, in {estimator.fit_seconds_:.3g} s. {predicts(fitted)}"
    )
    if fitted.posterior.problems:
        yield f"Warning: this posterior should not be trusted: {'; '.join(fitted.posterior.problems)}."
    yield from warnings_of(fitted.evaluation, fitted.baselines)


def _promise(estimator: Any, X: Any, given: Any) -> str:
    """Return a sentence on how many targets are in the conformal intervals or sets; empty without `conformal`."""
    if estimator.conformal_ is None:
        return ""
    if hasattr(estimator, "classes_"):
        regions, rows = "sets", np.arange(len(given.targets))
        inside = estimator.predict_set(X)[rows, _numbers(estimator, given.targets)]
    else:
        regions, ends = "intervals", estimator.predict_interval(X)
        inside = (ends[..., 0] <= given.targets) & (given.targets <= ends[..., 1])
    share = inside.reshape(len(inside), -1).all(1).mean()
    return (
        f"Conformal {regions} for {estimator.conformal_.coverage:.0%} hold the targets of {share:.1%} of these rows. "
        f"All else on this page is about the predictive distribution itself."
    ).replace("%", " %")
