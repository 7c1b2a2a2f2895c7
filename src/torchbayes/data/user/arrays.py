"""Arrays of users: what a function of theirs returns, npz archives, and how images lie in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from torchbayes.checks import seen
from torchbayes.data.base import Data
from torchbayes.data.files import opened
from torchbayes.data.user.rows import Encoded, Encoder, Form, Rows, assemble
from torchbayes.data.user.table import missing

# names that archives use for inputs and targets, of training or all rows, and of test rows
_NAMES = (("inputs", "targets"), ("x_train", "y_train"), ("X_train", "y_train"), ("x", "y"), ("X", "y"))
_NAMES += (("images", "labels"), ("data", "target"), ("features", "labels"))
_TESTS = (("test_inputs", "test_targets"), ("x_test", "y_test"), ("X_test", "y_test"))
_TESTS += (("test_images", "test_labels"),)


def as_data(name: str, loaded: Any, *, split: int = 0, train_size: int | None = None) -> Data:
    """Return what a user's loader gave as a data set, standardised with the statistics of the training rows.

    `loaded` is a data set; or inputs and targets (arrays, tensors or lists of numbers); or these and test inputs and
    test targets, in pairs or one after the other; or a dict of such by the names that archives may have. `split`
    numbers the draw of the test rows, where none are given; `train_size` keeps that many training rows, drawn at
    random.
    """
    if isinstance(loaded, Data):
        if train_size is not None:
            raise ValueError(
                f"`train_size` cannot choose rows of {name}, which is standardised already. Return arrays instead."
            )
        return replace(loaded, name=name)
    named = isinstance(loaded, Mapping) and not hasattr(loaded, "save_to_disk")
    pairs = _named(name, loaded) if named else in_pairs(name, loaded)
    return _assembled(name, name, f"{name}, data of the user", pairs, split=split, train_size=train_size)


def read_archive(path: Path, *, split: int = 0, train_size: int | None = None) -> Data:
    """Return an npz archive as a data set.

    Its arrays have names such as inputs and targets, or x_train, y_train, x_test, y_test. See `as_data` for the
    settings.
    """
    pairs = _named(str(path), _archive(path))
    return _assembled(str(path), path.stem, path.name, pairs, split=split, train_size=train_size)


def _named(where: str, held: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """Return inputs and targets, and those for testing, by their names."""
    train = next((pair for pair in _NAMES if set(pair) <= held.keys()), None)
    if train is None:
        raise ValueError(
            f"{where} must hold arrays `inputs` and `targets` (and `test_inputs` and `test_targets`); it holds "
            f"{', '.join(map(str, held)) or 'none'}. Names as in x_train, y_train, x_test, y_test will do too."
        )
    test = next((pair for pair in _TESTS if set(pair) <= held.keys()), None)
    half = next((pair for pair in _TESTS if test is None and set(pair) & held.keys()), None)
    if half is not None:
        one, other = half if half[0] in held else half[::-1]
        raise ValueError(f"{where} holds `{one}` and no `{other}`; test rows need both. Add it, or remove `{one}`.")
    return [(held[pair[0]], held[pair[1]]) for pair in (train, test) if pair is not None]


def _assembled(
    where: str, name: str, source: str, pairs: Sequence[tuple[Any, Any]], *, split: int, train_size: int | None
) -> Data:
    """Return pairs of inputs and targets as a data set."""
    parts, dtype = [rows_of(where, *pair) for pair in pairs], as_array(where, "inputs", pairs[0][0]).dtype
    shape = parts[0].inputs.shape[1:]
    for test, (inputs, _) in zip(parts[1:], pairs[1:], strict=True):
        check_alike(f"test inputs of {where}", test.inputs, shape, was=dtype, now=as_array(where, "", inputs).dtype)
    form = Form(name, source, read_arrays_of(shape, dtype), partial(_fit, dtype, parts[0].notes))
    return assemble(form, parts, split=split, train_size=train_size)


def read_arrays_of(shape: Sequence[int], dtype: np.dtype | None = None) -> Any:
    """Return what reads rows of new inputs of this shape and dtype (any if None) from an .npz or .npy file."""

    def read(path: Path) -> Rows:
        if path.suffix == ".npy":
            with opened(path, "a whole array") as file:
                arrays = {"inputs": np.asarray(np.load(file, allow_pickle=False))}
        elif path.suffix == ".npz":
            arrays = _archive(path)
        else:
            raise ValueError(
                f"new rows here are arrays, in an .npy file or in an .npz file with `inputs`; got {path.name}. "
                f"Write it with numpy.save."
            )
        names = next((pair for pair in (*_TESTS, *_NAMES) if pair[0] in arrays), None)
        if names is None:
            raise ValueError(f"{path} must hold an array `inputs`; it holds {', '.join(arrays) or 'none'}.")
        raw = arrays[names[0]]
        reordered, _ = laid_out(raw)
        inputs = numbers(path.name, reordered)
        check_alike(f"inputs of {path.name}", inputs, shape, was=dtype, now=raw.dtype)
        targets = arrays.get(names[1])
        return Rows(inputs, None if targets is None else _column(targets))

    return read


def _column(targets: np.ndarray) -> np.ndarray:
    return targets[:, 0] if targets.ndim == 2 and targets.shape[1] == 1 else targets


def _fit(dtype: np.dtype, notes: tuple[str, ...], inputs: np.ndarray) -> tuple[Encoder, tuple[str, ...]]:
    shape = " x ".join(map(str, inputs.shape[1:]))
    if inputs.dtype == np.uint8:
        return Encoded, (f"Inputs: images of {shape}, standardised by channel.", *notes)
    if dtype.kind in "iu":
        notes += ("Whole numbers are standardised as all numbers are; for token ids give a torchbayes.data.Data.",)
    return Encoded, (f"Inputs: {shape} numbers, standardised.", *notes)


def _archive(path: Path) -> dict[str, np.ndarray]:
    with opened(path, "a whole npz archive of arrays") as file:
        archive = np.load(file, allow_pickle=False)
        return {name: archive[name] for name in getattr(archive, "files", ())}


_FORM = (
    "(inputs, targets), (inputs, targets, test_inputs, test_targets), ((inputs, targets), (test_inputs, "
    "test_targets)), a dict of arrays by these names, or a torchbayes.data.Data"
)
_SEVERAL = "A model here has one array of inputs; several need Python: torchbayes.fit."
_SMALLEST = 8  # height and width of images whose channel is not written


def in_pairs(name: str, loaded: Any) -> list[tuple[Any, Any]]:
    """Return what a user's function gave as one or two pairs of inputs and targets, the test pair second."""
    if isinstance(loaded, tuple | list) and len(loaded) == 4:
        return [(loaded[0], loaded[1]), (loaded[2], loaded[3])]
    if isinstance(loaded, tuple | list) and len(loaded) == 2:
        return [(pair[0], pair[1]) for pair in loaded] if all(map(_is_pair, loaded)) else [(loaded[0], loaded[1])]
    raise TypeError(f"{name} must give {_FORM}; got {seen(loaded)}.{_advice(loaded)}")


