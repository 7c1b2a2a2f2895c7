"""What Hugging Face data sets on the disk hold: parts, columns, images and labels."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from torchbayes.data.own.parts import chosen
from torchbayes.data.own.pictures import said

_T = TypeVar("_T")
_EMPTY = "{} has no rows. Save a data set that has some."
TARGETS = ("label", "labels", "target", "class", "fine_label")


def is_saved(path: Path) -> bool:
    """Return whether a folder holds a data set that `save_to_disk` wrote."""
    return (path / "dataset_dict.json").is_file() or (path / "state.json").is_file()


def parts_of(path: Path) -> tuple[list[Any], tuple[str, ...]]:
    """Return the rows for training and those for testing, or all rows, and sentences on the choice.

    Args:
        path: of the folder.

    Returns:
        One data set, or two, and the sentences.

    Raises:
        ValueError: if the package is missing, the folder is damaged, a part is empty, or the parts are others.
    """
    found = _load(path)
    if not isinstance(found, dict):
        parts, notes = {path.name: found}, ()
    else:
        names, notes = chosen(str(path), list(found))
        parts = {f"the part {name} of {path.name}": found[name] for name in names}
    for name, part in parts.items():
        if not len(part):
            raise ValueError(_EMPTY.format(name))
    return list(parts.values()), notes


def new_rows_of(path: Path) -> Any:
    """Return the rows of a data set that is new.

    Args:
        path: of the folder.

    Returns:
        The rows.

    Raises:
        ValueError: if it has several parts, or it is empty or damaged.
    """
    found = _load(path)
    if isinstance(found, dict):
        if len(found) != 1:
            example = next((name for name in found if name == "test"), next(iter(found), "test"))
            raise ValueError(
                f"{path} has the parts {', '.join(found)}, and new rows are one of them. Name it: {path / example}."
            )
        found = next(iter(found.values()))
    if not len(found):
        raise ValueError(_EMPTY.format(str(path)))
    return found


def _load(path: Path) -> Any:
    """Return what a folder holds: a data set, or a dict of its parts.

    Raises:
        ValueError: if the package is missing, or the folder is damaged or without rows.
    """
    try:
        datasets = import_module("datasets")
    except ImportError as error:
        raise ValueError(
            f"{path} is a Hugging Face data set, which needs a package that is missing. Run: pip install datasets."
        ) from error
    try:
        return datasets.load_from_disk(str(path))
    except Exception as error:  # whatever the package says of damaged files
        empty = next(filter(_holds_nothing, sorted(path.rglob("state.json"))), None)
        if empty is not None:
            raise ValueError(_EMPTY.format(str(empty.parent))) from error
        raise ValueError(f"{path} is not a whole Hugging Face data set ({said(error)}). Save it again.") from error


def _holds_nothing(state: Path) -> bool:
    """Return whether a data set was saved without rows: the package cannot read it then."""
    try:
        return json.loads(state.read_text("utf-8"))["_data_files"] == []
    except (OSError, ValueError, KeyError, TypeError):
        return False


def columns_of(part: Any, kinds: Iterable[str]) -> list[str]:
    """Return the names of the columns of some kinds, such as Image or ClassLabel."""
    return [name for name, feature in part.features.items() if type(feature).__name__ in set(kinds)]


def of_images(path: Path, column: Any, of: Callable[[Any], _T], *, rows: Iterable[int] | None = None) -> Iterator[_T]:
    """Yield what a function makes of each image.

    Args:
        path: of the data set, for messages.
        column: of images.
        of: the function.
        rows: which; all if None.

    Yields:
        What it returns.

    Raises:
        ValueError: if an image cannot be read.
    """
    for i in range(len(column)) if rows is None else rows:
        try:
            image = column[int(i)]
            if image is None:
                raise ValueError("it is missing")
            yield of(image)
        except (OSError, ValueError, SyntaxError) as error:
            raise ValueError(
                f"the image of row {i + 1} of {path.name} cannot be read ({said(error)}). Leave such rows out, and "
                f"save it again."
            ) from error


def labels_of(path: Path, part: Any, target: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the targets of a column.

    Args:
        path: of the data set, for messages.
        part: its rows.
        target: the column.

    Returns:
        The targets of the rows that have one, names of classes as texts; and which rows these are, numbered from 0. No
        target is one that is missing, empty or, of classes, below 0.

    Raises:
        ValueError: if the column does not hold one value for each row.
    """
    feature = part.features[target]
    if not columns_of(part, {"Value", "ClassLabel"}).count(target):
        raise ValueError(
            f"the column {target!r} of {path.name} holds lists or the like, and a target is one value for each row. "
            f"Choose another --target, or write a function that gives arrays: --data my_module:load."
        )
    values = list(part[target])
    named = type(feature).__name__ == "ClassLabel"
    rows = [i for i, value in enumerate(values) if not _is_missing(value) and not (named and value < 0)]
    found = [feature.int2str(int(values[i])) if named else values[i] for i in rows]
    return np.asarray(found), np.asarray(rows, dtype=np.int64)


def _is_missing(value: Any) -> bool:
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or (isinstance(value, str) and not value.strip())
