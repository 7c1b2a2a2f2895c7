"""The rows of a loader: every row of its data set once, in the order of the data set.

One rule holds for every function that takes data (docs/decisions/0027-what-counts-as-a-row.md). A map-style data set is
its rows. A DataLoader over it gives only collation, batch size and workers, and its sampler if that picks some of the
rows. A sampler that repeats or drops rows, or picks others at every pass, weights rows, and is refused. For any other
data one pass gives the rows, and every later pass must have as many.

Random numbers that are drawn while rows are read, as augmentation and shuffling do, are functions of the seed and of
the number of the batch.

Collation may pad each batch to its own longest row. Members have different rows, so their batches may differ in width;
then the rows of all members are collated together, which pads them to the longest of all.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeGuard

import numpy as np
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)

from torchbayes.model.batches.batch import Batch, all_equal, stack, tensors_of
from torchbayes.randomness.seeds import Purpose, generator, seeded


def is_indexed(data: Any) -> TypeGuard[DataLoader[Any]]:
    """Return whether data are a loader that makes its own batches, over a data set whose rows have numbers."""
    return (
        isinstance(data, DataLoader) and not isinstance(data.dataset, IterableDataset) and data.batch_size is not None
    )


def rows_of_loader(loader: DataLoader) -> tuple[Any, bool]:
    """Return the rows that a loader reads, as a data set, and whether their order is left open.

    It raises ValueError if there are none, TypeError if its sampler repeats rows, or picks others at every pass.
    """
    dataset: Any = loader.dataset
    sampler, size = loader.sampler, len(dataset)
    if not size:
        raise ValueError("the data are empty: the dataset has no rows. Check the filter before it.")
    if isinstance(sampler, SequentialSampler) and len(sampler) == size:
        return dataset, False
    if isinstance(sampler, RandomSampler) and not sampler.replacement and sampler.num_samples == size:
        return dataset, True
    name = type(sampler).__name__
    if isinstance(sampler, DistributedSampler):
        raise TypeError(
            f"the loader gives each process a part of the rows by a {name}, and may repeat some. Give every process "
            f"all rows: ranks split them themselves, see `fit(ranks=)`."
        )
    once, again = (_picked(sampler, attempt) for attempt in range(2))
    if len({*once}) < len(once) or len({*again}) < len(again):
        raise TypeError(
            f"the loader repeats rows by a {name}, and each row counts once. Say how much rows count by "
            f"likelihoods.Weighted, or choose some with torch.utils.data.Subset."
        )
    if {*once} != {*again}:
        raise TypeError(
            f"the loader picks other rows at every pass by a {name}, so that their number is not known. Choose rows "
            f"with torch.utils.data.Subset, or give a list of batches."
        )
    if not once:
        raise ValueError(f"the data are empty: the loader's {name} picks no rows. Check the filter before it.")
    return (dataset if len(once) == size else Subset(dataset, sorted(once))), True


def _picked(sampler: Iterable[Any], attempt: int) -> list[int]:
    """Return the rows that a pass of a sampler picks."""
    with reading(attempt):
        return [int(row) for row in sampler]


def batches_of(
    loader: DataLoader, dataset: Dataset[Any], index_lists: list[list[int]], *integers: int, collate: Any = None
) -> DataLoader:
    """Return a loader of lists of rows of a data set, with the settings of `loader` but perhaps another collation."""
    return DataLoader(
        dataset,
        batch_sampler=index_lists,
        num_workers=loader.num_workers,
        collate_fn=collate or loader.collate_fn,
        pin_memory=loader.pin_memory,
        worker_init_fn=loader.worker_init_fn,
        generator=generator(Purpose.WORKERS, *integers),  # without it, workers are seeded from the global generator
    )


def in_order(data: Iterable[Any], *, seed: int = 0) -> Iterator[Any]:
    """Return an iterator over batches of data: every row of a data set once, in its order; anything else as it comes.

    The seed is that of random numbers drawn while rows are read.
    """
    if is_indexed(data):
        dataset, _ = rows_of_loader(data)
        size, total = data.batch_size or 1, len(dataset)
        parts = [list(range(start, min(start + size, total))) for start in range(0, total, size)]
        data = batches_of(data, dataset, parts, seed)
    return read(data, seed)


def read(batches: Iterable[Any], *integers: int, first: int = 0) -> Iterator[Any]:
    """Yield batches; random numbers drawn while one is read are a function of these integers and of its number.

    The integers are, for example, a seed and an epoch; `first` is the number of the first batch. TypeError is raised if
    each worker of a loader yields all rows of an IterableDataset.
    """
    with reading(*integers):
        source = iter(batches)
    before: Any = None
    for number in itertools.count(first):
        with reading(*integers, number):
            batch = next(source, _END)
        if batch is _END:
            return
        if number == 1 + first and _has_workers(batches) and _equal(before, batch):
            raise TypeError(
                f"the {batches.num_workers} workers of the loader yield the same rows, "
                f"so that each would count so many times. Split them by torch.utils.data.get_worker_info() in the "
                f"IterableDataset, or set num_workers=1."
            )
        before = batch if number == first else None
        yield batch


def evenly_spaced(count: int, total: int) -> list[int]:
    """Return at most `count` numbers out of 0..total − 1, evenly spaced."""
    count = min(count, total)
    return [total * k // count for k in range(count)]


def same_rows(first: Batch, second: Batch) -> bool:
    """Return whether two batches have the same inputs."""
    return all_equal(tensors_of(first.inputs), tensors_of(second.inputs))


_END = object()
_READING = threading.RLock()  # numpy and Python have one generator for all threads
_NUMPY: Any = np.random  # its stubs lack these functions


@contextmanager
def reading(*integers: int) -> Iterator[None]:
    """Seed the generators of torch, numpy and Python inside the `with`, for one thread at a time, and restore them."""
    with _READING, seeded(Purpose.READING, *integers) as drawn:
        seed = drawn.source.initial_seed()
        numbers, words = _NUMPY.get_bit_generator(), random.getstate()
        try:
            _NUMPY.set_bit_generator(_spare())  # saving and restoring a state takes fifty times as long
            np.random.seed(seed % 2**32)  # noqa: NPY002  (what data sets draw from)
            random.seed(seed)
            yield
        finally:
            _NUMPY.set_bit_generator(numbers)
            random.setstate(words)


@lru_cache(maxsize=1)
def _spare() -> np.random.MT19937:
    """Return the generator that replaces numpy's global one while rows are read."""
    return np.random.MT19937()


