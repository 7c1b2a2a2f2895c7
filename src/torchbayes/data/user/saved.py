"""Parts of data sets by their usual names; Hugging Face data sets on the disk: their parts, columns, images, labels."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from torchbayes.data.user.pictures import said

_WORDS = {
    "train": ("train", "training"),
    "test": ("test", "testing"),
    "validation": ("val", "valid", "validation", "dev"),
}


class Parts(NamedTuple):
    """Which parts of a data set are used."""

    names: tuple[str, ...]  # training part, and test part where there is one
    notes: tuple[str, ...]  # which part tests, and which are not used, in sentences


def kind_of(name: str) -> str | None:
    """Return the kind of part that a name means, in any case: train, test or validation; else None."""
    return next((kind for kind, words in _WORDS.items() if name.lower() in words), None)


def chosen(whole: str, names: Sequence[str]) -> Parts:
    """Return which parts are used; rows for validation are test rows where there are no others.

    Raises ValueError if there is no part for training, or two are for the same.
    """
    by_kind = {kind: [name for name in names if kind_of(name) == kind] for kind in _WORDS}
    if not by_kind["train"]:
        raise ValueError(f"{whole} must have a part called train; it has {', '.join(names)}. Rename one.")
    held_out = "test" if by_kind["test"] else "validation"
    double = next((by_kind[kind] for kind in ("train", held_out) if len(by_kind[kind]) > 1), None)
    if double is not None:
        raise ValueError(f"{whole} has more than one part of a kind: {', '.join(double)}. Rename or move all but one.")
    used = (*by_kind["train"], *by_kind[held_out])
    notes = []
    if len(used) == 1:
        notes.append(f"All rows are of the part {used[0]}: there is none to test on.")
    elif held_out == "validation":
        notes.append(f"Test rows: those of the part {used[1]}, as there is no part called test.")
    if unused := [name for name in names if name not in used]:
        notes.append(f"Not used: {', '.join(unused)}.")
    return Parts(used, tuple(notes))


_T = TypeVar("_T")
_EMPTY = "{} has no rows. Save a data set that has some."
TARGETS = ("label", "labels", "target", "class", "fine_label")


def is_saved(path: Path) -> bool:
    """Return whether a folder holds a data set that `save_to_disk` wrote."""
    return (path / "dataset_dict.json").is_file() or (path / "state.json").is_file()


def parts_of(path: Path) -> tuple[list[Any], tuple[str, ...]]:
    """Return the rows for training and those for testing, or all rows, and sentences on the choice.

    Raises ValueError if the package is missing, the folder is damaged, or the parts are empty or have other names.
    """
    saved = _load(path)
    if not isinstance(saved, dict):
        parts, notes = {path.name: saved}, ()
    else:
        names, notes = chosen(str(path), list(saved))
        parts = {f"the part {name} of {path.name}": saved[name] for name in names}
    for name, saved_part in parts.items():
        if not len(saved_part):
            raise ValueError(_EMPTY.format(name))
    return list(parts.values()), notes


def new_rows_of(path: Path) -> Any:
    """Return the rows of a new data set. Raises ValueError if it has several parts, or is empty or damaged."""
    saved = _load(path)
    if isinstance(saved, dict):
        if len(saved) != 1:
            example = next((name for name in saved if name == "test"), next(iter(saved), "test"))
            raise ValueError(
                f"{path} has the parts {', '.join(saved)}, and new rows are one of them. Name it: {path / example}."
            )
        saved = next(iter(saved.values()))
    if not len(saved):
        raise ValueError(_EMPTY.format(str(path)))
    return saved


def _load(path: Path) -> Any:
    """Return what a folder holds: a data set, or a dict of its parts."""
    try:
        datasets = import_module("datasets")
    except ImportError as error:
        raise ValueError(
            f"{path} is a Hugging Face data set, which needs a package that is missing. Run: pip install datasets."
        ) from error
    try:
        return datasets.load_from_disk(str(path))
    except Exception as error:  # the package raises anything for damaged files
        empty = next(filter(_holds_nothing, sorted(path.rglob("state.json"))), None)
        if empty is not None:
            raise ValueError(_EMPTY.format(str(empty.parent))) from error
        raise ValueError(f"{path} is not a whole Hugging Face data set ({said(error)}). Save it again.") from error


def _holds_nothing(state: Path) -> bool:
    """Return whether a data set was saved without rows, which the package cannot read."""
    try:
        return json.loads(state.read_text("utf-8"))["_data_files"] == []
    except (OSError, ValueError, KeyError, TypeError):
        return False


def columns_of(dataset: Any, kinds: Iterable[str]) -> list[str]:
    """Return the names of the columns of some kinds, such as Image or ClassLabel."""
    return [name for name, feature in dataset.features.items() if type(feature).__name__ in set(kinds)]


def of_images(path: Path, column: Any, of: Callable[[Any], _T], *, rows: Iterable[int] | None = None) -> Iterator[_T]:
    """Yield what a function returns for each image of a column, or of its `rows`. `path` is for messages."""
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


def labels_of(path: Path, dataset: Any, target: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the targets of a column, class names as texts, and the rows (from 0) that have one.

    A target that is missing, empty or, for classes, below 0 counts as none. Raises ValueError if the column does not
    hold one value for each row.
    """
    feature = dataset.features[target]
    if not columns_of(dataset, {"Value", "ClassLabel"}).count(target):
        raise ValueError(
            f"the column {target!r} of {path.name} holds lists or the like, and a target is one value for each row. "
            f"Choose another --target, or write a function that gives arrays: --data my_module:load."
        )
    values = list(dataset[target])
    named = type(feature).__name__ == "ClassLabel"
    rows = [i for i, value in enumerate(values) if not _is_missing(value) and not (named and value < 0)]
    labels = [feature.int2str(int(values[i])) if named else values[i] for i in rows]
    return np.asarray(labels), np.asarray(rows, dtype=np.int64)


def _is_missing(value: Any) -> bool:
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or (isinstance(value, str) and not value.strip())
