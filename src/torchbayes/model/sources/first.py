"""The first batch of a source, and later ones, which are checked against it."""

from __future__ import annotations

from typing import Any

from torchbayes.model.batches.batch import Batch, on_rows
from torchbayes.model.model import Model, check_finite
from torchbayes.model.probes.functions import faults_of, watched


class First:
    """The first batch, checked against the model, so that later ones need no pass through the network.

    `faults` says why the network is no function on these rows.
    """

    def __init__(self, model: Model, batch: Batch) -> None:
        """Check the batch; ValueError says what does not fit."""
        with watched(model.network.device) as drawn:
            outputs = model.check(batch)
        self.faults = faults_of(model, batch, outputs, drew=drawn.moved)
        self._model, self._outputs = model, outputs[:1]
        self._shapes = _shapes(batch.targets)

    def check(self, batch: Batch) -> Batch:
        """Return a later batch, after checking that its values are finite and in range.

        Targets of another shape, as in texts padded batch by batch, are left to the likelihood.
        """
        check_finite(batch.inputs)
        if _shapes(batch.targets) == self._shapes:
            everywhere = self._outputs.expand(batch.size, *self._outputs.shape[1:])
            self._model.likelihood.check(everywhere, batch.targets)
        return batch


def checked_rows(model: Model, first: First | None, batch: Any) -> Batch:
    """Return a batch in the form that the model takes, checked against the first one if that is known."""
    rows = model.unpack(batch)
    return first.check(rows) if first else rows


def _shapes(targets: Any) -> Any:
    """Return the shapes of one row's targets."""
    return on_rows(lambda tensor: tensor.shape[1:], targets)
