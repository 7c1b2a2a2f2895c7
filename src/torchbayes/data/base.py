"""What a data set is: two `(inputs, targets)` pairs, ready for a model, and the way back to their raw units."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchbayes.checks import check_name, check_tensor, seen, whole
from torchbayes.display import Overview, shown
from torchbayes.randomness.seeds import Purpose, generator

_SHOWN = 8  # images side by side in a notebook


class Pair(NamedTuple):
    """Inputs and targets with the same number of rows; a plain `(inputs, targets)` tuple."""

    inputs: Tensor
    targets: Tensor


@dataclass(frozen=True, eq=False)
class Standardise:
    """The map x -> (x - mean) / scale, with statistics that broadcast against one row.

    Args:
        mean: What is subtracted: shape (D,) for vectors, (C, 1, 1) for images, in raw units.
        scale: What is divided by, same shape, positive, in raw units.
    """

    mean: Tensor
    scale: Tensor

    def __post_init__(self) -> None:
        check_tensor(mean=self.mean, scale=self.scale)
        if not torch.isfinite(self.mean).all():
            raise ValueError("`mean` must be finite; it has NaN or infinite values. Look for them in the data.")
        if not ((self.scale > 0) & torch.isfinite(self.scale)).all():
            low = self.scale.min().item()
            raise ValueError(f"`scale` must be finite and above 0; got NaN or infinite values, or {low:g}.")

    @classmethod
    def fit(cls, values: Tensor, dims: tuple[int, ...] = (0,)) -> Standardise:
        """Measure mean and standard deviation (divisor N) over `dims`; a constant column gets scale 1.

        "Constant" is judged relative to the size of the column: rounding alone leaves a spread near 1e-16 of it, and
        dividing by that would blow noise up to unit variance.

        Args:
            values: Training rows, floating point, shape (N, ...).
            dims: Axes to average over, the row axis included.

        Returns:
            The statistics, with the other axes kept.
        """
        var, mean = torch.var_mean(values, dim=dims, correction=0, keepdim=True)
        scale = var.sqrt()[0]
        tiny = 1e-9 if values.dtype == torch.float64 else 1e-6
        constant = scale <= tiny * values.abs().amax(dim=dims, keepdim=True)[0]
        return cls(mean[0], torch.where(constant, torch.ones_like(scale), scale))

    @classmethod
    def identity(cls) -> Standardise:
        """Return the map that changes nothing (mean 0, scale 1)."""
        return cls(torch.zeros(()), torch.ones(()))

    def to(self, dtype: torch.dtype) -> Standardise:
        """Return the same map with its statistics in another dtype."""
        return Standardise(self.mean.to(dtype), self.scale.to(dtype))

    def __call__(self, values: Tensor) -> Tensor:
        """Return (values - mean) / scale, on the device of `values`."""
        return (values - self.mean.to(values.device)) / self.scale.to(values.device)

    def inverse(self, values: Tensor) -> Tensor:
        """Return values * scale + mean, in raw units."""
        return values * self.scale.to(values.device) + self.mean.to(values.device)


def _overview(data: Data) -> Overview:
    facts: dict[str, Any] = {"name": data.name, "train": len(data.train.inputs), "test": len(data.test.inputs)}
    facts |= {"inputs": " × ".join(map(str, data.input_shape)), "task": data.task}
    if data.classes:
        facts["classes"] = data.num_classes
    return Overview("Data", facts, picture=_strip(data))


@shown(_overview)
@dataclass(frozen=True, eq=False)
class Data:
    """A data set by name, split and standardised; all statistics come from the training rows alone.

    Args:
        name: The name it was loaded by.
        task: What the targets are.
        train: Training rows. Images are float32 (N, C, H, W), vectors float32 (N, D), texts int64 (N, length).
            Targets are int64 (N,) for classification, float32 (N, 1) for regression: standardised, or counts.
        test: Test rows, in the same form.
        classes: Class names in the order of the labels; empty for regression.
        standardise: From raw inputs to model inputs; images are raw in [0, 1]. The identity for token ids.
        target_standardise: From raw targets to model targets; None for labels and counts, which stay as they are.
        source: Where the numbers come from, in one line.
        notes: How the user's own data were read, in sentences.
        reader: Reads new rows from a file in the same way; None for sets without files of their own.
        checksum: Of the user's own training and test rows, whose files may change; None for others.
        target_name: Name of the target column of a table, such as "price [EUR]".
        words: Of texts: the word that each token id stands for, empty for marks; none where they are not known.
    """

    name: str
    task: Literal["classification", "regression"]
    train: Pair
    test: Pair
    classes: tuple[str, ...]
    standardise: Standardise
    target_standardise: Standardise | None
    source: str
    notes: tuple[str, ...] = ()
    reader: Callable[[Path, Data], Any] | None = None
    checksum: int | None = None
    target_name: str = ""
    words: tuple[str, ...] = ()

    @property
    def target_label(self) -> str:
        """Name of the target column, or "target"."""
        return self.target_name or "target"

    @property
    def target_unit(self) -> str:
        """Unit of the targets: the text in brackets at the end of the column name, or "units of" that name."""
        bracketed = re.search(r"[\[(]([^\[\]()]+)[\])]$", self.target_name)
        return bracketed[1].strip() if bracketed else f"units of {self.target_name or 'the target'}"

    @property
    def num_classes(self) -> int:
        """The number of classes, 0 for regression."""
        return len(self.classes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one row of the inputs."""
        return tuple(self.train.inputs.shape[1:])

    @property
    def is_image(self) -> bool:
        """Whether a row is an image (C, H, W)."""
        return len(self.input_shape) == 3

    def counts(self) -> Data:
        """Return the same rows with targets as raw counts, float32, not standardised.

        Returns:
            The data set with `target_standardise` None.

        Raises:
            ValueError: A target is not a whole number of at least 0.
        """
        raw_units, pairs = (self.target_standardise or Standardise.identity()).to(torch.float64), []
        for pair in (self.train, self.test):
            values = raw_units.inverse(pair.targets.double())
            counts = values.round()
            # standardised targets were rounded to float32; beyond 500,000 that hides whether a number is whole
            rounding = 1e-6 * values.abs().amax().clamp_min(1)
            wrong = values[((values - counts).abs() > rounding) | (counts < 0)]
            if len(wrong):
                raise ValueError(
                    f"targets of {self.name} must be counts, whole numbers of at least 0; got {float(wrong[0]):g}"
                )
            pairs.append(Pair(pair.inputs, counts.float()))
        return replace(self, train=pairs[0], test=pairs[1], target_standardise=None)


