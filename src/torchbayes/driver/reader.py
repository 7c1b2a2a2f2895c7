"""Data before a run: what a likelihood needs from the targets, the rows, and their density."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from torchbayes.density.density import LogDensity
from torchbayes.density.ranks import Ranks
from torchbayes.driver.checks import check_coupled, check_gradients, warn_if_changing
from torchbayes.driver.run import recorded
from torchbayes.methods.protocol import Method
from torchbayes.model.likelihoods.weighted import asks
from torchbayes.model.model import Model
from torchbayes.model.sources.informed import as_recorded, informed_by
from torchbayes.model.sources.sources import Source, as_source
from torchbayes.model.subspace import Subspace, having_model

ROWS = 1024  # of a batch where the method has none


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
    # rows that go through in chunks, or in the same batches every time, need a network that takes each row alone
    batches = training and not method.needs.fixed_rows and model.chunk_size is None
    faults = source.check(training=batches)
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
