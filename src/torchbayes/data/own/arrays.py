"""Arrays of users: what a function of theirs returns, and npz archives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from torchbayes.data.base import Data
from torchbayes.data.files import opened
from torchbayes.data.own.given_arrays import as_array, check_alike, in_pairs, laid_out, numbers, rows_of
from torchbayes.data.own.rows import Encoded, Encoder, Form, Rows, assemble

# names that archives use for inputs and targets, of training or all rows, and of test rows
_NAMES = (("inputs", "targets"), ("x_train", "y_train"), ("X_train", "y_train"), ("x", "y"), ("X", "y"))
_NAMES += (("images", "labels"), ("data", "target"), ("features", "labels"))
_TESTS = (("test_inputs", "test_targets"), ("x_test", "y_test"), ("X_test", "y_test"))
_TESTS += (("test_images", "test_labels"),)


def as_data(name: str, found: Any, *, split: int = 0, train_size: int | None = None) -> Data:
    """Return what a user's loader gave as a data set, standardised with the statistics of the training rows.

    `found` is a data set; or inputs and targets (arrays, tensors or lists of numbers); or these and test inputs and
    test targets, in pairs or one after the other; or a dict of such by the names that archives may have. `split`
    numbers the draw of the test rows, where none are given; `train_size` keeps that many training rows, drawn at
    random.
    """
    if isinstance(found, Data):
        if train_size is not None:
            raise ValueError(
                f"`train_size` cannot choose rows of {name}, which is standardised already. Return arrays instead."
            )
        return replace(found, name=name)
    named = isinstance(found, Mapping) and not hasattr(found, "save_to_disk")
    pairs = _named(name, found) if named else in_pairs(name, found)
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
    for part, (inputs, _) in zip(parts[1:], pairs[1:], strict=True):
        check_alike(f"test inputs of {where}", part.inputs, shape, was=dtype, now=as_array(where, "", inputs).dtype)
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
