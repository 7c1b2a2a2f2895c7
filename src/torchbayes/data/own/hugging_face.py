"""Hugging Face data sets on the disk, as `save_to_disk` of the package `datasets` leaves them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from torchbayes.checks import check_memory
from torchbayes.data.base import Data, check_name
from torchbayes.data.own.images import SIZE, pixels, read_images
from torchbayes.data.own.rows import Encoded, Form, Rows, Task, assemble, shortened
from torchbayes.data.own.table import from_frame
from torchbayes.data.own.tabular import Tabular, of_tables

_TARGETS = ("label", "labels", "target", "class", "fine_label")


def is_saved(path: Path) -> bool:
    """Return whether a folder holds a data set that `save_to_disk` wrote."""
    return (path / "dataset_dict.json").is_file() or (path / "state.json").is_file()


def read_saved(
    path: Path,
    *,
    target: str | None = None,
    task: Task | None = None,
    leave_out: Sequence[str] = (),
    categorical: Sequence[str] = (),
    size: int | None = None,
    split: int = 0,
    train_size: int | None = None,
) -> Data:
    """Return a data set that `save_to_disk` wrote.

    Args:
        path: of the folder.
        target: column that is to be predicted; one called label or target if None.
        task: of a table: classification or regression.
        leave_out: columns of a table that are no inputs.
        categorical: columns of a table whose numbers are names.
        size: height and width of images; that of the images where they have one, else 32.
        split: which draw of the test rows, where none are given.
        train_size: keep this many training rows, drawn at random; all by default.

    Returns:
        The data set.

    Raises:
        ValueError: if it holds neither images nor a table, or the package `datasets` is not installed.
    """
    found = _load(path)
    first = found[0]
    names = list(first.column_names)
    named = [name for name in _TARGETS if name in names]
    if target is None and not named:
        raise ValueError(f"say which column of {path.name} is to be predicted: --target {' or '.join(names)}.")
    target = target or named[0]
    check_name(f"column of {path.name}", target, names)
    kinds = {name: type(feature).__name__ for name, feature in first.features.items()}
    pictures = [name for name, kind in kinds.items() if kind == "Image"]
    if pictures:
        return _images(path, found, pictures[0], target, size=size, split=split, train_size=train_size)
    other = [
        name for name, kind in kinds.items() if kind not in {"Value", "ClassLabel"} and name not in (leave_out or [])
    ]
    if other:
        raise ValueError(
            f"columns {shortened(other)} of {path.name} are lists or the like, which no network here takes. Leave them "
            f"out with --data_settings.leave_out, or write a function that gives arrays: --data my_module:load."
        )
    frames = [part.to_pandas() for part in found]
    for frame, part in zip(frames, found, strict=True):
        if kinds[target] == "ClassLabel":
            frame[target] = part.features[target].int2str(frame[target].tolist())
    source = f"{path.name}, a Hugging Face data set"
    about = Tabular(path.name, source, target, leave_out, categorical, task)
    return of_tables(about, [from_frame(frame, str(path)) for frame in frames], split=split, train_size=train_size)


def _load(path: Path) -> list[Any]:
    """Return the rows for training and those for testing, or all rows.

    Raises:
        ValueError: if the package is missing, the folder is damaged, or the parts are others.
    """
    try:
        datasets = import_module("datasets")
    except ImportError as error:
        raise ValueError(
            f"{path} is a Hugging Face data set, which needs a package that is missing. Run: pip install datasets."
        ) from error
    try:
        found = datasets.load_from_disk(str(path))
    except Exception as error:  # whatever the package says of damaged files
        raise ValueError(f"{path} is not a whole Hugging Face data set ({error}). Save it again.") from error
    if not isinstance(found, datasets.DatasetDict):
        return [found]
    test = next((name for name in ("test", "validation", "valid") if name in found), None)
    if "train" not in found:
        raise ValueError(f"{path} must have a part called train; it has {', '.join(found)}. Rename one.")
    return [found["train"]] if test is None else [found["train"], found[test]]


def _images(
    path: Path, parts: list[Any], column: str, target: str, *, size: int | None, split: int, train_size: int | None
) -> Data:
    """Return a data set of images.

    Raises:
        ValueError: if the targets are no classes.
    """
    looks = {(image.height, image.width, image.mode) for part in parts for image in part[column]}
    sizes = {look[:2] for look in looks}
    height, width = (size, size) if size else next(iter(sizes)) if len(sizes) == 1 else (SIZE, SIZE)
    shape = (1 if all(mode in {"L", "1"} for *_, mode in looks) else 3, height, width)
    rows = []
    for part in parts:
        check_memory(5 * len(part) * int(np.prod(shape)), "the images", images=len(part))
        labels = part[target]
        if type(part.features[target]).__name__ == "ClassLabel":
            labels = part.features[target].int2str(list(labels))
        rows.append(Rows(np.stack([pixels(image, shape) for image in part[column]]), np.asarray(list(labels))))
    note = f"Inputs: images of {height} x {width}, {'grey' if shape[0] == 1 else 'in colour'}, standardised by channel."
    source = f"{path.name}, a Hugging Face data set"
    form = Form(path.name, source, partial(read_images, shape=shape), lambda _: (Encoded, (note,)))
    return assemble(form, rows, split=split, train_size=train_size)
