"""What MAP, SWA and SWAG share: minibatches from the first step to the last."""

from __future__ import annotations

from typing import Any

from torchbayes.methods.choices import Choice, Epochs
from torchbayes.methods.defaults import Defaults
from torchbayes.methods.flat.sam import AnyOptimizer
from torchbayes.methods.optimise.descent import epochs_of
from torchbayes.methods.optimise.health import problems_of
from torchbayes.methods.protocol import History, Needs, Onward, Visit
from torchbayes.model.rows.sources import Source


class Descent(Defaults):
    """What gradient descent methods share: minibatches from the first step to the last, and no draws.

    Attributes:
        by_draws: whether draws of the result are judged together: see `problems_of`.
    """

    by_draws = False

    epochs: int | None
    batch_size: int
    optimizer: AnyOptimizer

    @property
    def needs(self) -> Needs:
        """Minibatches, through a network in training mode."""
        return Needs(batch_size=self.batch_size, network="train")

    @property
    def choices(self) -> tuple[Choice, ...]:
        """How long to train."""
        return (Epochs(self),)

    @property
    def onward(self) -> Onward:
        """The next task begins at its weights."""
        return Onward(self, "start")

    def length(self, steps_per_epoch: int) -> int:
        """Return the steps of a run, for an epoch of so many minibatches."""
        return epochs_of(self.epochs, steps_per_epoch) * steps_per_epoch

    def visit(self, state: Any) -> Visit | None:
        """Return the next minibatch; None when the run is over."""
        now = state.trajectory
        return Visit("minibatch", now.step) if now.step < now.total_steps else None

    def problems(self, posterior: Any, state: Any, *, history: History, source: Source) -> list[str]:
        """Return the problems of the result on the training rows: see `torchbayes.methods.optimise.health`."""
        del history
        found = problems_of(posterior, state, source, by_draws=self.by_draws)
        return [*self.optimizer.problems(state.trajectory.weights_MD), *found]