def _is_pair(value: Any) -> bool:
    """Return whether something is inputs and targets, and not an array in lists of numbers."""
    return isinstance(value, tuple | list) and len(value) == 2 and all(_holds_rows(each) for each in value)


def _holds_rows(value: Any) -> bool:
    return isinstance(value, tuple | list) or getattr(value, "ndim", 0) > 0


def _advice(value: Any) -> str:
    """Return advice for objects that hold rows and are no arrays."""
    if hasattr(value, "save_to_disk"):
        return " Save it with save_to_disk, and give that folder to --data."
    if hasattr(value, "to_numpy"):
        return " Of a data frame give frame[columns].to_numpy() and frame[target].to_numpy()."
    if isinstance(value, Dataset | DataLoader):
        return " Give the arrays themselves: those behind the data set, or its rows stacked."
    return ""


def as_array(name: str, role: str, value: Any) -> np.ndarray:
    """Return an array, a tensor, or lists of numbers as one array.

    `name` says where it comes from and `role` whether it is inputs or targets, for messages. Raises TypeError for
    anything else, ValueError for several arrays or rows of several lengths.
    """
    several = isinstance(value, tuple) and any(getattr(entry, "ndim", 0) for entry in value)
    if several or isinstance(value, Mapping):
        raise ValueError(f"{role} of {name} must be one array; got several. {_SEVERAL}")
    if isinstance(value, Dataset | DataLoader) or hasattr(value, "save_to_disk") or not hasattr(value, "__len__"):
        raise TypeError(f"{name} must give {_FORM}; got {seen(value)} as {role}.{_advice(value)}")
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = value.float() if value.dtype == torch.bfloat16 else value  # numpy has no bfloat16
    try:
        return np.asarray(value)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{role} of {name} must be one array, whose rows have one shape; got {seen(value)}. Fill rows up to one "
            f"length. {_SEVERAL}"
        ) from error


