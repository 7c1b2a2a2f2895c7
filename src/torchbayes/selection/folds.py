"""Rows that are held out of the training rows, to choose settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from torchbayes.model.batches.batch import Batch
from torchbayes.model.model import Model
from torchbayes.model.sources.sources import Source, as_source
from torchbayes.randomness.seeds import Purpose, generator

FEWEST = 20  # with fewer rows, none are held out unless asked for
# Held-out rows by default; rows that all folds together should have; most folds.
_HELD_OUT, _ENOUGH, _FOLDS = 50, 500, 5


class Fold(NamedTuple):
    """Training rows, and rows that are held out of them."""

    rows: Source  # to train on
    held_out: Sequence[Batch]  # the others, in batches

    @property
    def size(self) -> int:
        """Number of rows that are held out."""
        return sum(batch.size for batch in self.held_out)


def folds_of(model: Model, source: Source, validation: float | Any, *, seed: int) -> list[Fold]:
    """Return training rows with those that are held out; none if rows cannot be told apart.

    A ValueError if a share was asked for of rows that cannot be told apart, or it leaves none.
    """
    if validation is not None and not isinstance(validation, float):
        own_rows = given_rows(model, validation)
        own_rows.check(training=True)
        return [Fold(source, own_rows.some(own_rows.num_data))]
    count = source.num_data
    size = round(count * validation) if validation else min(max(count // 10, _HELD_OUT), count // 5)
    if not 0 < size < count:
        raise ValueError(f"`validation` {validation} of {count} rows holds out {size} of them. Give another share.")
    order = torch.randperm(count, generator=generator(Purpose.HELD_OUT, seed))
    folds = []
    for number in range(min(_FOLDS, count // size, -(-_ENOUGH // size))):
        out = torch.zeros(count, dtype=torch.bool)
        out[order[number * size : (number + 1) * size]] = True
        training, held_out = (source.kept(where.nonzero()[:, 0]) for where in (~out, out))
        if training is None or held_out is None:
            if validation is None:
                return []
            raise ValueError("a share of ready-made batches cannot be held out. Give `validation` data of its own.")
        folds.append(Fold(training, held_out.some(size)))
    return folds


def given_rows(model: Model, validation: Any) -> Source:
    """Return the rows of data that are given to choose settings."""
    return as_source(model, validation, _HELD_OUT)
