"""How rows of a user's data become a data set: what the targets are, which rows test, what is standardised.

A `Form` holds what depends on the kind of rows (table, arrays, images): how to read rows and how, given those for
training, to turn their inputs into numbers. New rows, read later, go the same way.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchbayes.checks import seen, whole
from torchbayes.data.base import Data, Raw, Standardise, finish, subset_of, unit_images
from torchbayes.data.user.table import Table

HELD_OUT = 0.1
CLASSES = 1000  # with more, whole numbers are taken for a regression written as integers
Task = Literal["classification", "regression"]


class Rows(NamedTuple):
    """Rows as a file holds them."""

    inputs: Any  # table or array, indexed by a mask
    targets: np.ndarray | None  # None where the file has none
    names: Sequence[str] | None = None  # identify the rows, such as file names; None: numbers from 1
    notes: tuple[str, ...] = ()  # how they were changed while reading, in sentences

    def pick(self, mask: np.ndarray) -> Rows:
        """Return the rows where a mask is true."""
        names = None if self.names is None else [name for name, keep in zip(self.names, mask, strict=True) if keep]
        return Rows(self.inputs[mask], None if self.targets is None else self.targets[mask], names)


class Encoded(NamedTuple):
    """Inputs as numbers."""

    values: np.ndarray  # float64 (rows, features), or uint8 (rows, channels, height, width) for images
    notes: tuple[str, ...] = ()  # what had to be done to these rows, in sentences
    unseen: tuple[str, ...] = ()  # those of them on values that no training row has and the model cannot tell apart


Encoder = Callable[[Any], Encoded]


@dataclass(frozen=True)
class Form:
    """One form of data that users have."""

    name: str
    source: str  # where the rows come from, in one line
    read: Callable[[Path], Rows]  # with or without targets
    fit: Callable[[Any], tuple[Encoder, tuple[str, ...]]]  # of training inputs: encoder, sentences on it
    most: int | None = None  # whole numbers are classes if they have at most this many values
    task: Task | None = None  # as the user states it


class New(NamedTuple):
    """New rows, ready for the model."""

    inputs: Tensor  # in the form of the data set
    targets: Tensor | None  # None where the file has none
    names: Sequence[str] | None  # identify the rows; None: numbers from 1
    notes: tuple[str, ...]  # what had to be done to them, in sentences


@dataclass(frozen=True, eq=False)
class Reader:
    """Reads new rows in the way the rows of a data set were read."""

    read: Callable[[Path], Rows]
    encode: Encoder
    standardise: Standardise  # in float64, because a column's mean can be large beside its spread
    tables: tuple[Table, ...] = ()  # training and test rows as they were, of a table

    def __call__(self, path: Path, data: Data) -> New:
        rows = self.read(path)
        encoded = self.encode(rows.inputs)
        values = torch.from_numpy(encoded.values)
        if values.dtype == torch.uint8:
            inputs = self.standardise.to(torch.float32)(unit_images(encoded.values, 255))
        else:
            inputs = self.standardise(values).to(data.train.inputs.dtype)
            far = (values.isfinite() & ~inputs.isfinite()).nonzero()
            if len(far):
                raise ValueError(
                    f"row {int(far[0, 0]) + 1} of {path.name} has {float(values[tuple(far[0])]):g}, too far from the "
                    f"training rows to be a number in their units. Correct it or leave it empty."
                )
        targets = None if rows.targets is None else encode_targets(path.name, rows.targets, data)
        return New(inputs, targets, rows.names, (*rows.notes, *encoded.notes))


def assemble(form: Form, parts: Sequence[Rows], *, split: int, train_size: int | None) -> Data:
    """Return rows as a data set, standardised with the statistics of the training rows.

    `parts` are training and test rows, or all rows, of which a tenth is held out; `split` numbers the draw of these.
    `train_size` keeps that many training rows, drawn at random.
    """
    split = whole("split", split, least=0)
    classes, numbers = _classes(form, [np.asarray(subset.targets) for subset in parts])
    parts = [subset._replace(targets=encoded_targets) for subset, encoded_targets in zip(parts, numbers, strict=True)]
    apart = len(parts) == 2
    train, test = parts if apart else _held_out(form.name, parts[0], split, stratify=bool(classes))
    if apart and split:
        raise ValueError(f"`split` of {form.name} must be 0, as its test rows are given; got {split}.")
    missing = sorted(set(np.asarray(test.targets)) - set(np.asarray(train.targets))) if classes else []
    if missing:
        raise ValueError(
            f"no training row of {form.name} is of the class {classes[missing[0]]!r}, and test rows are. Move such "
            f"rows to the training rows, or remove them."
        )
    if train_size is not None:
        train = train.pick(subset_of(form.name, len(np.asarray(train.targets)), train_size))
    encode, notes = form.fit(train.inputs)
    encoded = [encode(subset.inputs) for subset in (train, test)]
    (x, y), (x_test, y_test) = ((e.values, np.asarray(p.targets)) for e, p in zip(encoded, (train, test), strict=True))
    images = x.dtype == np.uint8
    data = finish(form.name, Raw((x, y), (x_test, y_test), form.source, classes, 255 if images else None))
    exact = data.standardise if images else Standardise.fit(torch.from_numpy(x))
    notes_of_data = (_of_rows(form, data, apart=apart), _of_targets(form, data, np.asarray(numbers[0])), *notes)
    checksum = 0
    for content in (
        "\n".join(classes).encode(),
        *(np.ascontiguousarray(subset).data for subset in (x, y, x_test, y_test)),
    ):
        checksum = zlib.crc32(content, checksum)
    of_test = (*encoded[1].notes, *repeated(data, data.test.inputs))
    notes_of_data += tuple(f"Of the test rows: {note[0].lower()}{note[1:]}" for note in of_test)
    tables = tuple(subset.inputs for subset in (train, test) if isinstance(subset.inputs, Table))
    return replace(data, notes=notes_of_data, reader=Reader(form.read, encode, exact, tables), checksum=checksum)


def encode_targets(name: str, targets: np.ndarray, data: Data) -> Tensor:
    """Return targets in the form of a data set: labels (N,), or standardised numbers (N, 1). `name` is for messages."""
    if data.classes:
        label_of = {label: i for i, label in enumerate(data.classes)}
        texts = [str(target) for target in targets.tolist()]
        wrong = next((i for i, text in enumerate(texts) if text not in label_of), None)
        if wrong is not None:
            raise ValueError(
                f"row {wrong + 1} of {name} is of the class {texts[wrong]!r}; those of {data.name} are "
                f"{shortened(data.classes)}. Remove such rows."
            )
        return torch.tensor([label_of[text] for text in texts], dtype=torch.int64)
    numbers = np.array([*map(as_number, targets.tolist())]) if targets.dtype.kind in "USO" else targets
    wrong = next(iter(np.flatnonzero(~np.isfinite(numbers))), None)
    if wrong is not None:
        raise ValueError(
            f"row {wrong + 1} of {name} has the target {seen(targets.tolist()[wrong])}; those of {data.name} are "
            f"finite numbers. Correct or remove such rows."
        )
    values = torch.from_numpy(numbers.astype(np.float64)).reshape(-1, 1)
    scaling = data.target_standardise
    return (values if scaling is None else (values - scaling.mean.double()) / scaling.scale.double()).float()


def as_number(value: object) -> float:
    """Return a value as a float, NaN where it is none."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (ValueError, TypeError):
        return np.nan


