"""Predictions at rows of a table, one column of which may be replaced before it becomes numbers.

A column becomes several inputs: a category one for each value, a date its parts, a number that may be missing a mark.
They change together where the column is replaced as the table has it, so that every row remains one that could be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchbayes.data import Data
from torchbayes.data.user.columns import Column, Columns
from torchbayes.data.user.dates import Dates
from torchbayes.data.user.rows import Reader, as_number
from torchbayes.data.user.table import Table, missing, texts_of
from torchbayes.posteriors.functions import Functions
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.predict import Source, predict

MOST_COLUMNS = 500  # replaced one by one; of more nothing is said
KNOWN = 5000  # training rows with which values are compared


@dataclass(frozen=True, eq=False)
class TablePredictor:
    """A fit to a table, and held-out rows of it.

    Attributes:
        source: what predicts.
        columns: how a table becomes numbers, F for a row.
        prepare: from these, float64 (B, F), to the inputs of the network.
        known: training rows, at most 5,000 of them, evenly spread.
        rows: held-out rows.
    """

    source: Functions | Source
    columns: Columns
    prepare: Callable[[Tensor], Tensor]
    known: Table
    rows: Table

    @cached_property
    def values(self) -> Tensor:
        """The held-out rows as numbers, float64 (N, F)."""
        return self.encoded(self.rows)

    @cached_property
    def known_values(self) -> Tensor:
        """The training rows as numbers, float64 (N, F)."""
        return self.encoded(self.known)

    def encoded(self, rows: Table) -> Tensor:
        """Return rows as numbers, float64 (B, F)."""
        return torch.from_numpy(self.columns(rows).values)

    def predictive(self, values_BF: Tensor) -> Predictive:
        """Return the model average at rows, given as numbers."""
        return predict(self.source, self.prepare(values_BF))

    def block(self, name: str) -> slice:
        """Return which of the F numbers a column becomes."""
        names = [column.name for column in self.columns.columns]
        start = sum(column.width for column in self.columns.columns[: names.index(name)])
        return slice(start, start + self.column(name).width)

    def column(self, name: str) -> Column | Dates:
        """Return how a column becomes numbers."""
        return next(column for column in self.columns.columns if column.name == name)

    def replaced(self, values_BF: Tensor, name: str, held: np.ndarray) -> Tensor:
        """Return rows with other values `held` in a column, (B,) as a table holds them, or (1,) for all rows."""
        block = np.zeros((len(held), self.column(name).width))
        self.column(name).write(held, block)
        values_BF = values_BF.clone()
        values_BF[:, self.block(name)] = torch.from_numpy(block)
        return values_BF

    def usual(self, name: str) -> np.ndarray:
        """Return the usual value of a column as a table holds it, (1,): the median, or the most frequent one."""
        column = self.column(name)
        if column.values is None:
            return in_table(column, np.array([column.fill]))
        held = self.known.columns[name]
        values, counts = np.unique(texts_of(held[~missing(held)]), return_counts=True)
        return np.array([values[counts.argmax()]], dtype=object)


def in_table(column: Column | Dates, numbers: np.ndarray) -> np.ndarray:
    """Return values of a column of numbers or of dates, in days from the first, as a table holds them."""
    return column.texts(numbers) if isinstance(column, Dates) else numbers


def spread_rows(rows: int, most: int) -> np.ndarray:
    """Return the numbers of all rows, or of at most so many that are evenly spread over them."""
    return np.unique(np.linspace(0, rows - 1, min(rows, most)).round().astype(int))


def predictor_of(source: Functions | Source, data: Data) -> TablePredictor | None:
    """Return the predictor of a data set of the user's table, or of vectors of numbers; None of any other."""
    dtype, shape = data.train.inputs.dtype, data.input_shape
    if source.model.coupled or len(shape) != 1 or not dtype.is_floating_point:
        return None
    reader: Any = data.reader
    if isinstance(reader, Reader) and reader.tables and isinstance(reader.encode, Columns):
        train, rows = reader.tables
        columns, standardise = reader.encode, reader.standardise
    else:
        standardise = data.standardise.to(torch.float64)
        train, rows = (_numbered(standardise.inverse(pair.inputs.double())) for pair in (data.train, data.test))
        columns = Columns(tuple(_plain(name, column) for name, column in train.columns.items()), data.name)
    return predictor(source, columns, lambda values: standardise(values).to(dtype), train=train, rows=rows)


def predictor(
    source: Functions | Source, columns: Columns, prepare: Callable[[Tensor], Tensor], *, train: Table, rows: Table
) -> TablePredictor | None:
    """Return a predictor with at most 5,000 of the training rows; None where a row has more than 500 columns."""
    if len(columns.columns) > MOST_COLUMNS:
        return None
    known, rows = (_with_numbers(table, columns) for table in (train[spread_rows(len(train), KNOWN)], rows))
    return TablePredictor(source, columns, prepare, known, rows)


def _with_numbers(rows: Table, columns: Columns) -> Table:
    """Return rows with numbers where the columns are such, and the rows may hold them as texts."""
    texts = {
        column.name: rows.columns[column.name]
        for column in columns.columns
        if isinstance(column, Column) and column.values is None
    }
    numbers = {name: np.array([*map(as_number, held)]) for name, held in texts.items() if held.dtype.kind == "O"}
    return replace(rows, columns=rows.columns | numbers)


def _numbered(values_NF: Tensor) -> Table:
    return Table({f"x{number}": column for number, column in enumerate(values_NF.T.cpu().numpy(), 1)})


def _plain(name: str, values: np.ndarray) -> Column:
    return Column(name, fill=float(np.median(values)), low=float(values.min()), high=float(values.max()))
