"""The first batch of a source, and later ones, which are checked against it."""

from __future__ import annotations

from typing import Any

from torchbayes.model.batches.batch import Batch, on_rows
from torchbayes.model.model import Model, check_finite
from torchbayes.model.probes.functions import faults_of, watched


class First:
    """The first batch, checked against the model, so that later ones need no pass through the network.

    Attributes:
        faults: why the network is no function on these rows.
    """

    def __init__(self, model: Model, batch: Batch) -> None:
        """Check the batch.

        Raises:
            ValueError: if something does not fit; the message says what.
        """
        with watched(model.network.device) as drawn:
            outputs = model.check(batch)
        self.faults = faults_of(model, batch, outputs, drew=drawn.moved)
        self._model, self._outputs = model, outputs[:1]
        self._shapes = _shapes(batch.targets)

    def check(self, batch: Batch) -> Batch:
        """Return a later batch, once its values are checked.

        Targets of another shape, as in texts padded batch by batch, are left to the likelihood.

        Raises:
            ValueError: if inputs or targets are not finite or out of range.
        """
        check_finite(batch.inputs)
        if _shapes(batch.targets) == self._shapes:
            everywhere = self._outputs.expand(batch.size, *self._outputs.shape[1:])
            self._model.likelihood.check(everywhere, batch.targets)
        return batch


def checked_rows(model: Model, first: First | None, batch: Any) -> Batch:
    """Return a batch as the model takes it, checked against the first one where that is known."""
    rows = model.unpack(batch)
    return first.check(rows) if first else rows


def _shapes(targets: Any) -> Any:
    """Return the shapes of one row's targets."""
    return on_rows(lambda tensor: tensor.shape[1:], targets)
