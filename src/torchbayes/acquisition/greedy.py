"""The best rows of a pool, with what scores need of them, and the greedy choice of a batch among them.

What a row adds to a batch is at most what it tells alone, as labels are independent given the function. A row whose own
information is less than what another one adds need therefore not be looked at (Minoux 1978).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchbayes.acquisition.reading import Rows

_NUMBERS = 2**24  # that are kept of the best rows, at most
_BLOCK = 64  # rows that are tried at once


@dataclass
class Best:
    """The rows of the largest values so far, the largest first; of equal values those of smaller keys."""

    room: int  # rows that are kept, at most
    rows: Rows | None = None
    values_B: np.ndarray = field(default_factory=lambda: np.zeros(0))
    keys_B: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))
    places_B: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    waiting: list[tuple[Any, ...]] = field(default_factory=list)  # rows that may be among the best
    dropped: float = -float("inf")  # the largest value of a row that is not kept

    def add(self, rows: Rows, values_B: np.ndarray, *, keys_B: np.ndarray, places_B: np.ndarray) -> None:
        """Add rows, of which the best are kept; of equal rows one."""
        if not self.room:
            return
        least = self.values_B[-1] if len(self.values_B) == self.room else -np.inf
        near = np.flatnonzero(values_B >= least)  # few, once the best are full
        if len(near) < len(values_B):
            self.dropped = max(self.dropped, float(np.delete(values_B, near).max()))
        if len(near):
            near_rows = rows.some(torch.from_numpy(near))
            self.waiting.append((near_rows, values_B[near], keys_B[near], places_B[near]))
        if sum(entry[0].rows for entry in self.waiting) > self.room // 2:  # seldom: all that is kept is copied
            self.settle()

    def settle(self) -> None:
        """Put rows that wait among the best; a row that is there several times has its largest value."""
        if not self.waiting:
            return
        before = [] if self.rows is None else [(self.rows, self.values_B, self.keys_B, self.places_B)]
        parts, values, keys, places = zip(*before, *self.waiting, strict=True)
        values_B, keys_B, places_B = np.concatenate(values), np.concatenate(keys), np.concatenate(places)
        order = np.lexsort((keys_B, -values_B))
        order = order[np.sort(np.unique(keys_B[order], return_index=True)[1])]
        if len(order) > self.room:
            self.dropped = max(self.dropped, float(values_B[order[self.room]]))
        kept = order[: self.room]
        self.rows = type(parts[0]).joined(parts).some(torch.from_numpy(kept))
        self.values_B, self.keys_B, self.places_B, self.waiting = values_B[kept], keys_B[kept], places_B[kept], []

    def greedy(self, k: int, *, seed: int) -> Batch:
        """Return the places of k rows, each of which adds most to those before, by information alone as values."""
        self.settle()
        assert self.rows is not None
        state, bounds, chosen, exact = self.rows.batch(seed=seed), self.values_B.copy(), [], True
        for _ in range(k):
            best, gain = _most(self.rows, state, bounds)
            exact = exact and gain >= self.dropped
            state.add(self.rows.some(slice(best, best + 1)))  # type: ignore[arg-type]
            bounds[best] = -np.inf
            chosen.append(int(self.places_B[best]))
        return Batch(torch.tensor(chosen), state.information, state.limit, exact)

    def together(self, keys: np.ndarray, *, seed: int) -> float:
        """Return the information of rows of these keys together, which are among the best, in nats."""
        self.settle()
        assert self.rows is not None
        state, where = self.rows.batch(seed=seed), {key: row for row, key in enumerate(self.keys_B.tolist())}
        for key in keys.tolist():
            row = where[key]
            state.add(self.rows.some(slice(row, row + 1)))  # type: ignore[arg-type]
        return state.information


class Batch(NamedTuple):
    """A batch that was chosen greedily."""

    places: Tensor  # in the pool, (k,)
    information: float  # of all labels together and the function, nats
    limit: str  # why the last rows may not be told apart; empty if they are
    exact: bool  # whether no row that was not kept could have added more


def _most(rows: Rows, state: Any, bounds: np.ndarray) -> tuple[int, float]:
    """Return the row that adds most, and how much; `bounds` on what each row adds become tighter."""
    order = np.argsort(-bounds, kind="stable")
    best, most = -1, -np.inf
    for begun in range(0, len(order), _BLOCK):
        tried = order[begun : begun + _BLOCK]
        if bounds[tried[0]] <= most or bounds[tried[0]] == -np.inf:
            break
        tried = tried[bounds[tried] > -np.inf]
        gains = state.gains(rows.some(torch.from_numpy(tried))).cpu().numpy()
        bounds[tried] = np.minimum(bounds[tried], gains)
        if gains.max() > most:
            best, most = int(tried[gains.argmax()]), float(gains.max())
    return best, most


def room_for(wanted: int, rows: Rows, *, least: int = 0) -> int:
    """Return how many rows to keep: as many as wanted, or as fit in memory, and some in any case."""
    return max(least, min(wanted, _NUMBERS // rows.size))
