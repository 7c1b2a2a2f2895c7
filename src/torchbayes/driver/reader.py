"""Reading data: what a likelihood needs from the targets, the rows of a run, and the rows of each visit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from torchbayes.density.density import LogDensity
from torchbayes.density.ranks import Ranks
from torchbayes.driver.checks import check_coupled, check_gradients, warn_if_changing
from torchbayes.driver.run import recorded
from torchbayes.methods.protocol import Method, Visit
from torchbayes.model.batches.batch import Batch
from torchbayes.model.likelihoods.weighted import asks
from torchbayes.model.model import Model
from torchbayes.model.sources.informed import as_recorded, informed_by
from torchbayes.model.sources.sources import Source, as_source
from torchbayes.model.subspace import Subspace, having_model

ROWS = 1024  # of a batch where the method has none


class Reader:
    """Reads minibatches of a shuffled stream, whose order is a function of (seed, member, epoch) alone, and sites.

    Consecutive minibatches are read one after the other, others by skipping to their place in the epoch. The rows
    depend only on the visit.
    """

    def __init__(self, source: Source, seeds: Sequence[int]) -> None:
        """Read from a source, for members with these seeds."""
        self._source, self._seeds = source, seeds
        self._batches: Iterator[Batch] = iter(())
        self._next = -1

    def read(self, visit: Visit) -> Batch | None:
        """Return the rows, every tensor (M, B, ...); None where the density holds them, or the visit has none.

        Raises a ValueError if the source does for a bad batch, or an epoch has fewer batches than the first one.
        """
        if visit.kind == "all":
            return None
        if visit.kind == "site":
            return self._source.site(visit.number, len(self._seeds))
        epoch, place = divmod(visit.number, self._source.steps_per_epoch)
        if visit.number != self._next or not place:
            self._batches = self._source.epoch(self._seeds, epoch, place)
        self._next = visit.number + 1
        batch = next(self._batches, None)
        if batch is None:
            raise ValueError(
                f"the data gave fewer batches than the {self._source.steps_per_epoch} they gave at first: {place} in "
                f"epoch {epoch + 1}. Give data that are the same at every pass."
            )
        if place == self._source.steps_per_epoch - 1:
            next(self._batches, None)  # lets the source finish its epoch, such as the workers of a loader
        return batch


def informed(
    model: Model, data: Any, *, space: Subspace | None, directory: str | PathLike[str] | None
) -> tuple[Model, Subspace | None]:
    """Return the model, and the subspace of its weights, with what its likelihood takes from the targets.

    A run in the directory has recorded what it took, and that is used again.
    """
    if not asks(model.likelihood):
        return model, space
    description = None if directory is None else recorded(Path(directory))
    model = model if description is None else as_recorded(model, description[1].get("model", {}))
    if asks(model.likelihood):
        source = as_source(model, data, ROWS)
        source.check(training=True)  # whether that suffices is checked once the method is known
        model = informed_by(model, source)
    return model, None if space is None else having_model(space, model)


def rows_of(model: Model, data: Any, method: Method) -> tuple[Source, tuple[str, ...]]:
    """Return the training rows, checked against the model, and faults of the network on them."""
    source = as_source(model, data, method.needs.batch_size or ROWS)
    training = method.needs.network == "train"
    faults = source.check(training=training and not method.needs.fixed_rows)
    check_coupled(model, source, method)
    check_gradients(model, source, training=training)
    if method.needs.fixed_rows or method.needs.chunk_size is not None:
        warn_if_changing(source)
    return source, faults


def density_of(model: Model, source: Source, method: Method, *, ranks: Ranks | None = None) -> LogDensity:
    """Return the density of the rows, as a method runs it."""
    needs = method.needs
    rows = {} if needs.chunk_size is None else {"data": source.rows(), "chunk_size": needs.chunk_size}
    return LogDensity(model, source.num_data, plan=method.plan, training=needs.network == "train", ranks=ranks, **rows)
