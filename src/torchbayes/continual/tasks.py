"""A task of a sequence: rows to learn from, and rows for its scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from torchbayes.checks import check_text, seen
from torchbayes.data.base import Data
from torchbayes.model.model import Model
from torchbayes.model.sources.sources import Source, as_source

ROWS = 1024  # read at once if the data are not in batches


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        train: training data, as `fit` takes them.
        test: data to be scored on; the training data if None.
        name: of the task; its number if empty.
    """

    train: Any
    test: Any = None
    name: str = ""

    def __post_init__(self) -> None:
        check_text(name=self.name)

    @property
    def judged_on(self) -> Any:
        """The rows that scores are of."""
        return self.train if self.test is None else self.test


def as_tasks(tasks: Any) -> list[Task]:
    """Return tasks with names, from `Task`s, data sets of `data.load`, or training data as `fit` takes them."""
    if isinstance(tasks, str | Mapping | Tensor | nn.Module | Dataset | DataLoader) or not isinstance(tasks, Iterable):
        raise TypeError(f"`tasks` must be a list of data, one entry for each task; got {seen(tasks)}.")
    named_tasks = []
    for number, entry in enumerate(tasks, 1):
        task = Task(entry.train, entry.test, entry.name) if isinstance(entry, Data) else entry
        task = task if isinstance(task, Task) else Task(task)
        if isinstance(task.train, Tensor):
            raise TypeError(
                f"task {number} is a tensor, where data such as (inputs, targets) must be. `tasks` is a list of data; "
                f"give [(inputs, targets)] for one task."
            )
        named_tasks.append(Task(task.train, task.test, task.name or f"task {number}"))
    if not named_tasks:
        raise ValueError("`tasks` must be at least one task; got none.")
    return named_tasks


def sources_of(model: Model, tasks: Iterable[Task]) -> list[Source]:
    """Return the training rows of every task, after checking them and the test rows against the model.

    The message of an error names the task.
    """
    training = []
    for task in tasks:
        parts = [task.train] if task.test is None or task.test is task.train else [task.train, task.test]
        try:
            each = [as_source(model, data, ROWS) for data in parts]
            for source in each:
                source.check()
        except (TypeError, ValueError) as error:
            error.add_note(f"This is of {task.name}, of which nothing has been learned yet.")
            raise
        training.append(each[0])
    return training


def picked(data: Any, rows: Tensor) -> Any:
    """Return the training data of some row numbers (n,)."""
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, Mapping) or (isinstance(data, tuple) and not isinstance(data, Dataset)):
        return tree_map(lambda t: t[rows.to(t.device)] if isinstance(t, Tensor) else t, data)
    if isinstance(data, DataLoader):
        return _loader(data, Subset(data.dataset, rows.tolist()))
    return Subset(data, rows.tolist())


def joined(parts: list[Any]) -> Any:
    """Return parts of training data, as from `picked`, as one."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    if isinstance(first, DataLoader):
        return _loader(first, ConcatDataset([loader.dataset for loader in parts]))
    if isinstance(first, Dataset):
        return ConcatDataset(parts)
    return tree_map(lambda *tensors: torch.cat(tensors), *parts)


def numbers_of(source: Source) -> Tensor:
    """Return the real inputs of all rows as vectors, (N, F). Raises ValueError if no input is real."""
    batches = []
    for inputs in source.inputs():
        leaves = [t.flatten(1) if t.ndim > 1 else t.unsqueeze(1) for t in tree_leaves(inputs) if t.is_floating_point()]
        if not leaves:
            raise ValueError("distances between rows are those of real inputs; these are whole numbers. Take Random.")
        batches.append(torch.cat(leaves, 1))
    return torch.cat(batches)


def can_be_picked(data: Any) -> bool:
    """Return whether rows of data can be told apart."""
    if isinstance(data, DataLoader):
        return not isinstance(data.dataset, IterableDataset) and data.batch_size is not None
    return isinstance(data, tuple | Mapping) or (isinstance(data, Dataset) and not isinstance(data, IterableDataset))


def _loader(like: DataLoader[Any], dataset: Dataset[Any]) -> DataLoader[Any]:
    return DataLoader(
        dataset, batch_size=like.batch_size, shuffle=True, collate_fn=like.collate_fn, num_workers=like.num_workers
    )
