"""Rows of a user, as scikit-learn takes them, made into numbers, in an order of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchbayes.checks import seen
from torchbayes.checksum import row_keys
from torchbayes.data.base import Standardise
from torchbayes.data.user.columns import Columns, fit_columns
from torchbayes.data.user.rows import shortened
from torchbayes.data.user.table import Table, from_frame, missing, of_objects
from torchbayes.data.user.tabular import odd_numbers
from torchbayes.networks import ColumnEncoding
from torchbayes.posteriors.problems import note

FITTED = "the X of the fit"  # in messages
_COLUMNS = 20_000  # each takes a millisecond
_REPEATED = 10  # rows on average for each given row; beyond, weights become weights of the likelihood


@dataclass(frozen=True)
class Preparation:
    """How columns become inputs of a network, as the training rows said."""

    columns: Columns
    scale: Standardise | ColumnEncoding
    notes: tuple[str, ...]  # what became of each column, in sentences

    @property
    def width(self) -> int:
        """D, the number of inputs of the network."""
        return self.scale.features if isinstance(self.scale, ColumnEncoding) else self.columns.width

    def __call__(self, rows: Table) -> Tensor:
        """Return inputs of the network, float32 (B, D); warn of values that no training row has."""
        encoded = self.columns(rows)
        if encoded.unseen:
            note(" ".join(encoded.unseen))
        return self.scale(torch.from_numpy(encoded.values)).float()


@dataclass(frozen=True)
class Training:
    """Training rows in their own order."""

    preparation: Preparation
    inputs: Tensor  # (N, D)
    targets: np.ndarray  # (N,) or (N, K)
    weights: np.ndarray | None  # (N,); None where each row counts once


def is_frame(rows: Any) -> bool:
    """Return whether rows have named columns, as a data frame of pandas or polars has."""
    return not isinstance(rows, np.ndarray) and hasattr(rows, "columns")


def as_table(rows: Any) -> Table:
    """Return an array (B, D) or a data frame of pandas or polars as a table.

    Raises:
        TypeError: if it is a data frame of another library.
        ValueError: if there are no rows, more than 20,000 columns, or two of the same name.
    """
    if is_frame(rows) and not (hasattr(rows, "iloc") or hasattr(rows, "to_dicts")):
        raise TypeError(
            f"X must be an array, or a data frame of pandas or polars; got {seen(rows)}. Convert it, such as by "
            f"X.collect() or X.to_pandas()."
        )
    if (width := rows.shape[1]) > _COLUMNS:
        raise ValueError(
            f"X must have at most {_COLUMNS:,} columns; it has {width:,}. Choose columns first, or reduce them, "
            f"such as by sklearn.decomposition.PCA."
        )
    if isinstance(rows, np.ndarray):
        return Table({f"x{number}": column for number, column in enumerate(rows.T.copy())}, "X")
    if not hasattr(rows, "iloc"):  # a frame of polars, whose own conversion needs a further package
        import pandas as pd

        rows = pd.DataFrame(rows.to_dict(as_series=False))
    return from_frame(rows, "X")


def prepared(rows: Table, targets: np.ndarray, weights: np.ndarray | None, *, encoded: bool) -> Training:
    """Return training rows, whatever their order was.

    A fit then depends on which rows there are, and not on their order. Rows are those of `repeated`, and columns are
    standardised, or `encoded`.

    Raises:
        ValueError: if no column can be an input, or only one row counts.
    """
    rows, targets, weights = repeated(rows, targets, weights)
    if len(rows) < 2:
        raise ValueError("only one row is left to fit, by `sample_weight` or `conformal`; give more, at least 2.")
    columns, notes = fit_columns(rows, "X", left={}, categorical=())
    columns = replace(columns, where=FITTED)
    if targets.dtype.kind == "f":
        several = targets.reshape(len(targets), -1).T
        names = [f"y[:, {k}]" for k in range(len(several))] if targets.ndim > 1 else ["y"]
        notes += tuple(note for each in zip(names, several, strict=True) for note in odd_numbers(*each))
    values = columns(rows).values
    order = order_of(values, targets, weights)
    inputs = torch.from_numpy(values[order])
    preparation = Preparation(columns, ColumnEncoding.fit(inputs) if encoded else Standardise.fit(inputs), notes)
    in_order = None if weights is None else weights[order]
    return Training(preparation, preparation.scale(inputs).float(), targets[order], in_order)


def repeated(
    rows: Table, targets: np.ndarray, weights: np.ndarray | None
) -> tuple[Table, np.ndarray, np.ndarray | None]:
    """Return rows each of which counts once, or with weights that are no counts; those of weight 0 are dropped.

    A row whose weight is a whole number is repeated so often, unless this makes too many.
    """
    if weights is None:
        return rows, targets, None
    counts = (weights == weights.round()).all() and weights.sum() <= _REPEATED * len(weights)
    kept = np.repeat(np.arange(len(weights)), weights.astype(np.int64) if counts else weights > 0)
    return rows[kept], targets[kept], None if counts else weights[kept]


def order_of(*parts: np.ndarray | None) -> np.ndarray:
    """Return an order of rows that depends on their values alone, int64 (N,)."""
    return np.argsort(row_keys(*parts), kind="stable")


def joined(first: Table, second: Table) -> Table:
    """Return the rows of one table and of another with the same columns."""
    absent = [repr(name) for name in first.names if name not in second.columns]
    if absent:
        raise ValueError(
            f"X has no column {shortened(absent)}, which the rows before have. Its columns are "
            f"{shortened(second.names)}."
        )
    columns = {name: [rows.columns[name] for rows in (first, second)] for name in first.names}
    return Table({name: _one_column(parts) for name, parts in columns.items()}, "X")


def _one_column(parts: Sequence[np.ndarray]) -> np.ndarray:
    together = np.concatenate(parts)
    objects = together.dtype.kind == "O"
    return of_objects(together.tolist(), np.concatenate([*map(missing, parts)])) if objects else together
