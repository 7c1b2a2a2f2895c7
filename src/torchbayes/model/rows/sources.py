"""Training data as minibatches with a member axis, in an order that is a function of (seed, member, epoch) alone.

Every member sees the data in its own order. An epoch over N rows has ceil(N / batch_size) batches whose sizes differ
by at most one, so there is never a tiny last batch that would upset batch norm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from torchbayes.checks import seen
from torchbayes.model.model import Model
from torchbayes.model.rows.batch import Batch, concatenate
from torchbayes.model.rows.first import First, checked_rows
from torchbayes.model.rows.members import ForMembers, for_members
from torchbayes.native.seeds import Purpose, generator


class Source(Protocol):
    """Training data that can be read epoch by epoch."""

    @property
    def num_data(self) -> int:
        """N."""
        ...

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches of an epoch."""
        ...

    def epoch(self, seeds: Sequence[int], epoch: int, skip: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch from number `skip` on, every tensor (M, B, ...)."""
        ...

    def inputs(self) -> Iterator[Any]:
        """Yield the inputs of one pass in a fixed order, for batch-norm statistics."""
        ...

    def batches(self) -> Iterator[Batch]:
        """Yield the batches of one pass in a fixed order, every tensor (B, ...)."""
        ...

    def rows(self) -> Batch:
        """Return all rows, in a fixed order."""
        ...

    def site(self, number: int, members: int) -> Batch:
        """Return one of the fixed parts of the rows, as many as an epoch has batches, every tensor (M, B, ...)."""
        ...

    def some(self, count: int) -> list[Batch]:
        """Return about `count` rows spread over the data, always the same ones, in one or more whole batches."""
        ...

    def check(self) -> None:
        """Raise ValueError or TypeError when the data do not fit the model."""
        ...

    def kept(self, rows: Tensor) -> Source | None:
        """Return a source of some rows, by their numbers (n,); None where rows cannot be told apart."""
        ...


def even_bounds(num_data: int, batch_size: int) -> list[int]:
    """Return the bounds of ceil(N / batch_size) slices whose sizes differ by at most one."""
    steps = -(-num_data // batch_size)
    return [num_data * step // steps for step in range(steps + 1)]


def evenly_spaced(count: int, total: int) -> list[int]:
    """Return at most `count` numbers out of 0..total − 1, evenly spaced."""
    count = min(count, total)
    return [total * k // count for k in range(count)]


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


class Table:
    """Rows held in tensors: the fastest source."""

    def __init__(self, model: Model, rows: Batch, batch_size: int) -> None:
        """Keep the rows on the model's device."""
        self._model, self._rows, self._batch_size = model, rows, batch_size
        self._bounds = even_bounds(rows.size, batch_size) if rows.size else [0]

    def kept(self, rows: Tensor) -> Table:
        """Return a table of some rows."""
        where = rows.to(self._model.network.device)
        return Table(self._model, self._rows.map(lambda t: t.index_select(0, where)), self._batch_size)

    def rows(self) -> Batch:
        """Return all rows."""
        return self._rows

    @property
    def num_data(self) -> int:
        """N."""
        return self._rows.size

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches of an epoch."""
        return len(self._bounds) - 1

    def epoch(self, seeds: Sequence[int], epoch: int, skip: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch from number `skip` on, every tensor (M, B, ...)."""
        order_MN = orders(seeds, epoch, self.num_data).to(self._model.network.device)
        members = len(seeds)
        for start, stop in zip(self._bounds[skip:-1], self._bounds[skip + 1 :], strict=True):
            flat = order_MN[:, start:stop].reshape(-1)
            yield self._rows.map(lambda t, flat=flat: t.index_select(0, flat).unflatten(0, (members, -1)))

    def inputs(self) -> Iterator[Any]:
        """Yield the inputs in a fixed order."""
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
        return [self._rows.map(lambda t, part=part: t.index_select(0, part)) for part in parts]

    def check(self) -> None:
        """Check a few rows against the network and all rows for shape, range and finiteness.

        Raises:
            ValueError: if something does not fit; the message says what.
        """
        First(self._model, self._rows.map(lambda t: t[:8])).check(self._rows)


class Loader:
    """A map-style Dataset or a DataLoader over one, read by index so that each member has its own order."""

    def __init__(self, model: Model, loader: DataLoader) -> None:
        """Take dataset, collation, batch size and workers from the loader; a loader without shuffling keeps its order.

        Raises:
            ValueError: if the dataset is empty or an epoch has no whole batch.
            TypeError: if the loader chooses rows with a sampler of its own.
        """
        self._model, self._loader = model, loader
        self._first: First | None = None
        self._size = len(loader.dataset)  # type: ignore[arg-type]
        if not self._size:
            raise ValueError("the data are empty: the dataset has no rows. Check the filter before it.")
        size = loader.batch_size or 1
        self._bounds = (
            list(range(0, self._size // size * size + 1, size)) if loader.drop_last else even_bounds(self._size, size)
        )
        if len(self._bounds) < 2:
            raise ValueError(
                f"the data are empty: with drop_last=True, {self._size} rows make no batch of {size}. "
                f"Make batches smaller or keep the last one."
            )
        self._shuffled = not isinstance(loader.sampler, SequentialSampler)
        if self._shuffled and not _plain_shuffle(loader.sampler, self._size):
            raise TypeError(
                f"the loader chooses rows with a {type(loader.sampler).__name__}, but fit orders the rows for each "
                f"member itself. Choose rows with torch.utils.data.Subset, or give a list of batches."
            )

    def kept(self, rows: Tensor) -> Loader:
        """Return a loader of some rows of the data set, in batches of the same size."""
        own = self._loader
        some = Subset(own.dataset, rows.tolist())
        about = {"num_workers": own.num_workers, "collate_fn": own.collate_fn, "worker_init_fn": own.worker_init_fn}
        about["pin_memory"] = own.pin_memory
        return Loader(self._model, DataLoader(some, own.batch_size, shuffle=self._shuffled, **about))

    @property
    def num_data(self) -> int:
        """N."""
        return self._size

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches of an epoch."""
        return len(self._bounds) - 1

    def epoch(self, seeds: Sequence[int], epoch: int, skip: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch from number `skip` on, every tensor (M, B, ...)."""
        order = torch.arange(self._size).expand(len(seeds), -1)
        order_MN = orders(seeds, epoch, self._size) if self._shuffled else order
        members, bounds = len(seeds), [*pairwise(self._bounds)][skip:]
        wanted = [order_MN[:, a:b].flatten().tolist() for a, b in bounds]
        read = self._read(wanted, *seeds[:1], epoch, members=members)
        for found, (a, b) in zip(read, bounds, strict=True):
            yield for_members([checked_rows(self._model, self._first, batch) for batch in found], members, b - a)

    def inputs(self) -> Iterator[Any]:
        """Yield the inputs in a fixed order."""
        for batch in self._read([list(range(a, b)) for a, b in zip(self._bounds[:-1], self._bounds[1:], strict=True)]):
            yield self._model.unpack(batch).inputs

    def batches(self) -> Iterator[Batch]:
        """Yield neighbouring rows of the data set."""
        for batch in self._read([list(range(*ends)) for ends in pairwise(self._bounds)]):
            yield checked_rows(self._model, self._first, batch)

    def rows(self) -> Batch:
        """Return all rows, read and checked in a fixed order."""
        return concatenate([
            checked_rows(self._model, self._first, batch) for batch in self._read([list(range(self._size))])
        ])

    def site(self, number: int, members: int) -> Batch:
        """Return neighbouring rows of the data set, the same for all members."""
        found = self._read([list(range(self._bounds[number], self._bounds[number + 1]))])
        rows = checked_rows(self._model, self._first, next(iter(found)))
        return rows.map(lambda t: t.expand(members, *t.shape))

    def some(self, count: int) -> list[Batch]:
        """Return rows spread over the data set, in whole batches."""
        found = self._read(whole_batches(count, self._bounds))
        return [checked_rows(self._model, self._first, batch) for batch in found]

    def check(self) -> None:
        """Check the first batch.

        Raises:
            ValueError: if something does not fit; the message says what.
        """
        batch = next(iter(self._read([list(range(self._bounds[1]))])))
        self._first = First(self._model, self._model.unpack(batch))

    def _read(self, index_lists: list[list[int]], *integers: int, members: int | None = None) -> DataLoader:
        like = self._loader
        return DataLoader(
            like.dataset,
            batch_sampler=index_lists,
            num_workers=like.num_workers,
            collate_fn=like.collate_fn if members is None else ForMembers(like.collate_fn, members),
            pin_memory=like.pin_memory,
            worker_init_fn=like.worker_init_fn,
            generator=generator(Purpose.WORKERS, *integers),  # without it, workers are seeded from the global generator
        )


def _plain_shuffle(sampler: Any, num_data: int) -> bool:
    """Return whether a sampler gives every row once, in random order."""
    return isinstance(sampler, RandomSampler) and not sampler.replacement and sampler.num_samples == num_data


class Stream:
    """Ready-made batches that can be iterated repeatedly; all members share their order."""

    def __init__(self, model: Model, batches: Iterable[Any]) -> None:
        """Count the rows in one pass.

        Raises:
            ValueError: if there are no rows.
            TypeError: if the iterable can be read only once.
        """
        if iter(batches) is batches:
            raise TypeError("the data can be iterated only once. Give a list of batches, a Dataset or a DataLoader.")
        sizes = [model.unpack(batch).size for batch in batches]
        if not sum(sizes):
            raise ValueError("the data are empty: the loader yields no rows. Check the filter before it.")
        self._model, self._batches, self._sizes = model, batches, sizes
        self._first: First | None = None

    def kept(self, rows: Tensor) -> None:
        """Return nothing: a stream may give its rows in another order at every pass."""
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
        del epoch
        for number, batch in enumerate(self._batches):
            if number >= skip:
                rows = checked_rows(self._model, self._first, batch)
                yield rows.map(lambda t: t.expand(len(seeds), *t.shape))

    def inputs(self) -> Iterator[Any]:
        """Yield the inputs in the order of the stream."""
        for batch in self._batches:
            yield self._model.unpack(batch).inputs

    def batches(self) -> Iterator[Batch]:
        """Yield the batches of the stream."""
        for batch in self._batches:
            yield checked_rows(self._model, self._first, batch)

    def rows(self) -> Batch:
        """Return all rows, checked, in the order of the stream."""
        return concatenate([*self.batches()])

    def site(self, number: int, members: int) -> Batch:
        """Return a batch of the stream, the same for all members; earlier batches are skipped."""
        rows = checked_rows(self._model, self._first, next(islice(iter(self._batches), number, None)))
        return rows.map(lambda t: t.expand(members, *t.shape))

    def some(self, count: int) -> list[Batch]:
        """Return whole batches spread over the stream."""
        wanted = set(evenly_spaced(max(1, count * len(self._sizes) // self.num_data), len(self._sizes)))
        return [checked_rows(self._model, self._first, b) for number, b in enumerate(self._batches) if number in wanted]

    def check(self) -> None:
        """Check the first batch.

        Raises:
            ValueError: if something does not fit; the message says what.
        """
        self._first = First(self._model, self._model.unpack(next(iter(self._batches))))


def as_source(model: Model, data: Any, batch_size: int) -> Source:
    """Turn the user's data into a `Source`.

    Args:
        model: the model; its batch hook reads what the data yield.
        data: a tuple (inputs, targets) of tensors, a mapping of tensors, a Dataset, a DataLoader or a list of batches.
        batch_size: rows per batch where the data are not batched already.

    Returns:
        The source.

    Raises:
        TypeError: if the data are none of these.
        ValueError: if `batch_size` is not positive or the data are empty.
    """
    if batch_size < 1:
        raise ValueError(f"`batch_size` must be at least 1; got {batch_size}.")
    if isinstance(data, DataLoader) and not isinstance(data.dataset, IterableDataset) and data.batch_size is not None:
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
        # an object with names, such as one batch of graphs, would yield these
        return Stream(model, [data] if hasattr(data, "keys") else data)
    raise TypeError(
        f"`data` must be a tuple (inputs, targets), a Dataset, a DataLoader or a list of batches; got {seen(data)}."
    )
