"""What MAP, SWA and SWAG share: minibatches from the first step to the last."""

from __future__ import annotations

from typing import Any

from torchbayes.health.descent import Descended
from torchbayes.methods.defaults import Defaults, OnMinibatches
from torchbayes.methods.flat.sam import AnyOptimizer
from torchbayes.methods.protocol import Onward


class Descent(OnMinibatches, Defaults):
    """What gradient descent methods share: minibatches from the first step to the last, and no draws.

    Attributes:
        by_draws: whether draws of the result are judged together: see `problems_of`.
    """

    by_draws = False

    epochs: int | None
    batch_size: int
    optimizer: AnyOptimizer

    @property
    def onward(self) -> Onward:
        """The next task begins at its weights."""
        return Onward(self, "start")

    def ending(self, posterior: Any, state: Any) -> Descended:
        """Return where the trajectory ended."""
        del posterior
        end = state.trajectory
        return Descended(
            weights_MD=end.weights_MD,
            buffers=end.buffers,
            averaged=end is not state,
            together=self.by_draws,
            said=self.optimizer.caveats(end.weights_MD),
        )
