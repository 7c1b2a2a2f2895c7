"""Data that come in ready-made batches: a list, an IterableDataset, a loader with a sampler of batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain, islice
from typing import Any

import torch
from torch import Tensor

from torchbayes.model.batches.batch import Batch, concatenate, tensors_of
from torchbayes.model.batches.loaders import evenly_spaced, read, reading, same_rows
from torchbayes.model.model import Model
from torchbayes.model.sources.source import ReadSource


class Stream(ReadSource):
    """Ready-made batches that can be iterated repeatedly; all members share their order."""

    def __init__(self, model: Model, batches: Iterable[Any]) -> None:
        """Count the rows in one pass; ValueError if there are none, TypeError if the iterable can be read only once."""
        with reading():  # the iterator of a loader draws a seed for its workers
            once = iter(batches) is batches
        if once:
            raise TypeError("the data can be iterated only once. Give a list of batches, a Dataset or a DataLoader.")
        self._model, self._batches = model, batches
        self._bounds = [*accumulate((model.unpack(batch).size for batch in read(batches)), initial=0)]
        if not self.num_data:
            raise ValueError("the data are empty: the loader yields no rows. Check the filter before it.")

    def kept(self, rows: Tensor) -> None:
        """Return None, because a stream may give its rows in another order at every pass."""
        del rows

    def epoch(self, seeds: Sequence[int], epoch: int, skip: int = 0) -> Iterator[Batch]:
        for number, rows in enumerate(self._counted(*seeds[:1], epoch)):
            if number >= skip:
                yield rows.map(lambda t: t.expand(len(seeds), *t.shape))

    def batches(self) -> Iterator[Batch]:
        return self._counted()

    def rows(self) -> Batch:
        return concatenate([*self.batches()])

    def site(self, number: int, members: int) -> Batch:
        """Return a batch of the stream, the same for all members; earlier batches are skipped."""
        rows = self._checked(next(islice(self._read(), number, None)))
        return rows.map(lambda t: t.expand(members, *t.shape))

    def some(self, count: int) -> list[Batch]:
        wanted = set(evenly_spaced(max(1, count * self.steps_per_epoch // self.num_data), self.steps_per_epoch))
        return [batch for number, batch in enumerate(self._counted()) if number in wanted]

    def changes(self) -> bool:
        """Return whether rows differ between two passes, in whatever order they come."""
        passes = [map(self._model.unpack, self._read(attempt)) for attempt in (1, 2)]
        first = [next(each) for each in passes]
        if same_rows(*first):
            return False
        sums = [_sums(chain([batch], rest)) for batch, rest in zip(first, passes, strict=True)]
        return not all(map(partial(torch.allclose, rtol=1e-9), *sums))

    def _read(self, *integers: int) -> Iterator[Any]:
        return read(self._batches, *integers)

    def _counted(self, *integers: int) -> Iterator[Batch]:
        """Yield the batches of one pass; ValueError if the number of rows is not the one counted before."""
        count = 0
        for rows in map(self._checked, self._read(*integers)):
            if (count := count + rows.size) > self.num_data:
                break
            yield rows
        if count != self.num_data:
            raise ValueError(
                f"every pass over the data must give as many rows as the first, {self.num_data:,}; got "
                f"{'more' if count > self.num_data else f'{count:,}'}. Give data that are the same at every pass."
            )


def _sums(batches: Iterable[Batch]) -> list[Tensor]:
    """Return the sums over all rows of each tensor of the inputs and of its square, float64."""
    totals: list[Tensor] = []
    for batch in batches:
        each = [t.double().sum(0) for t in tensors_of(batch.inputs)]
        each += [t.double().square().sum(0) for t in tensors_of(batch.inputs)]
        totals = [a + b for a, b in zip(totals, each, strict=True)] if totals else each
    return totals