def shortened(names: Sequence[str], most: int = 12) -> str:
    """Join names with commas; beyond `most`, say how many more."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def _classes(form: Form, targets: list[np.ndarray]) -> tuple[tuple[str, ...], list[np.ndarray]]:
    """Return class names (none for a regression), and the targets of each part as labels or numbers."""
    kind = np.concatenate(targets).dtype.kind
    texts = kind in "USO"
    values, labels = np.unique(
        np.concatenate([part_targets.astype(str) if texts else part_targets for part_targets in targets]),
        return_inverse=True,
    )
    by_rule = texts or kind == "b" or (kind in "iu" and (form.most is None or len(values) <= form.most))
    task: Task = form.task or ("classification" if by_rule else "regression")
    if task == "regression":
        if texts:
            raise ValueError(
                f"targets of {form.name} are texts, which are classes and no regression, such as "
                f"{seen(values[0].item())}. Write them as plain numbers, such as 1234.56."
            )
        return (), [part_targets.astype(np.float64) for part_targets in targets]
    if len(values) == 1:
        raise ValueError(
            f"all {len(labels):,} targets of {form.name} are {seen(values[0].item())}: there is nothing to learn. "
            f"Choose another target, or give rows with other values too."
        )
    if len(values) > CLASSES:
        raise ValueError(
            f"a classification has at most {CLASSES:,} classes; the targets of {form.name} have {len(values):,} "
            f"different values. {'Join rare ones' if texts else 'Give numbers of a regression in floating point'}."
        )
    ends = np.cumsum([len(part_targets) for part_targets in targets])[:-1]
    return tuple(map(str, values)), list(np.split(labels.astype(np.int64), ends))


def _held_out(name: str, rows: Rows, split: int, *, stratify: bool) -> tuple[Rows, Rows]:
    """Return training and test rows, a tenth of each class or of all, in their own order."""
    targets = np.asarray(rows.targets)
    rng, test = np.random.default_rng(split), np.zeros(len(targets), dtype=bool)
    groups = [np.flatnonzero(targets == k) for k in np.unique(targets)] if stratify else [np.arange(len(targets))]
    for group in groups:
        test[rng.permutation(group)[: round(HELD_OUT * len(group))]] = True
    if not test.any():
        if stratify:
            raise ValueError(
                f"a tenth of the rows of {name}, of every class its share, is none: its {len(groups):,} classes have "
                f"at most {max(map(len, groups))} rows each. Give test rows, or classes with more rows."
            )
        raise ValueError(f"{name} has too few rows ({len(targets)}) to hold a tenth of them out. Give test rows.")
    return rows.pick(~test), rows.pick(test)


def _of_rows(form: Form, data: Data, *, apart: bool) -> str:
    train, test = len(data.train.targets), len(data.test.targets)
    if apart:
        return f"{form.source}: {train:,} rows to train on and {test:,} to test on, as they are given."
    share = ", of every class its share" if data.classes else ""
    return (
        f"{form.source}: {train:,} rows to train on; {test:,}, a tenth, held out at random to test on{share} "
        f"(--split 1, 2, ... hold out others)."
    )


def _of_targets(form: Form, data: Data, numbers: np.ndarray) -> str:
    if data.target_standardise is not None:
        return (
            f"Targets: numbers (mean {numbers.mean():.4g}, standard deviation {numbers.std():.4g}), standardised "
            f"unless they are counts."
        )
    counts = np.bincount(numbers, minlength=len(data.classes))
    shown = [f"{label} ({count:,})" for label, count in zip(data.classes, counts, strict=True)]
    advice = "" if form.most is None else " A number instead: --data_settings.task regression."
    whole_numbers = all(label.lstrip("-").isdigit() for label in data.classes)
    return f"Targets: {len(data.classes)} classes, {shortened(shown)}.{advice if whole_numbers else ''}"


def repeated(data: Data, inputs: Tensor) -> tuple[str, ...]:
    """Return a sentence on rows whose inputs equal those of a training row; empty if there are none."""
    count = shared(data.train.inputs, inputs)
    if not count:
        return ()
    return (f"Rows with the same inputs as a training row: {count:,} of {len(inputs):,}; scores on them are too good.",)


def shared(known: Tensor, inputs: Tensor) -> int:
    """Return how many rows have the inputs of a known row."""
    known_rows = {row.tobytes() for row in known.cpu().numpy()}
    return sum(row.tobytes() in known_rows for row in inputs.cpu().numpy())
