"""The model average of a fitted estimator at rows, block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data

from torchbayes.checks import check_kind, optional
from torchbayes.data.user.table import Table
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.mixture import some_rows
from torchbayes.predictive.predict import as_source, predict
from torchbayes.sklearn.intervals import groups_of
from torchbayes.sklearn.tables import as_table, is_frame

_BLOCK = 256  # rows that go through the networks together


def checked_rows(estimator: Any, X: Any, y: Any = "no_validation", *, reset: bool, least: int = 1) -> tuple[Table, Any]:
    """Return rows as a table, with their columns compared with those before unless `reset`; and their targets."""
    # scikit-learn takes the values under a mask, which may be anything
    X, y = (np.ma.filled(each.astype(np.float64), np.nan) if np.ma.isMaskedArray(each) else each for each in (X, y))
    if is_frame(X):
        table = as_table(X)
        validate_data(estimator, X, y, reset=reset, skip_check_array=True)
        check_array(np.zeros((len(table), 1)), ensure_min_samples=least, estimator=estimator)
        return table if reset else _named_as_before(estimator, table), y
    numbers: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": "allow-nan", "ensure_min_samples": least}
    if isinstance(y, str):
        table = as_table(validate_data(estimator, X, y, reset=reset, **numbers))
        return table if reset else _named_as_before(estimator, table), y
    several = estimator.__sklearn_tags__().target_tags.multi_output
    X, y = validate_data(estimator, X, y, reset=reset, multi_output=several, **numbers)
    table = as_table(X)
    return table if reset else _named_as_before(estimator, table), y


def _named_as_before(estimator: Any, table: Table) -> Table:
    """Return a table whose columns have the names of the fit, by their order where only one of the two had names.

    scikit-learn warns of that, and refuses other names.
    """
    known, places = getattr(estimator, "feature_names_in_", None), range(len(table.names))
    fitted = {column.name for column in estimator.preparation_.columns.columns}
    if fitted <= {*table.names} or (known is not None and {*known} & {*table.names}):
        return table
    for names in [[f"x{place}" for place in places], [*map(str, places)]] if known is None else [[*known]]:
        if fitted <= {*names}:
            return replace(table, columns=dict(zip(names, table.columns.values(), strict=True)))
    return table


def average_blocks(estimator: Any, X: Any) -> Iterator[tuple[Predictive, int]]:
    """Yield the model average at successive blocks of rows, and how many of its rows are those of X.

    Each block has the same number of rows, so that a row gives the same numbers, bit for bit, whatever other rows there
    are: sums over draws round in another way where there are fewer rows. The last block is filled with its last row.
    """
    posterior, inputs = estimator.posterior_at(X)
    source = as_source(posterior, None, estimator.seed_)
    with threads(estimator.n_jobs):
        for block in inputs.split(_BLOCK):
            filled = torch.cat([block, block[-1:].expand(_BLOCK - len(block), -1)])
            yield predict(source, filled, chunk_size=_BLOCK), len(block)


def average_at(estimator: Any, X: Any) -> Predictive:
    """Return the model average at rows."""
    blocks = [some_rows(average, slice(count)) for average, count in average_blocks(estimator, X)]
    outputs = torch.cat([block.outputs_SBK for block in blocks], dim=1)
    spreads = [block.function_variance for block in blocks if block.function_variance is not None]
    return replace(blocks[0], outputs_SBK=outputs, function_variance=torch.cat(spreads, dim=1) if spreads else None)


def joined_blocks(estimator: Any, X: Any, values: Callable[[Predictive], Any]) -> np.ndarray:
    """Return what `values` gives of the model average at blocks of rows, for all rows."""
    return np.concatenate([np.asarray(values(block))[:count] for block, count in average_blocks(estimator, X)])


def calibrated_blocks(estimator: Any, X: Any, values: Callable[..., Any], *, coverage: float | None) -> np.ndarray:
    """Return what `values` gives of the calibration, at this coverage if it is given, at blocks of rows, for all rows.

    It takes the calibration, the average of a block, groups and weights of its rows as `Conformal` does, and the number
    of its first row.
    """
    conformal, groups, parts, start = estimator.conformal_, None, [], 0
    if coverage is not None and coverage != conformal.coverage:
        conformal = conformal.at(coverage, confidence=conformal.confidence)
    if conformal.rows.in_groups:
        groups = groups_of(checked_rows(estimator, X, reset=False)[0], estimator.split_.groups)
    weights = None if conformal.rows.weights_N is None else np.ones(_BLOCK)
    for block, count in average_blocks(estimator, X):
        numbers = np.arange(start, start + _BLOCK).clip(max=start + count - 1).tolist()
        of_rows = {"groups": None if groups is None else [groups[number] for number in numbers], "weights": weights}
        parts.append(np.asarray(values(conformal, block, start=start, **of_rows))[:count])
        start += count
    return np.concatenate(parts)


@contextmanager
def threads(n_jobs: Any) -> Iterator[None]:
    """Run with a number of threads of PyTorch, as scikit-learn counts jobs: −1 for all cores, None for one.

    Networks for tables are small: a second thread gains little, and loses much where another program runs.
    """
    import joblib

    optional(check_kind, (int, np.integer), "a whole number, -1 for all cores, or None for one", n_jobs=n_jobs)
    before = torch.get_num_threads()
    torch.set_num_threads(joblib.effective_n_jobs(n_jobs))
    try:
        yield
    finally:
        torch.set_num_threads(before)
