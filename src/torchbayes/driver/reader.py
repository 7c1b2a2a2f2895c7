"""Reader: the rows that a visit asks for, from any source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchbayes.methods.protocol import Visit
from torchbayes.model.rows.batch import Batch
from torchbayes.model.rows.sources import Source


class Reader:
    """Reads minibatches of a shuffled stream, whose order is a function of (seed, member, epoch) alone, and sites.

    Consecutive minibatches are read as they come, others by skipping to their place in the epoch: what is read depends
    on the visit alone.
    """

    def __init__(self, source: Source, seeds: Sequence[int]) -> None:
        """Read from a source, for members with these seeds."""
        self._source, self._seeds = source, seeds
        self._batches: Iterator[Batch] = iter(())
        self._next = -1

    def read(self, visit: Visit) -> Batch | None:
        """Return the rows, every tensor (M, B, ...); None where the density holds them, or the visit has none.

        Raises:
            ValueError: as the source raises it for a bad batch, or if an epoch has fewer batches than the first one.
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
