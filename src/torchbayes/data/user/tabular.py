"""Tables with a target column, made into data sets.

A column of numbers stays one; missing numbers become the median of the training rows, and a further column marks them.
A column of texts, or of numbers that the user names as categorical, becomes a column of zeros and ones for each of its
values. Columns without information are left out: constant, empty, row numbers, and texts that differ in nearly every
row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from torchbayes.checks import check_name, seen
from torchbayes.data.base import Data
from torchbayes.data.user.columns import MANY, Columns, check_input, check_size, check_target, far, fit_columns
from torchbayes.data.user.rows import Encoder, Form, Reader, Rows, Task, assemble
from torchbayes.data.user.table import Table, is_table, missing, read_table, texts_of

_COUNTED = 20  # least rows of a column that counts from any number: with fewer it may be chance
_YEARS = (1700, 2100)  # consecutive whole numbers in this range are times
_DETERMINED = 0.9999  # correlation
_MOST_OF = 0.5  # share of the targets that are one value, from which this is told


@dataclass(frozen=True)
class Tabular:
    """What a user states about a table."""

    name: str
    source: str  # in one line
    target: str | None
    leave_out: Sequence[str] = ()  # columns that are no inputs
    categorical: Sequence[str] = ()  # columns that are categories whatever they hold, such as postcodes
    task: Task | None = None  # by the target's values if None
    read: Callable[[Path], Table] = read_table

    def check(self, names: Sequence[str]) -> str:
        """Check the settings against the names of the columns, and return the target."""
        if self.target is None:
            raise ValueError(f"say which column of {self.name} is to be predicted: --target {' or '.join(names[:20])}.")
        listed = {"target": [self.target], "leave_out": self.leave_out, "categorical": self.categorical}
        for setting, columns in listed.items():
            if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
                raise ValueError(f"`{setting}` must be a list of names of columns, such as [id]; got {seen(columns)}.")
            for name in columns:
                check_name(f"column of {self.name}", name, names)
        if self.task not in {None, "classification", "regression"}:
            raise ValueError(f"`task` must be classification or regression; got {seen(self.task)}.")
        return self.target


def read_tabular(
    path: Path,
    *,
    target: str | None = None,
    leave_out: Sequence[str] = (),
    categorical: Sequence[str] = (),
    task: Task | None = None,
    encoding: str | None = None,
    split: int = 0,
    train_size: int | None = None,
) -> Data:
    """Return a table as a data set.

    `path` is a file, or a folder that holds train.csv and test.csv, or the like. `target` is the column to predict;
    columns in `leave_out` are no inputs; columns in `categorical`, such as postcodes, are categories whatever they
    hold. The task follows from the target's values if None. `encoding` of text files, such as latin-1, is UTF-8, or
    UTF-16 with its mark, if None. `split` numbers the draw of the test rows, where none are given; `train_size` keeps
    that many training rows, drawn at random.
    """
    files = [path] if path.is_file() else list(tables_in(path).values())
    read = partial(read_table, encoding=encoding)
    settings = Tabular(path.name, path.name, target, leave_out, categorical, task, read)
    return of_tables(settings, [read(file) for file in files], split=split, train_size=train_size)


def of_tables(description: Tabular, tables: Sequence[Table], *, split: int, train_size: int | None) -> Data:
    """Return tables (all rows; or training and test rows) as a data set; see `read_tabular` for the settings."""
    target = description.check(tables[0].names)
    for table in tables:
        check_name(f"column of {description.name}", target, table.names)
    left = dict.fromkeys(description.leave_out, "as asked") | {target: ""}
    numbers = [name for name in tables[0].names if _counts_rows([t.columns.get(name) for t in tables])]
    if set(tables[0].names) - {*left, *numbers}:  # otherwise row numbers are the only input, such as a time
        left |= {name: "row numbers" for name in numbers if name not in left}
    check_target(target, tables, description.task)
    for name in tables[0].names:
        if name not in {*left, *description.categorical}:
            check_input(name, tables)

    def read(path: Path) -> Rows:
        table = description.read(path)
        complete = target in table.columns and not missing(table.columns[target]).any()
        return Rows(table, targets_of(target, table.columns[target]) if complete else None)

    def fit(table: Table) -> tuple[Encoder, tuple[str, ...]]:
        return fit_columns(table, description.name, left=left, categorical=description.categorical)

    complete_tables = [table[~missing(table.columns[target])] for table in tables]
    if not all(map(len, complete_tables)):
        raise ValueError(f"no row of {description.name} has a value in the column {target!r}. Choose another --target.")
    parts = [Rows(table, targets_of(target, table.columns[target])) for table in complete_tables]
    form = Form(description.name, description.source, read, fit, MANY, description.task)
    data = assemble(form, parts, split=split, train_size=train_size)
    dropped = sum(map(len, tables)) - sum(map(len, complete_tables))
    more = (f"Rows left out because they have no value in {target!r}: {dropped:,}.",) if dropped else ()
    more += tuple(dict.fromkeys(note for table in tables for note in table.notes))
    return replace(data, target_name=target, notes=(*data.notes, *more, *_odd_targets(target, data, parts)))


def _odd_targets(name: str, data: Data, parts: Sequence[Rows]) -> list[str]:
    """Return sentences on numeric targets that are constant, far from all others, or determined by an input."""
    targets = data.train.targets.double().flatten()
    if data.classes:
        return []
    if (targets == targets[0]).all():
        return [f"The target {name!r} is the same in all training rows: there is nothing to learn from them."]
    numbers = np.concatenate([np.asarray(subset.targets, dtype=np.float64) for subset in parts])
    sentences = odd_numbers(name, numbers)
    encode = data.reader.encode if isinstance(data.reader, Reader) else None
    if not isinstance(encode, Columns) or len(targets) < 5:  # fewer can be collinear by chance
        return sentences
    starts = np.cumsum([0, *(column.width for column in encode.columns)])
    for start, column in zip(starts[:-1].tolist(), encode.columns, strict=True):
        if column.values is None:
            pair = torch.stack([data.train.inputs[:, start].double(), targets])
            correlation = float(torch.corrcoef(pair)[0, 1])
            if abs(correlation) > _DETERMINED:
                sentences.append(
                    f"{column.name!r} determines the target {name!r} (correlation {correlation:.5f}): leave it out if "
                    f"it is not known in advance."
                )
    return sentences


def odd_numbers(name: str, numbers: np.ndarray) -> list[str]:
    """Return sentences on targets (N,) that are far from all others, or most of them one value."""
    values, counts = np.unique(numbers, return_counts=True)
    share = counts.max() / len(numbers)
    distant = far(name, numbers)
    if share < _MOST_OF or len(numbers) < _COUNTED or share == 1:
        return distant
    # which normal noise cannot describe
    return [
        f"{share:.0%} of the targets {name!r} are {values[counts.argmax()]:.6g}. Noise around a mean does not describe "
        f"that: intervals will be too wide there or too narrow elsewhere. Predict first whether a row has this value, "
        f"then the others.",
        *distant,
    ]


def tables_in(folder: Path) -> dict[str, Path]:
    """Return the tables called train and test in a folder; none if it has no such pair."""
    tables: dict[str, Path] = {}
    for word in ("train", "test"):
        files = [file for file in sorted(folder.glob(f"{word}.*")) if is_table(file)]
        if len(files) == 1:
            tables[word] = files[0]
    return tables if len(tables) == 2 else {}


def _counts_rows(parts: Sequence[np.ndarray | None]) -> bool:
    """Return whether a column counts the rows: from 0 or 1, or, if there are many rows, from any number but a year."""
    counted = [values for values in parts if values is not None and values.dtype.kind == "i"]
    if len(counted) < len(parts) or not all((np.diff(values) == 1).all() for values in counted):
        return False
    if all(len(values) > 2 and values[0] in {0, 1} for values in counted):
        return True
    years = all(values[0] >= _YEARS[0] and values[-1] <= _YEARS[1] for values in counted)
    return max(map(len, counted)) >= _COUNTED and not years


def targets_of(name: str, values: np.ndarray) -> np.ndarray:
    """Return targets as texts, bools, whole numbers or floating point; `values` has none missing.

    Whole numbers that come as 3.0, as from tables in which some were missing, become whole numbers. Raises ValueError
    if a number is infinite, too large or too small.
    """
    if values.dtype.kind == "O":
        return np.array(texts_of(values))
    if values.dtype.kind != "f":
        return values
    if np.isinf(values).any():
        raise ValueError(f"the column {name!r} must be finite; it has infinite values. Remove those rows.")
    check_size(f"the column {name!r}", values)
    return values.astype(np.int64) if (values % 1 == 0).all() and (abs(values) < 2**53).all() else values
