"""Parts of a batch: rows that are perturbed together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torchbayes.model.batches.batch import batch_size
from torchbayes.model.model import Batch, Model, ready
from torchbayes.randomness.seeds import Purpose, mix


class Piece(NamedTuple):
    """Some rows of a batch.

    Attributes:
        rows: of each member, (M, b, ...).
        share: b/B, their share of the rows.
        seeds: M seeds of what a network draws for them.
    """

    rows: Batch
    share: float
    seeds: Sequence[int]


def split(batch: Batch, parts: int, *, seeds: Sequence[int], model: Model) -> list[Piece]:
    """Return the parts of a batch: rows k, k + parts, k + 2 parts and so on; at most half as many as there are rows.

    Args:
        batch: one minibatch per member, (M, B, ...).
        parts: how many.
        seeds: of the members; every part has others, made from these.
        model: which knows what inputs all rows share.

    Returns:
        The parts; the whole batch with its own seeds if there is one.
    """
    count = 1 if parts == 1 else max(1, min(parts, batch_size(ready(model, batch, members=True).inputs, 1) // 2))
    if count == 1:
        return [Piece(batch, 1.0, seeds)]
    rows = ready(model, batch, members=True)
    size, found = batch_size(rows.inputs, 1), []
    for k in range(count):
        own = rows.map(lambda t, k=k: t[:, k::count].contiguous())
        mine = [mix(Purpose.PART, seed, k) for seed in seeds]
        found.append(Piece(own, len(range(k, size, count)) / size, mine))
    return found