@dataclass(frozen=True, eq=False)
class Raw:
    """A data set as its files hold it, before subsetting and standardising."""

    train: tuple[np.ndarray, np.ndarray]  # inputs, targets
    test: tuple[np.ndarray, np.ndarray]
    source: str  # in one line
    classes: tuple[str, ...] = ()  # empty for regression
    levels: int | None = None  # of images: the pixel value that means white
    words: tuple[str, ...] = ()  # of texts: by token id

    def subset(self, rows: np.ndarray) -> Raw:
        """Return the same data with only these training rows."""
        inputs, targets = self.train
        return replace(self, train=(inputs[rows], targets[rows]))


def finish(name: str, raw: Raw) -> Data:
    """Turn raw arrays into model-ready tensors, standardised with the statistics of the training rows."""
    train, test, standardise = _inputs(raw)
    target_standardise = None
    if raw.classes:
        targets = [torch.from_numpy(t.astype(np.int64)) for _, t in (raw.train, raw.test)]
    else:
        columns = [torch.from_numpy(t.astype(np.float64)).reshape(-1, 1) for _, t in (raw.train, raw.test)]
        # it stays float64: in float32 the mean of targets around 1e9 would be off by up to 32
        target_standardise = Standardise.fit(columns[0])
        targets = [target_standardise(column).float() for column in columns]
    return Data(
        name=name,
        task="classification" if raw.classes else "regression",
        train=Pair(train, targets[0]),
        test=Pair(test, targets[1]),
        classes=raw.classes,
        standardise=standardise,
        target_standardise=target_standardise,
        source=raw.source,
        words=raw.words,
    )