def _has_workers(batches: Any) -> TypeGuard[DataLoader[Any]]:
    return isinstance(batches, DataLoader) and isinstance(batches.dataset, IterableDataset) and batches.num_workers > 1


def _equal(first: Any, second: Any) -> bool:
    pair = [tensors_of(dict(tree) if hasattr(tree, "keys") else tree) for tree in (first, second)]
    return bool(pair[0]) and all_equal(*pair)


@dataclass(frozen=True)
class ForMembers:
    """Collates the rows of M members for one step; a function of the rows alone, whatever was read before."""

    collate: Callable[[list[Any]], Any]
    members: int

    def __call__(self, rows: list[Any]) -> list[Any]:
        """Return the batch of each member, or one batch of all of them if these differ in shape.

        `rows` are equally many of each member, member by member.
        """
        size = len(rows) // self.members
        batches = [self.collate(rows[start : start + size]) for start in range(0, len(rows), size)]
        return batches if len({_shapes_of(batch) for batch in batches}) == 1 else [self.collate(rows)]


def for_members(batches: Sequence[Batch], members: int, size: int) -> Batch:
    """Return the batches of all members, (M, B, ...), from what `ForMembers` collated, unpacked; B is `size`.

    It raises ValueError if one batch of all members has another number of rows than M B.
    """
    if len(batches) == members:
        return stack(batches)
    (whole,) = batches
    if whole.size != members * size:
        raise ValueError(
            f"the batches of the {members} members differ in shape, and collated together their {members * size} rows "
            f"make {whole.size}. Let `collate_fn` make one row of each, in their order, or fit one member at a time."
        )
    return whole.map(lambda tensor: tensor.unflatten(0, (members, size)))


def _shapes_of(batch: Any) -> tuple[torch.Size, ...]:
    return tuple(tensor.shape for tensor in tensors_of(dict(batch) if isinstance(batch, Mapping) else batch))
