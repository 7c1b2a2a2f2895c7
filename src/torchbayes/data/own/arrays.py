"""Arrays of users: what a function of theirs returns, and npz archives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from torchbayes.checks import given, seen
from torchbayes.data.base import Data
from torchbayes.data.files import opened
from torchbayes.data.own.rows import Encoded, Encoder, Form, Rows, assemble

_FORM = "((inputs, targets), (test_inputs, test_targets)), or (inputs, targets), or a torchbayes.data.Data"
# names that archives use for inputs and targets, of training or all rows, and of test rows
_NAMES = (("inputs", "targets"), ("x_train", "y_train"), ("X_train", "y_train"), ("x", "y"), ("X", "y"))
_NAMES += (("images", "labels"), ("data", "target"), ("features", "labels"))
_TESTS = (("test_inputs", "test_targets"), ("x_test", "y_test"), ("X_test", "y_test"))
_TESTS += (("test_images", "test_labels"),)


def as_data(name: str, found: Any, *, split: int = 0, train_size: int | None = None) -> Data:
    """Return what a user's loader gave as a data set.

    Args:
        name: of the data set.
        found: a data set; or inputs and targets, arrays or tensors; or two such pairs, for training and testing.
        split: which draw of the test rows, where none are given.
        train_size: keep this many training rows, drawn at random; all by default.

    Returns:
        The data set, standardised with the statistics of the training rows.

    Raises:
        TypeError: if it is something else.
        ValueError: if the arrays do not fit together.
    """
    if isinstance(found, Data):
        if train_size is not None:
            raise ValueError(
                f"`train_size` cannot choose rows of {name}, which is standardised already. Return arrays instead."
            )
        return replace(found, name=name)
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise TypeError(f"{name} must give {_FORM}; got {seen(found)}.")
    apart = isinstance(found[0], tuple | list) and isinstance(found[1], tuple | list)
    parts = [_pair(name, part) for part in (found if apart else [found])]
    form = Form(name, f"{name}, data of the user", read_arrays_of(parts[0].inputs.shape[1:]), _fit)
    return assemble(form, parts, split=split, train_size=train_size)


def read_archive(path: Path, *, split: int = 0, train_size: int | None = None) -> Data:
    """Return an npz archive as a data set.

    Args:
        path: of the archive, whose arrays have names such as inputs and targets, or x_train, y_train, x_test, y_test.
        split: which draw of the test rows, where none are given.
        train_size: keep this many training rows, drawn at random; all by default.

    Returns:
        The data set.

    Raises:
        ValueError: if there are no such arrays.
    """
    held = _archive(path)
    train = next((pair for pair in _NAMES if set(pair) <= held.keys()), None)
    if train is None:
        raise ValueError(
            f"{path} must hold arrays `inputs` and `targets` (and `test_inputs` and `test_targets`); it holds "
            f"{', '.join(held) or 'none'}. Names as in x_train, y_train, x_test, y_test will do too."
        )
    test = next((pair for pair in _TESTS if set(pair) <= held.keys()), None)
    parts = [_pair(str(path), tuple(held[name] for name in pair)) for pair in (train, test) if pair is not None]
    form = Form(path.stem, path.name, read_arrays_of(parts[0].inputs.shape[1:]), _fit)
    return assemble(form, parts, split=split, train_size=train_size)


def read_arrays_of(shape: Sequence[int]) -> Any:
    """Return what reads rows of new inputs from an .npz or .npy file.

    Args:
        shape: of one row.

    Returns:
        path -> rows.
    """

    def read(path: Path) -> Rows:
        if path.suffix == ".npy":
            with opened(path, "a whole array") as file:
                held = {"inputs": np.asarray(np.load(file, allow_pickle=False))}
        elif path.suffix == ".npz":
            held = _archive(path)
        else:
            raise ValueError(
                f"new rows here are arrays, in an .npy file or in an .npz file with `inputs`; got {path.name}. "
                f"Write it with numpy.save."
            )
        names = next((pair for pair in (*_TESTS, *_NAMES) if pair[0] in held), None)
        if names is None:
            raise ValueError(f"{path} must hold an array `inputs`; it holds {', '.join(held) or 'none'}.")
        inputs = _numbers(path.name, held[names[0]])
        if inputs.shape[1:] != tuple(shape) or not len(inputs):
            raise ValueError(
                f"inputs of {path.name} must have shape (rows, {', '.join(map(str, shape))}), as those that were "
                f"fitted; got {inputs.shape}."
            )
        targets = held.get(names[1])
        return Rows(inputs, None if targets is None else _column(targets))

    return read


def _fit(inputs: np.ndarray) -> tuple[Encoder, tuple[str, ...]]:
    if inputs.dtype == np.uint8:
        return _as_images, (f"Inputs: images of {' x '.join(map(str, inputs.shape[1:]))}, standardised by channel.",)
    return _as_numbers, (f"Inputs: {' x '.join(map(str, inputs.shape[1:]))} numbers, standardised.",)


def _as_numbers(inputs: np.ndarray) -> Encoded:
    return Encoded(inputs.astype(np.float64))


def _as_images(inputs: np.ndarray) -> Encoded:
    if inputs.dtype != np.uint8:
        raise ValueError(f"images must be unsigned bytes, 0 to 255, as those that were fitted; got {inputs.dtype}.")
    return Encoded(inputs)


def _archive(path: Path) -> dict[str, np.ndarray]:
    with opened(path, "a whole npz archive of arrays") as file:
        archive = np.load(file, allow_pickle=False)
        return {name: archive[name] for name in getattr(archive, "files", ())}


def _pair(name: str, pair: Any) -> Rows:
    """Return inputs and targets as arrays.

    Raises:
        TypeError: if they are no pair of arrays.
        ValueError: if their rows differ in number, there are none, or numbers are not finite.
    """
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(hasattr(part, "__len__") for part in pair):
        raise TypeError(f"{name} must give {_FORM}; got {seen(pair)}.")
    inputs, targets = (np.asarray(p.detach().cpu() if isinstance(p, Tensor) else p) for p in pair)
    targets = _column(targets)
    if inputs.ndim < 2 or targets.ndim != 1 or len(inputs) != len(targets) or len(inputs) == 0:
        raise ValueError(
            f"{name} must give inputs (rows, ...) and one target for each row; got shapes {inputs.shape} and "
            f"{targets.shape}."
        )
    inputs = _numbers(name, inputs)
    _check_finite(name, targets=targets)
    return Rows(inputs, targets)


def _column(targets: np.ndarray) -> np.ndarray:
    return targets[:, 0] if targets.ndim == 2 and targets.shape[1] == 1 else targets


def _numbers(name: str, inputs: np.ndarray) -> np.ndarray:
    """Return inputs in float64, images as they are.

    Raises:
        TypeError: if they are no numbers.
        ValueError: if one is not finite.
    """
    if inputs.dtype.kind not in "biuf":
        raise TypeError(f"inputs of {name} must be numbers; got dtype {inputs.dtype}. Encode texts as numbers first.")
    if inputs.dtype == np.uint8 and inputs.ndim == 4:
        return inputs
    inputs = inputs.astype(np.float64)
    _check_finite(name, inputs=inputs)
    return inputs


def _check_finite(name: str, **arrays: np.ndarray) -> None:
    for what, values in given(**arrays).items():
        wrong = int((~np.isfinite(values)).sum()) if values.dtype.kind == "f" else 0
        if wrong:
            raise ValueError(f"{what} of {name} must be finite; {wrong} values are not. Remove or impute those rows.")
