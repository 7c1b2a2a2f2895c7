"""The pool: rows without labels, read in parts, in an order that depends on the rows and not on how they came."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset

from torchbayes.checksum import row_keys
from torchbayes.model.batches.batch import batch_size, rows_of
from torchbayes.model.batches.loaders import in_order
from torchbayes.model.model import Batch, Model, place_inputs, unpack_inputs
from torchbayes.randomness.seeds import Purpose, continued, mix


@dataclass
class Pool:
    """Rows of a pool and their keys, by which equal rows are known and equal scores are ordered.

    Tensors are read in the order of the keys, and each of equal rows once: the numbers of a row then do not depend on
    the order of the pool, to the last bit. A loader is read in its own order.
    """

    model: Model
    rows: Any  # inputs on the device of the model, or a loader
    seed: int
    chunk_size: int
    keys_N: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))  # known once all rows are read

    @classmethod
    def of(cls, model: Model, pool: Any, *, seed: int, chunk_size: int) -> Pool:
        """Return a pool of inputs, of a Dataset or of a DataLoader, whose targets are ignored."""
        if model.coupled:
            raise ValueError(
                "the rows of this model are coupled (`Model(coupled=True)`), so that a row has no score of its own. "
                "Score what `predict` gives at all rows together."
            )
        if isinstance(pool, Dataset) and not isinstance(pool, DataLoader):
            pool = DataLoader(pool, batch_size=chunk_size)
        if isinstance(pool, DataLoader):
            return cls(model, pool, seed, chunk_size)
        placed = place_inputs(model, pool)
        known = cls(model, placed, seed, chunk_size)
        size = batch_size(placed)
        parts = [known._keys(rows_of(placed, slice(a, a + chunk_size)), a) for a in range(0, size, chunk_size)]
        known.keys_N = np.concatenate(parts) if parts else known.keys_N
        return known

    def parts(self) -> Iterator[tuple[Tensor, Any]]:
        """Yield places in the pool and inputs at them, in parts."""
        if not isinstance(self.rows, DataLoader):
            places_U = torch.from_numpy(np.unique(self.keys_N, return_index=True)[1])
            for places_B in places_U.split(self.chunk_size):
                yield places_B, rows_of(self.rows, places_B)
            return
        begun, self.keys_N = 0, self.keys_N[:0]
        for item in in_order(self.rows):
            inputs = (item if isinstance(item, Batch) else unpack_inputs(self.model, item)).inputs
            self.keys_N = np.concatenate([self.keys_N, self._keys(inputs, begun)])
            yield torch.arange(begun, len(self.keys_N)), inputs
            begun = len(self.keys_N)

    def some(self, count: int) -> Any:
        """Return rows that stand for the pool: those of the first keys by another seed, whatever the order."""
        trees, ranks = list[Any](), np.zeros(0, dtype=np.uint64)
        for places_B, inputs in self.parts():
            ranks = np.concatenate([ranks, continued(self.keys_N[places_B.numpy()], Purpose.AIMS)])
            trees.append(inputs)
            first = np.unique(ranks, return_index=True)[1][:count]
            trees, ranks = [rows_of(_joined(trees), torch.from_numpy(first))], ranks[first]
        return trees[0]

    def _keys(self, inputs: Any, begun: int) -> np.ndarray:
        """Return keys of rows, a function of their values and the seed, uint64 (B,); ValueError if one is not finite.

        `begun` is the place of the first of them in the pool.
        """
        tensors = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]
        columns = [leaf.flatten(1) if leaf.ndim > 1 else leaf.unsqueeze(1) for leaf in tensors]
        for values in filter(torch.is_floating_point, columns):
            wrong = (~values.isfinite()).any(1).nonzero()
            if len(wrong):
                raise ValueError(
                    f"{len(wrong)} rows of the pool hold NaN or infinite values, the first of them row "
                    f"{begun + int(wrong[0])}. Remove or impute those rows."
                )
        arrays = [values.double().cpu().numpy() for values in columns]
        return continued(row_keys(*arrays), mix(Purpose.TIES, self.seed))


def different(model: Model, inputs: Any, chunk_size: int) -> int:
    """Return how many of the rows of a pool of tensors differ from each other."""
    return len(np.unique(Pool.of(model, inputs, seed=0, chunk_size=chunk_size).keys_N))


def _joined(trees: list[Any]) -> Any:
    """Return inputs one after the other; what all rows share is that of the first."""
    return pytree.tree_map(lambda *leaves: torch.cat(leaves) if isinstance(leaves[0], Tensor) else leaves[0], *trees)
