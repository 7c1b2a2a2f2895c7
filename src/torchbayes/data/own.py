"""Data that users bring along: arrays made into a data set, by rules that are stated here and nowhere else.

Targets that are whole numbers, bools or texts are classes; targets in floating point are a regression. Where no test
rows are given, a tenth of the rows is held out, drawn at random, of every class its share; each split is another draw.
Inputs of shape (rows, features) are standardised, unsigned bytes of shape (rows, channels, height, width) are images.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from torchbayes.checks import given, seen, whole
from torchbayes.data.base import Data, Raw, drawn, finish

HELD_OUT = 0.1
CLASSES = 1000  # beyond, whole numbers are taken for a regression that was not written as one
_FORM = "((inputs, targets), (test_inputs, test_targets)), or (inputs, targets), or a torchbayes.data.Data"

Arrays = tuple[np.ndarray, np.ndarray]


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
    raw = _raw(name, found, whole("split", split, least=0))
    raw = raw if train_size is None else drawn(name, raw, train_size)
    return finish(name, raw)


def _raw(name: str, found: Any, split: int) -> Raw:
    """Return the arrays of training and test rows.

    Raises:
        TypeError: if there are no two pairs, or no pair.
        ValueError: if the test rows have a class that no training row has.
    """
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise TypeError(f"{name} must give {_FORM}; got {seen(found)}.")
    apart = isinstance(found[0], tuple | list) and isinstance(found[1], tuple | list)
    pairs = [_pair(name, part) for part in (found if apart else [found])]
    classes: tuple[str, ...] = ()
    if pairs[0][1].dtype.kind in "iubUSO":
        values, labels = _classes(name, np.concatenate([targets for _, targets in pairs]))
        classes = tuple(map(str, values))
        ends = np.cumsum([len(targets) for _, targets in pairs])[:-1]
        pairs = [(pair[0], own) for pair, own in zip(pairs, np.split(labels, ends), strict=True)]
    train, test = pairs if apart else _held_out(name, pairs[0], split, stratify=bool(classes))
    missing = sorted(set(test[1]) - set(train[1])) if classes else []
    if missing:
        raise ValueError(f"no training row of {name} is of the class {classes[missing[0]]!r}, and test rows are.")
    levels = 255 if train[0].dtype == np.uint8 else None
    return Raw(train, test, f"{name}: data of the user", classes, levels)


def _pair(name: str, pair: Any) -> Arrays:
    """Return inputs and targets as arrays.

    Raises:
        TypeError: if they are no pair of arrays.
        ValueError: if their rows differ in number, there are none, or numbers are not finite.
    """
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(hasattr(part, "__len__") for part in pair):
        raise TypeError(f"{name} must give {_FORM}; got {seen(pair)}.")
    inputs, targets = (np.asarray(p.detach().cpu() if isinstance(p, Tensor) else p) for p in pair)
    targets = targets[:, 0] if targets.ndim == 2 and targets.shape[1] == 1 else targets
    if inputs.ndim < 2 or targets.ndim != 1 or len(inputs) != len(targets) or len(inputs) == 0:
        raise ValueError(
            f"{name} must give inputs (rows, ...) and one target for each row; got shapes {inputs.shape} and "
            f"{targets.shape}."
        )
    if inputs.dtype.kind not in "biuf":
        raise TypeError(f"inputs of {name} must be numbers; got dtype {inputs.dtype}. Encode texts as numbers first.")
    if inputs.dtype != np.uint8 or inputs.ndim != 4:
        inputs = inputs.astype(np.float64)
    for what, values in given(inputs=inputs, targets=targets).items():
        wrong = int((~np.isfinite(values)).sum()) if values.dtype.kind == "f" else 0
        if wrong:
            raise ValueError(f"{what} of {name} must be finite; {wrong} values are not. Remove or impute those rows.")
    return inputs, targets


def _classes(name: str, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the classes in order, and the number of each row's class.

    Raises:
        ValueError: if there is one class, or there are too many to be classes.
    """
    values, labels = np.unique(targets.astype(str) if targets.dtype.kind in "SO" else targets, return_inverse=True)
    if not 2 <= len(values) <= CLASSES:
        raise ValueError(
            f"targets of {name} are classes, being of dtype {targets.dtype}, and must be 2 to {CLASSES:,} of them; got "
            f"{len(values):,}. Targets of a regression are in floating point."
        )
    return values, labels.astype(np.int64)


def _held_out(name: str, pair: Arrays, split: int, *, stratify: bool) -> tuple[Arrays, Arrays]:
    """Return training and test rows, in their own order.

    Raises:
        ValueError: if there are too few rows to hold any out.
    """
    inputs, targets = pair
    rng, test = np.random.default_rng(split), np.zeros(len(targets), dtype=bool)
    groups = [np.flatnonzero(targets == k) for k in np.unique(targets)] if stratify else [np.arange(len(targets))]
    for rows in groups:
        test[rng.permutation(rows)[: round(HELD_OUT * len(rows))]] = True
    if not test.any():
        raise ValueError(f"{name} has too few rows ({len(targets)}) to hold a tenth of them out. Give test rows.")
    return (inputs[~test], targets[~test]), (inputs[test], targets[test])
