"""Data sets from files and folders of users, each read by its form; and new rows for any data set."""

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
from torchbayes.data.user import arrays, hugging_face, images, tabular
from torchbayes.data.user.pictures import SUFFIXES as IMAGES
from torchbayes.data.user.pictures import files_in, images_in, is_image
from torchbayes.data.user.rows import Encoded, New, Reader, Rows, shortened
from torchbayes.data.user.saved import is_saved
from torchbayes.data.user.table import SUFFIXES, is_table, read_table
from torchbayes.native.process import full_path


def is_file_name(name: str) -> bool:
    """Return whether a data set's name is a file or folder: one that exists, or is written like one."""
    path = Path(name)
    return "/" in name or is_table(path) or path.suffix == ".npz" or (name != "" and _exists(full_path(path)))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # the name is too long or holds a zero byte
        return False


def _existing(path: Path, named: str = "") -> Path:
    """Return the full path of a file or folder. Raises FileNotFoundError if absent, ValueError for a pipe or device."""
    full = full_path(path)
    if not _exists(full):
        raise FileNotFoundError(f"there is no file or folder {path}{named}. Correct the path.")
    if not full.is_file() and not full.is_dir():
        raise ValueError(f"{path} is a pipe or a device, and no file or folder. Write its content to a file.")
    return full


def read_data(
    path: Path, settings: Mapping[str, Any] | None = None, *, split: int = 0, train_size: int | None = None
) -> Data:
    """Return a file or folder as a data set: a table, an npz archive, images by class, or a Hugging Face data set.

    `settings` are those of its form, such as `target`, the column of a table to predict. `split` numbers the draw of
    the test rows, where none are given; `train_size` keeps that many training rows, drawn at random. The data set has
    `notes` on how the rows were read, and a `reader` for new ones. Raises FileNotFoundError for no such file,
    ValueError if it holds no data or its form has no such setting.
    """
    full = _existing(path, ", which `data` names")
    read, kind = _reader(full)
    names = [name for name in inspect.signature(read).parameters if name not in {"path", "split", "train_size"}]
    for name in settings or {}:
        if name not in names:
            has = f"Its settings are {', '.join(names)}." if names else "It has none."
            raise ValueError(f"{full.name} is {kind}, which has no setting {seen(name)}. {has}")
    return _read(read, str(full), _stamp(full), json.dumps(dict(settings or {})), split, train_size)


@lru_cache(maxsize=2)  # a command reads the data twice: for its defaults, and for the run
def _read(
    read: Callable[..., Data], path: str, _: tuple[Any, ...], settings: str, split: int, train_size: int | None
) -> Data:
    return read(Path(path), **json.loads(settings), split=split, train_size=train_size)


def _stamp(path: Path) -> tuple[Any, ...]:
    """Return times of change and sizes of a file, or of those in a folder."""
    tables = list(tabular.tables_in(path).values()) if path.is_dir() and not is_saved(path) else []
    files = [path] if path.is_file() else tables or sorted(files_in(path))
    return tuple((str(file), *((s := file.stat()).st_mtime_ns, s.st_size)) for file in files)


def _reader(path: Path) -> tuple[Callable[..., Data], str]:
    """Return what reads a file or folder, and its form in words. Raises ValueError if it is no data."""
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

    `path` is a table with the same columns for the data set of a table, images for images, an .npy or .npz file for
    arrays. Raises FileNotFoundError for no such file, ValueError if the rows are not like those of the data set.
    """
    full = _existing(path)
    return (data.reader or _reader_of(data))(full, data)


def _reader_of(data: Data) -> Callable[[Path, Data], New]:
    """Return the reader of new rows for a data set that comes from no file of the user."""
    return Reader(partial(_rows, data=data), partial(_encoded, data=data), data.standardise.to(torch.float64))


def _rows(path: Path, *, data: Data) -> Rows:
    """Return rows from a file of arrays, of images, or of numbers in a table."""
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
    """Return inputs as numbers. Raises ValueError if one is not finite, or a pixel is not in [0, 1]."""
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
