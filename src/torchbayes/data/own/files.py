"""Data sets from files and folders of users, each by the reader of its form; and new rows for any data set."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchbayes.checks import seen
from torchbayes.data.base import Data
from torchbayes.data.own import arrays, hugging_face, images, tabular
from torchbayes.data.own.pictures import SUFFIXES as IMAGES
from torchbayes.data.own.pictures import files_in, images_in, is_image
from torchbayes.data.own.rows import Encoded, New, Reader, Rows, shortened
from torchbayes.data.own.saved import is_saved
from torchbayes.data.own.table import SUFFIXES, is_table, read_table
from torchbayes.native.process import full_path


def is_file_name(name: str) -> bool:
    """Return whether the name of a data set is that of a file or folder: one that exists, or is written as such."""
    path = Path(name)
    return "/" in name or is_table(path) or path.suffix == ".npz" or (name != "" and _exists(full_path(path)))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that is too long, or holds a zero byte
        return False


def _existing(path: Path, named: str = "") -> Path:
    """Return the full path of a file or folder.

    Raises:
        FileNotFoundError: if nothing is there.
        ValueError: if it is a pipe or a device.
    """
    found = full_path(path)
    if not _exists(found):
        raise FileNotFoundError(f"there is no file or folder {path}{named}. Correct the path.")
    if not found.is_file() and not found.is_dir():
        raise ValueError(f"{path} is a pipe or a device, and no file or folder. Write its content to a file.")
    return found


def read_data(
    path: Path, settings: Mapping[str, Any] | None = None, *, split: int = 0, train_size: int | None = None
) -> Data:
    """Return a file or folder as a data set: a table, an npz archive, images by class, or a Hugging Face data set.

    Args:
        path: of the file or folder.
        settings: of its form, such as `target`, the column of a table that is to be predicted.
        split: which draw of the test rows, where none are given.
        train_size: keep this many training rows, drawn at random; all by default.

    Returns:
        The data set, with `notes` on what was made of the rows, and a `reader` for new ones.

    Raises:
        FileNotFoundError: if there is no such file or folder.
        ValueError: if it holds no data, or its form has no such setting.
    """
    found = _existing(path, ", which `data` names")
    read, what = _reader(found)
    known = [name for name in inspect.signature(read).parameters if name not in {"path", "split", "train_size"}]
    for name in settings or {}:
        if name not in known:
            has = f"Its settings are {', '.join(known)}." if known else "It has none."
            raise ValueError(f"{found.name} is {what}, which has no setting {seen(name)}. {has}")
    return _read(read, str(found), _stamp(found), json.dumps(dict(settings or {})), split, train_size)


@lru_cache(maxsize=2)  # the defaults of a command depend on the data, which the run then needs again
def _read(
    read: Callable[..., Data], path: str, _: tuple[Any, ...], settings: str, split: int, train_size: int | None
) -> Data:
    return read(Path(path), **json.loads(settings), split=split, train_size=train_size)


def _stamp(path: Path) -> tuple[Any, ...]:
    """Return what changes when a file, or one in a folder, is written."""
    tables = list(tabular.tables_in(path).values()) if path.is_dir() and not is_saved(path) else []
    files = [path] if path.is_file() else tables or sorted(files_in(path))
    return tuple((str(file), *((s := file.stat()).st_mtime_ns, s.st_size)) for file in files)


def _reader(path: Path) -> tuple[Callable[..., Data], str]:
    """Return what reads a file or folder, and what it is, in words.

    Raises:
        ValueError: if it is no data.
    """
    if path.is_dir():
        if is_saved(path):
            return hugging_face.reader_of(path), "a Hugging Face data set"
        if tabular.tables_in(path):
            return tabular.read_tabular, "a folder of tables"
        if images_in(path):
            return images.read_folder, "a folder of images"
        raise ValueError(
            f"{path} holds neither images nor the tables train.csv and test.csv, and is no whole Hugging Face data "
            f"set, which has a state.json. It must hold a folder of images for each class, such as {path.name}/cat and "
            f"{path.name}/dog, or those tables. Images have names that end in {shortened(IMAGES)}."
        )
    if path.suffix == ".npz":
        return arrays.read_archive, "an npz archive"
    if is_table(path):
        return tabular.read_tabular, "a table"
    raise ValueError(
        f"{path} must be a table ({', '.join(SUFFIXES)}), an npz archive, a folder of images by class, or a "
        f"Hugging Face data set on the disk. Of other data, write a function that gives arrays: --data my_module:load."
    )


def read_new(data: Data, path: Path) -> New:
    """Return new rows for the model of a data set, read as its own rows were.

    Args:
        data: the data set.
        path: a file or folder: of a table's data set a table with the same columns, of images images, of arrays an .npy
            or .npz file.

    Returns:
        The rows.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the rows are not like those of the data set.
    """
    found = _existing(path)
    return (data.reader or _reader_of(data))(found, data)


def _reader_of(data: Data) -> Callable[[Path, Data], New]:
    """Return what reads new rows for a data set that comes from no file of the user."""
    return Reader(partial(_rows, data=data), partial(_encoded, data=data), data.standardise.to(torch.float64))


def _rows(path: Path, *, data: Data) -> Rows:
    """Return rows from a file of arrays, of images, or of numbers in a table.

    Raises:
        ValueError: if they have another shape.
    """
    shape = data.input_shape
    if data.is_image and (path.is_dir() or is_image(path)):
        return images.read_images(path, (shape[0], shape[1], shape[2]), data)
    if len(shape) == 1 and is_table(path):
        columns = read_table(path).columns
        if len(columns) != shape[0] or any(values.dtype.kind == "O" for values in columns.values()):
            raise ValueError(
                f"{path} must have {shape[0]} columns of numbers, the inputs of {data.name} in their order; it has "
                f"{len(columns)} columns."
            )
        return Rows(np.stack([values.astype(np.float64) for values in columns.values()], 1), None)
    return arrays.read_arrays_of(shape)(path)


def _encoded(inputs: np.ndarray, *, data: Data) -> Encoded:
    """Return inputs as numbers.

    Raises:
        ValueError: if one is not finite, or of an image not from 0 to 1.
    """
    if not np.isfinite(inputs).all():
        raise ValueError(
            "new inputs must be finite numbers; some are missing or infinite. Fill them or leave them out."
        )
    if data.is_image and inputs.dtype != np.uint8 and (inputs.min() < 0 or inputs.max() > 1):
        raise ValueError(
            f"images must be bytes, or numbers from 0 to 1; got {inputs.min():g} to {inputs.max():g}. Divide them by "
            f"what stands for white."
        )
    return Encoded(inputs)
