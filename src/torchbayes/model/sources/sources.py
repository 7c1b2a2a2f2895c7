"""Training data as minibatches with a member axis, in an order that is a function of (seed, member, epoch) alone.

Every member sees the data in its own order. An epoch over N rows has ceil(N / batch_size) batches whose sizes differ
by at most one, so there is never a tiny last batch that would upset batch norm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain, islice, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from torchbayes.checks import seen
from torchbayes.checksum import checksums
from torchbayes.model.batches.batch import Batch, concatenate, tensors_of
from torchbayes.model.batches.loaders import (
    ForMembers,
    batches_of,
    evenly_spaced,
    for_members,
    is_indexed,
    read,
    reading,
    rows_of_loader,
    same_rows,
)
from torchbayes.model.model import Model
from torchbayes.model.sources.source import First, ReadSource, Source
from torchbayes.randomness.seeds import Purpose, generator


def even_bounds(num_data: int, batch_size: int) -> list[int]:
    """Return the bounds of ceil(N / batch_size) slices whose sizes differ by at most one."""
    steps = -(-num_data // batch_size)
    return [num_data * step // steps for step in range(steps + 1)]


def whole_batches(count: int, bounds: Sequence[int]) -> list[list[int]]:
    """Return the indices of about `count` rows spread over a table, in lists of the lengths of its batches."""
    total, size = bounds[-1], bounds[1]
    if total <= count:
        return [list(range(a, b)) for a, b in pairwise(bounds)]
    chosen = evenly_spaced(max(count // size, 1) * size, total)
    return [chosen[at : at + size] for at in range(0, len(chosen), size)]


def orders(seeds: Sequence[int], epoch: int, num_data: int) -> Tensor:
    """Return each member's order of the rows in this epoch, (M, N)."""
    return torch.stack([torch.randperm(num_data, generator=generator(Purpose.ORDER, s, epoch)) for s in seeds])


def checksum_of_rows(data: Any) -> str | None:
    """Return the checksums of rows in memory; None of other data, which may come in another order each time."""
    if isinstance(data, TensorDataset):
        data = data.tensors
    is_plain = isinstance(data, tuple | list | Mapping) and not isinstance(data, Dataset)
    return checksums(tensors_of(data)) if is_plain else None


class Table(Source):
    """Rows held in tensors: the fastest source."""

    def __init__(self, model: Model, rows: Batch, batch_size: int) -> None:
        """Keep the rows on the model's device."""
        self._model, self._rows, self._batch_size = model, rows, batch_size
        self._bounds = even_bounds(rows.size, batch_size) if rows.size else [0]

    def again(self, model: Model, batch_size: int) -> Table:
        return Table(model, self._rows, batch_size)

    def kept(self, rows: Tensor) -> Table:
        """Return a table of some rows."""
        where = rows.to(self._model.network.device)
        return Table(self._model, self._rows.map(lambda t: t.index_select(0, where)), self._batch_size)

    def rows(self) -> Batch:
        return self._rows

    def epoch(self, seeds: Sequence[int], epoch: int, skip: int = 0) -> Iterator[Batch]:
        order_MN = orders(seeds, epoch, self.num_data).to(self._model.network.device)
        members = len(seeds)
        for start, stop in zip(self._bounds[skip:-1], self._bounds[skip + 1 :], strict=True):
            flat = order_MN[:, start:stop].reshape(-1)
            yield self._rows.map(lambda t, flat=flat: t.index_select(0, flat).unflatten(0, (members, -1)))

    def inputs(self) -> Iterator[Any]:
        for batch in self.batches():
            yield batch.inputs

    def batches(self) -> Iterator[Batch]:
        """Yield slices of the table, which are not copied."""
        for start, stop in pairwise(self._bounds):
            yield self._rows.map(lambda t, where=slice(start, stop): t[where])

    def site(self, number: int, members: int) -> Batch:
        """Return a slice of the table, the same for all members."""
        where = slice(self._bounds[number], self._bounds[number + 1])
        return self._rows.map(lambda t: t[where].expand(members, -1, *t.shape[1:]))

    def some(self, count: int) -> list[Batch]:
        """Return rows spread over the table, in whole batches."""
        parts = (torch.tensor(p, device=self._model.network.device) for p in whole_batches(count, self._bounds))
        return [self._rows.map(lambda t, indices=indices: t.index_select(0, indices)) for indices in parts]

    def changes(self) -> bool:
        """Return that rows in tensors are the same in every pass."""
        return False

    def check(self, *, training: bool = False) -> tuple[str, ...]:
        """Check a few rows against the network, and all for shape, range and finiteness."""
        first = First(self._model, self._rows.map(lambda t: t[:8]))
        first.check(self._rows)
        return first.faults.judged(training=training)


