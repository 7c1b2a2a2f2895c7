"""Parts of a batch: rows that are perturbed together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torchbayes.model.batches.batch import batch_size
from torchbayes.model.model import Batch, Model, ready
from torchbayes.randomness.seeds import Purpose, mix


class Piece(NamedTuple):
    """Some rows of a batch."""

    rows: Batch  # of each member, (M, b, ...)
    share: float  # b/B, their share of the rows
    seeds: Sequence[int]  # of what a network draws for them


def split(batch: Batch, parts: int, *, seeds: Sequence[int], model: Model) -> list[Piece]:
    """Return the parts of a batch: rows k, k + parts, k + 2 parts and so on; at most half as many as there are rows.

    Each part has its own seeds, made from those of the members; a single part has these themselves. The model knows
    which inputs all rows share.
    """
    count = 1 if parts == 1 else max(1, min(parts, batch_size(ready(model, batch, members=True).inputs, 1) // 2))
    if count == 1:
        return [Piece(batch, 1.0, seeds)]
    rows = ready(model, batch, members=True)
    size, pieces = batch_size(rows.inputs, 1), []
    for k in range(count):
        part = rows.map(lambda t, k=k: t[:, k::count].contiguous())
        part_seeds = [mix(Purpose.PART, seed, k) for seed in seeds]
        pieces.append(Piece(part, len(range(k, size, count)) / size, part_seeds))
    return pieces
