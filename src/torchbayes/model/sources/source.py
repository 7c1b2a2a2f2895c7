"""What every source of training data can do, and the first batch, against which later ones are checked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from torchbayes.model.batches.batch import Batch, on_rows
from torchbayes.model.model import Model, check_finite
from torchbayes.model.probes.functions import faults_of, watched


class Source(ABC):
    """Training data that can be read epoch by epoch."""

    _model: Model
    _bounds: list[int]  # the number of the first row of each batch of an epoch, and N

    @property
    def num_data(self) -> int:
        """N."""
        return self._bounds[-1]

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches of an epoch."""
        return len(self._bounds) - 1

    @abstractmethod
    def epoch(self, seeds: Sequence[int], epoch: int, skip: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch from number `skip` on, every tensor (M, B, ...)."""

    @abstractmethod
    def inputs(self) -> Iterator[Any]:
        """Yield the inputs of one pass in a fixed order, for batch-norm statistics."""

    @abstractmethod
    def batches(self) -> Iterator[Batch]:
        """Yield the batches of one pass in a fixed order, every tensor (B, ...)."""

    @abstractmethod
    def rows(self) -> Batch:
        """Return all rows, in a fixed order."""

    @abstractmethod
    def site(self, number: int, members: int) -> Batch:
        """Return a fixed part of the rows, of as many parts as an epoch has batches, every tensor (M, B, ...)."""

    @abstractmethod
    def some(self, count: int) -> list[Batch]:
        """Return about `count` rows spread over the data, always the same ones, in one or more whole batches."""

    @abstractmethod
    def check(self, *, training: bool = False) -> tuple[str, ...]:
        """Raise ValueError or TypeError when the data do not fit the model, or its network is no function.

        With `training`, a network that is no function is no error: its problems are returned, see `Faults.judged`.
        """

    @abstractmethod
    def changes(self) -> bool:
        """Return whether rows differ from pass to pass, as under augmentation."""

    @abstractmethod
    def again(self, model: Model, batch_size: int) -> Source:
        """Return a source of the same rows for a model, in batches of that size where they are not batched already."""

    @abstractmethod
    def kept(self, rows: Tensor) -> Source | None:
        """Return a source of the rows with these numbers (n,); None if rows cannot be told apart."""


class ReadSource(Source):
    """A source that is read batch by batch: each batch is checked against the first one, once that is known."""

    _first: First | None = None

    @abstractmethod
    def _read(self, *integers: int) -> Iterator[Any]:
        """Yield the batches of one pass, as they come, in a fixed order.

        Random numbers that are drawn meanwhile are a function of these integers and of the number of the batch.
        """

    def _checked(self, batch: Any) -> Batch:
        """Return a batch in the form that the model takes."""
        rows = self._model.unpack(batch)
        return self._first.check(rows) if self._first else rows

    def inputs(self) -> Iterator[Any]:
        for batch in self._read():
            yield self._model.unpack(batch).inputs

    def check(self, *, training: bool = False) -> tuple[str, ...]:
        self._first = First(self._model, self._model.unpack(next(self._read())))
        return self._first.faults.judged(training=training)


class First:
    """The first batch, checked against the model, so that later ones need no pass through the network.

    `faults` says why the network is no function on these rows.
    """

    def __init__(self, model: Model, batch: Batch) -> None:
        """Check the batch; ValueError says what does not fit."""
        with watched(model.network.device) as drawn:
            outputs = model.check(batch)
        self.faults = faults_of(model, batch, outputs, drew=drawn.moved)
        self._model, self._outputs = model, outputs[:1]
        self._shapes = _shapes(batch.targets)

    def check(self, batch: Batch) -> Batch:
        """Return a later batch, after checking that its values are finite and in range.

        Targets of another shape, as in texts padded batch by batch, are left to the likelihood.
        """
        check_finite(batch.inputs)
        if _shapes(batch.targets) == self._shapes:
            everywhere = self._outputs.expand(batch.size, *self._outputs.shape[1:])
            self._model.likelihood.check(everywhere, batch.targets)
        return batch


def _shapes(targets: Any) -> Any:
    """Return the shapes of one row's targets."""
    return on_rows(lambda tensor: tensor.shape[1:], targets)