class Loader(ReadSource):
    """A map-style Dataset or a DataLoader over one, read by index so that each member has its own order."""

    def __init__(self, model: Model, loader: DataLoader) -> None:
        """Take rows, collation, batch size and workers from the loader; a loader without shuffling keeps its order.

        An empty dataset is a ValueError; a loader that repeats rows, or picks others at every pass, a TypeError.
        """
        self._model, self._loader = model, loader
        self._dataset, self._shuffled = rows_of_loader(loader)
        self._bounds = even_bounds(len(self._dataset), loader.batch_size or 1)

    def again(self, model: Model, batch_size: int) -> Loader:
        return Loader(model, self._loader)

    def kept(self, rows: Tensor) -> Loader:
        """Return a loader of some rows of the data set, in batches of the same size."""
        loader = self._loader
        subset = Subset(self._dataset, rows.tolist())
        return Loader(
            self._model,
            DataLoader(
                subset,
                loader.batch_size,
                shuffle=self._shuffled,
                num_workers=loader.num_workers,
                collate_fn=loader.collate_fn,
                worker_init_fn=loader.worker_init_fn,
                pin_memory=loader.pin_memory,
            ),
        )

    def epoch(self, seeds: Sequence[int], epoch: int, skip: int = 0) -> Iterator[Batch]:
        in_order = torch.arange(self.num_data).expand(len(seeds), -1)
        order_MN = orders(seeds, epoch, self.num_data) if self._shuffled else in_order
        members, bounds = len(seeds), [*pairwise(self._bounds)][skip:]
        wanted = [order_MN[:, a:b].flatten().tolist() for a, b in bounds]
        collate = ForMembers(self._loader.collate_fn, members)
        collated = self._collated(wanted, *seeds[:1], epoch, collate=collate, first=skip)
        for batches, (a, b) in zip(collated, bounds, strict=True):
            yield for_members([*map(self._checked, batches)], members, b - a)

    def batches(self) -> Iterator[Batch]:
        """Yield neighbouring rows of the data set."""
        return map(self._checked, self._read())

    def rows(self) -> Batch:
        """Return all rows, read and checked in a fixed order."""
        return self._checked(next(self._collated([list(range(self.num_data))])))

    def site(self, number: int, members: int) -> Batch:
        """Return neighbouring rows of the data set, the same for all members."""
        collated = self._collated([list(range(self._bounds[number], self._bounds[number + 1]))], first=number)
        rows = self._checked(next(collated))
        return rows.map(lambda t: t.expand(members, *t.shape))

    def some(self, count: int) -> list[Batch]:
        """Return rows spread over the data set, in whole batches."""
        return [*map(self._checked, self._collated(whole_batches(count, self._bounds)))]

    def changes(self) -> bool:
        """Return whether the first rows differ between two passes."""
        return not same_rows(*(self._model.unpack(next(self._read(attempt))) for attempt in (1, 2)))

    def _read(self, *integers: int) -> Iterator[Any]:
        return self._collated([list(range(*ends)) for ends in pairwise(self._bounds)], *integers)

    def _collated(self, rows: list[list[int]], *integers: int, collate: Any = None, first: int = 0) -> Iterator[Any]:
        """Return batches of rows; random numbers of reading are functions of these integers and the batch's number."""
        return read(batches_of(self._loader, self._dataset, rows, *integers, collate=collate), *integers, first=first)


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

    def again(self, model: Model, batch_size: int) -> Stream:
        return Stream(model, self._batches)

    def kept(self, rows: Tensor) -> None:
        """Return None, because a stream may give its rows in another order at every pass."""

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


def as_source(model: Model, data: Any, batch_size: int) -> Source:
    """Turn the user's data into a `Source`.

    They are a tuple (inputs, targets) of tensors, a mapping of tensors, a Dataset, a DataLoader or a list of batches,
    else TypeError. Data that are not batched already are read in batches of `batch_size` rows. Empty data are a
    ValueError.
    """
    if batch_size < 1:
        raise ValueError(f"`batch_size` must be at least 1; got {batch_size}.")
    if isinstance(data, Source):
        return data.again(model, batch_size)
    if is_indexed(data):
        return Loader(model, data)
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, Mapping) or (isinstance(data, tuple) and not isinstance(data, Dataset)):
        rows = model.unpack(data)
        if rows.size == 0:
            raise ValueError("the data are empty: there are no rows. Check the filter before it.")
        return Table(model, rows, batch_size)
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        return Loader(model, DataLoader(data, batch_size=batch_size, shuffle=True))
    if isinstance(data, Iterable):
        # an object with keys, such as one batch of graphs, would yield its keys
        return Stream(model, [data] if hasattr(data, "keys") else data)
    raise TypeError(
        f"`data` must be a tuple (inputs, targets), a Dataset, a DataLoader or a list of batches; got {seen(data)}."
    )
