"""Hugging Face data sets on the disk, as `save_to_disk` of the package `datasets` leaves them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from torchbayes.checks import check_name
from torchbayes.data.base import Data
from torchbayes.data.user.images import read_images
from torchbayes.data.user.pictures import look, pixels, shape_of
from torchbayes.data.user.rows import Encoded, Form, Rows, Task, assemble, shortened
from torchbayes.data.user.saved import TARGETS, columns_of, is_saved, labels_of, new_rows_of, of_images, parts_of
from torchbayes.data.user.table import Table, from_frame, read_table
from torchbayes.data.user.tabular import Tabular, of_tables

_PLAIN = ("Value", "ClassLabel")


def read_saved_images(
    path: Path,
    *,
    target: str | None = None,
    size: int | Sequence[int] | None = None,
    grey: bool | None = None,
    split: int = 0,
    train_size: int | None = None,
) -> Data:
    """Return a data set of images that `save_to_disk` wrote.

    `target` is the column to predict, one called label or target if None. See `read_folder` for `size` and `grey`,
    `read_tabular` for `split` and `train_size`.
    """
    parts, of_parts = parts_of(path)
    target, column = _target(path, parts[0], target), columns_of(parts[0], {"Image"})[0]
    known = [labels_of(path, dataset, target) for dataset in parts]
    if not all(len(labels) for labels, _ in known):
        raise ValueError(f"no row of {path.name} has a value in the column {target!r}. Choose another --target.")
    shown = [
        partial(of_images, path, dataset[column], rows=rows.tolist())
        for dataset, (_, rows) in zip(parts, known, strict=True)
    ]
    shape, notes = shape_of(
        Counter(image_look for images in shown for image_look in images(look)), size=size, grey=grey
    )
    arrays = []
    for images, (labels, rows) in zip(shown, known, strict=True):
        values = np.empty((len(rows), *shape), dtype=np.uint8)
        for i, image in enumerate(images(partial(pixels, shape=shape))):
            values[i] = image
        arrays.append(Rows(values, labels))
    if dropped := sum(map(len, parts)) - sum(len(rows) for _, rows in known):
        of_parts += (f"Rows left out because they have no value in {target!r}: {dropped:,}.",)

    def read(new: Path) -> Rows:
        return read_images(new, shape, data, target=target)

    form = Form(path.name, _source(path), read, lambda _: (Encoded, (*notes, *of_parts)))
    data = assemble(form, arrays, split=split, train_size=train_size)
    return data


def read_saved_table(
    path: Path,
    *,
    target: str | None = None,
    task: Task | None = None,
    leave_out: Sequence[str] = (),
    categorical: Sequence[str] = (),
    split: int = 0,
    train_size: int | None = None,
) -> Data:
    """Return a table that `save_to_disk` wrote.

    `target` is the column to predict, one called label or target if None. See `read_tabular` for the other settings.
    """
    parts, notes = parts_of(path)
    target = _target(path, parts[0], target)
    every = parts[0].column_names
    lists = [name for name in every if name not in {*columns_of(parts[0], _PLAIN), *leave_out}]
    if target in lists:
        labels_of(path, parts[0], target)  # raises, saying what is wrong
    if lists:
        usable = set(every) - {*lists, target, *leave_out}
        leave = "Leave them out with --data_settings.leave_out, or write" if usable else "Write"
        raise ValueError(
            f"columns {shortened(lists)} of {path.name} are lists or the like, which no network here takes. {leave} a "
            f"function that gives arrays: --data my_module:load."
        )
    settings = Tabular(path.name, _source(path), target, leave_out, categorical, task, _read_rows)
    tables = [from_frame(_frame(dataset), str(path)) for dataset in parts]
    data = of_tables(settings, tables, split=split, train_size=train_size)
    return replace(data, notes=(*data.notes, *notes))


def _read_rows(path: Path) -> Table:
    """Return new rows: of a Hugging Face data set, or of another table."""
    return from_frame(_frame(new_rows_of(path)), str(path)) if is_saved(path) else read_table(path)


def _frame(dataset: Any) -> Any:
    """Return the columns of a data set that a table can have, as a pandas data frame."""
    frame = dataset.select_columns(columns_of(dataset, _PLAIN)).to_pandas()
    for name in columns_of(dataset, {"ClassLabel"}):  # class indices become names
        frame[name] = [None if gone else dataset.features[name].names[int(k)] for k, gone in _numbered(frame[name])]
    return frame


def reader_of(path: Path) -> Callable[..., Data]:
    """Return what reads a data set that `save_to_disk` wrote: images, where a column holds some, or a table."""
    return read_saved_images if columns_of(parts_of(path)[0][0], {"Image"}) else read_saved_table


def _target(path: Path, dataset: Any, target: str | None) -> str:
    """Return the name of the column to predict."""
    names = list(dataset.column_names)
    named = [name for name in TARGETS if name in names]
    if target is None and not named:
        raise ValueError(f"say which column of {path.name} is to be predicted: --target {' or '.join(names)}.")
    target = target or named[0]
    check_name(f"column of {path.name}", target, names)
    return target


def _source(path: Path) -> str:
    return f"{path.name}, a Hugging Face data set"


def _numbered(column: Any) -> list[tuple[Any, bool]]:
    """Return the numbers of a column of classes, and whether each is missing: none, or -1."""
    return [(number, bool(gone) or number < 0) for number, gone in zip(column, column.isna(), strict=True)]