def rows_of(name: str, inputs: Any, targets: Any) -> Rows:
    """Return inputs and targets as rows: images in bytes, other inputs in float64, with a note on the layout of images.

    Raises TypeError if inputs are no numbers, or targets neither numbers nor names. Raises ValueError if there are no
    rows, their numbers differ, or a number is not finite.
    """
    x, y = as_array(name, "inputs", inputs), as_array(name, "targets", targets)
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if x.ndim == 1 and y.shape == x.shape:
        raise ValueError(
            f"inputs of {name} must have shape (rows, ...); got {x.shape}. If a row is one number, give "
            f"inputs[:, None]."
        )
    if y.ndim == 2 and len(x) == len(y):
        raise ValueError(
            f"{name} must give one target for each row; got {y.shape[1]} in an array of shape {y.shape}. Of rows with "
            f"a one for the class, give targets.argmax(1); of several targets give one, such as targets[:, 0]."
        )
    if x.ndim < 2 or y.ndim != 1 or len(x) != len(y) or len(x) == 0:
        raise ValueError(
            f"{name} must give inputs (rows, ...) and one target for each row; got shapes {x.shape} and {y.shape}. "
            f"The order is inputs, targets, test_inputs, test_targets."
        )
    _check_dates(name, inputs=x, targets=y)
    if y.dtype.kind not in "biufUSO":
        raise TypeError(f"targets of {name} must be numbers or names of classes; got dtype {y.dtype}. Convert them.")
    _check_finite(name, "targets", y)
    if y.dtype.kind == "O" and (missing(y) | (y != y)).any():  # noqa: PLR0124  NaN is not itself
        raise ValueError(f"targets of {name} must be known in every row; some are missing. Leave those rows out.")
    reordered, notes = laid_out(x)
    return Rows(numbers(name, reordered), y, None, notes)


def laid_out(inputs: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return images with their channels in the second axis, with a sentence if the axes were changed.

    Images are unsigned bytes of shape (rows, channels, height, width); or (rows, height, width, channels), where the
    last axis has 1 or 3 entries and the second has not; or (rows, height, width), of 8 pixels or more, without colour.
    """
    if inputs.dtype != np.uint8 or not inputs.size:
        return inputs, ()
    height_width = " x ".join(map(str, inputs.shape[1:3]))
    if inputs.ndim == 4 and inputs.shape[1] not in {1, 3} and inputs.shape[3] in {1, 3}:
        moved = np.ascontiguousarray(inputs.transpose(0, 3, 1, 2))
        return moved, (f"The arrays are taken for images of {height_width} whose channels come last.",)
    if inputs.ndim == 3 and min(inputs.shape[1:]) >= _SMALLEST:
        return inputs[:, None], (f"The arrays are taken for grey images of {height_width}, as they hold bytes.",)
    return inputs, ()


def numbers(name: str, inputs: np.ndarray) -> np.ndarray:
    """Return inputs, laid out by `laid_out`, in float64; images stay bytes. Raises TypeError for no numbers."""
    _check_dates(name, inputs=inputs)
    if inputs.dtype.kind not in "biuf":
        raise TypeError(
            f"inputs of {name} must be numbers; got dtype {inputs.dtype}. Encode texts as numbers first, or save a "
            f"table as CSV and give --data that file."
        )
    if inputs.dtype == np.uint8 and inputs.ndim == 4:
        return inputs
    inputs = inputs.astype(np.float64)
    _check_finite(name, "inputs", inputs)
    return inputs


def check_alike(subject: str, inputs: np.ndarray, shape: Sequence[int], *, was: np.dtype | None, now: np.dtype) -> None:
    """Check that new inputs have the row shape and the kind of dtype of those that were fitted.

    `was` is the dtype of the fitted inputs (any if None), `now` the dtype of these as given: bytes and floating point
    must not be mixed, because what value is white cannot be guessed. `subject` is for messages.
    """
    images = len(shape) == 3
    if was == np.uint8 and now != np.uint8 and (images or now.kind == "f"):
        raise ValueError(
            f"{subject} must be unsigned bytes, 0 to 255, as those that were fitted; got {now}. If white is 1 in them, "
            f"give (255 * inputs).round().astype('uint8')."
        )
    if was is not None and was.kind == "f" and now == np.uint8:
        raise ValueError(
            f"{subject} must be in floating point, as those that were fitted; got unsigned bytes. Scale them as those "
            f"were: if white was 1 there, give inputs / 255."
        )
    if inputs.shape[1:] != tuple(shape) or not len(inputs):
        raise ValueError(
            f"{subject} must have shape (rows, {', '.join(map(str, shape))}), as those that were fitted; got "
            f"{inputs.shape}."
        )


def _check_dates(name: str, **arrays: np.ndarray) -> None:
    for kind, values in arrays.items():
        if values.dtype.kind in "mM":
            raise TypeError(
                f"{kind} of {name} must be numbers; got dates or times, dtype {values.dtype}. Count days from a first "
                f"one: (dates - dates.min()) / numpy.timedelta64(1, 'D'); times by the division alone."
            )


def _check_finite(name: str, role: str, values: np.ndarray) -> None:
    wrong = int((~np.isfinite(values)).sum()) if values.dtype.kind == "f" else 0
    if wrong:
        raise ValueError(f"{role} of {name} must be finite; {wrong} values are not. Remove or impute those rows.")
