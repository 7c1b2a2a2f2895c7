"""Data that come in ready-made batches: a list, an IterableDataset, a loader with a sampler of batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from torchbayes.model.batches.batch import Batch, concatenate, tensors_of
from torchbayes.model.batches.loaders import evenly_spaced, read, reading, same_rows
from torchbayes.model.model import Model
from torchbayes.model.sources.first import First, checked_rows


class Stream:
    """Ready-made batches that can be iterated repeatedly; all members share their order."""

    def __init__(self, model: Model, batches: Iterable[Any]) -> None:
        """Count the rows in one pass; ValueError if there are none, TypeError if the iterable can be read only once."""
        with reading():  # the iterator of a loader draws a seed for its workers
            once = iter(batches) is batches
        if once:
            raise TypeError("the data can be iterated only once. Give a list of batches, a Dataset or a DataLoader.")
        sizes = [model.unpack(batch).size for batch in read(batches)]
        if not sum(sizes):
            raise ValueError("the data are empty: the loader yields no rows. Check the filter before it.")
        self._model, self._batches, self._sizes = model, batches, sizes
        self._first: First | None = None

    def kept(self, rows: Tensor) -> None:
        """Return None, because a stream may give its rows in another order at every pass."""
        del rows

    @property
    def num_data(self) -> int:
        """N."""
        return sum(self._sizes)

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches of an epoch."""
        return len(self._sizes)

    def epoch(self, seeds: Sequence[int], epoch: int, skip: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch from number `skip` on, every tensor (M, B, ...)."""
        for number, rows in enumerate(_checked(self, *seeds[:1], epoch)):
            if number >= skip:
                yield rows.map(lambda t: t.expand(len(seeds), *t.shape))

    def inputs(self) -> Iterator[Any]:
        """Yield the inputs in the order of the stream."""
        for batch in read(self._batches):
            yield self._model.unpack(batch).inputs

    def batches(self) -> Iterator[Batch]:
        """Yield the batches of the stream."""
        yield from _checked(self)

    def rows(self) -> Batch:
        """Return all rows, checked, in the order of the stream."""
        return concatenate([*self.batches()])

    def site(self, number: int, members: int) -> Batch:
        """Return a batch of the stream, the same for all members; earlier batches are skipped."""
        rows = checked_rows(self._model, self._first, next(islice(read(self._batches), number, None)))
        return rows.map(lambda t: t.expand(members, *t.shape))

    def some(self, count: int) -> list[Batch]:
        """Return whole batches spread over the stream."""
        wanted = set(evenly_spaced(max(1, count * len(self._sizes) // self.num_data), len(self._sizes)))
        return [batch for number, batch in enumerate(_checked(self)) if number in wanted]

    def changes(self) -> bool:
        """Return whether rows differ between two passes, in whatever order they come."""
        passes = [map(self._model.unpack, read(self._batches, attempt)) for attempt in (1, 2)]
        first = [next(each) for each in passes]
        if same_rows(*first):
            return False
        sums = [_sums(chain([batch], rest)) for batch, rest in zip(first, passes, strict=True)]
        return not all(map(partial(torch.allclose, rtol=1e-9), *sums))

    def check(self, *, training: bool = False) -> tuple[str, ...]:
        """Check the first batch; return as `Source.check`."""
        self._first = First(self._model, self._model.unpack(next(read(self._batches))))
        return self._first.faults.judged(training=training)


def _checked(stream: Stream, *integers: int) -> Iterator[Batch]:
    """Yield the batches of one pass of a stream; ValueError if the number of rows is not the one counted before."""
    rows = 0
    for batch in read(stream._batches, *integers):
        batch_rows = checked_rows(stream._model, stream._first, batch)
        if (rows := rows + batch_rows.size) > stream.num_data:
            break
        yield batch_rows
    if rows != stream.num_data:
        raise ValueError(
            f"every pass over the data must give as many rows as the first, {stream.num_data:,}; got "
            f"{'more' if rows > stream.num_data else f'{rows:,}'}. Give data that are the same at every pass."
        )


def _sums(batches: Iterable[Batch]) -> list[Tensor]:
    """Return the sums over all rows of each tensor of the inputs and of its square, float64."""
    totals: list[Tensor] = []
    for batch in batches:
        each = [t.double().sum(0) for t in tensors_of(batch.inputs)]
        each += [t.double().square().sum(0) for t in tensors_of(batch.inputs)]
        totals = [a + b for a, b in zip(totals, each, strict=True)] if totals else each
    return totals