def _inputs(raw: Raw) -> tuple[Tensor, Tensor, Standardise]:
    """Return training inputs, test inputs and the map that standardised them."""
    train, test = raw.train[0], raw.test[0]
    if raw.levels is not None:
        images, test_images = unit_images(train, raw.levels), unit_images(test, raw.levels)
        standardise = Standardise.fit(images, dims=(0, 2, 3))
        for values in (images, test_images):  # in place: CIFAR-10 is 0.6 GB as float32
            values.sub_(standardise.mean).div_(standardise.scale)
        return images, test_images, standardise
    if np.issubdtype(train.dtype, np.integer):
        return torch.from_numpy(train), torch.from_numpy(test), Standardise.identity()
    # float64 until the division is done: the mean of a column can be large beside its spread
    vectors, test_vectors = torch.from_numpy(train), torch.from_numpy(test)
    exact = Standardise.fit(vectors)
    return exact(vectors).float(), exact(test_vectors).float(), exact.to(torch.float32)


def unit_images(pixels: np.ndarray, levels: int) -> Tensor:
    """Scale integer pixels (N, C, H, W) from 0..levels to float32 in [0, 1]; returns a new tensor."""
    return torch.from_numpy(pixels).to(torch.float32, copy=True).div_(levels)


def of_classes(name: str, raw: Raw, classes: Sequence[str]) -> Raw:
    """Return the rows of at least two classes, with labels 0, 1, ... in the order in which the classes are given."""
    if not raw.classes:
        raise ValueError(f"`classes` are for classification; `{name}` is a regression. Leave them out.")
    if isinstance(classes, str) or not isinstance(classes, Sequence) or not all(isinstance(c, str) for c in classes):
        raise TypeError(f"`classes` must be names in a tuple or list, such as {raw.classes[:2]}; got {seen(classes)}.")
    for each in classes:
        check_name(f"class of {name}", each, raw.classes)
    if len(classes) < 2 or len(set(classes)) < len(classes):
        raise ValueError(f"`classes` must be at least two, each given once; got {', '.join(classes) or 'none'}.")
    label_of = np.full(len(raw.classes), -1)
    label_of[[raw.classes.index(each) for each in classes]] = np.arange(len(classes))
    parts = [
        (inputs[mask], labels[mask])
        for inputs, labels in ((inputs, label_of[targets]) for inputs, targets in (raw.train, raw.test))
        for mask in [labels >= 0]
    ]
    return replace(raw, train=parts[0], test=parts[1], classes=tuple(classes))


def drawn(name: str, raw: Raw, train_size: int, *, seed: int = 0) -> Raw:
    """Return a data set with `train_size` of its training rows, drawn without replacement, in their order."""
    return raw.subset(np.flatnonzero(subset_of(name, len(raw.train[1]), train_size, seed=seed)))


def subset_of(name: str, rows: int, train_size: int, *, seed: int = 0) -> np.ndarray:
    """Return a mask (rows,) of `train_size` training rows drawn without replacement."""
    if whole("train_size", train_size) > rows:
        raise ValueError(f"`train_size` of `{name}` must be between 1 and its {rows} rows; got {train_size}.")
    mask = np.zeros(rows, dtype=bool)
    mask[torch.randperm(rows, generator=generator(Purpose.SUBSET, seed))[:train_size].numpy()] = True
    return mask


def _strip(data: Data) -> Callable[[], bytes] | None:
    """Return what draws the first training images side by side as a PNG; None for data without images."""
    if not data.is_image:
        return None

    def draw() -> bytes:
        import matplotlib.image

        images = data.standardise.inverse(data.train.inputs[:_SHOWN]).clamp(0, 1)
        strip = torch.cat([*torch.nn.functional.pad(images, (1, 1, 1, 1), value=1.0)], dim=-1)
        factor = max(1, 40 // images.shape[-1])
        pixels = strip.repeat_interleave(factor, 1).repeat_interleave(factor, 2).movedim(0, -1).expand(-1, -1, 3)
        matplotlib.image.imsave(file := BytesIO(), pixels.numpy(), format="png")
        return file.getvalue()

    return draw
