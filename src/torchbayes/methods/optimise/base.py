"""Descent: MAP, SWA, SWAG, FGE and others are one motion, gradient descent, with different rates and keepers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from torchbayes.health.descent import Descended
from torchbayes.methods.adversarial import attacked
from torchbayes.methods.defaults import Defaults, OnMinibatches
from torchbayes.methods.keepers import Kept
from torchbayes.methods.optimise.descent import Trajectory, descend, start
from torchbayes.methods.schedules import Progress, Schedule, epochs_of
from torchbayes.model.model import Batch
from torchbayes.model.network import Buffers


class Scheduled:
    """A learning rate that a schedule changes over the run."""

    if TYPE_CHECKING:  # annotations are read in the module of a method, and not every method imports these names
        optimizer: Any
        schedule: Schedule

    def rate(self, now: Progress | Trajectory) -> float:
        """Return the learning rate of the next step."""
        return self.optimizer.lr * self.schedule.factor(now.done)


class Descent(OnMinibatches, Kept, Defaults, ABC):
    """Gradient descent on minibatches, from the first step to the last.

    A state is a `Trajectory`, or has one beside what a step needs of the start.
    """

    # share of the range of the inputs by which rows are moved; None for plain training
    adversarial: float | None = None
    by_draws = False  # whether draws of the result are judged together: see `torchbayes.health.descent`
    why = ""  # reason why draws may be worse than the end of the trajectory; empty for the usual one

    epochs: int | None
    batch_size: int
    if TYPE_CHECKING:
        optimizer: Any

    @abstractmethod
    def rate(self, now: Progress | Trajectory) -> float:
        """Return the learning rate of the next step."""

    def target(self, density: Any, state: Any) -> Any:
        """Return the objective of a step, which gives loss and gradient: by default the density."""
        return density

    def begin(
        self, density: Any, weights_MD: Tensor, buffers: Buffers, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> Any:
        epochs = epochs_of(self.epochs, steps_per_epoch, steps=self.usual_steps)
        options: dict[str, Any] = {"optimizer": self.optimizer, "epochs": epochs}
        return start(weights_MD, buffers, seeds, **options, steps_per_epoch=steps_per_epoch)

    def move(self, density: Any, state: Any, batch: Batch, *, donate: bool = False) -> tuple[Any, Any]:
        target, now = self.target(density, state), state.trajectory
        lr = self.rate(now)
        if self.adversarial is not None:
            now, batch = attacked(density, now, batch, share=self.adversarial)
        options: dict[str, Any] = {"optimizer": self.optimizer.rule, "lr": lr, "donate": donate}
        return after(state, *descend(self.optimizer.objective(target), now, batch, **options))

    def ending(self, posterior: Any, state: Any) -> Descended:
        end, size = self.keeper.moving(state), posterior.model.layout.size
        return Descended(
            weights_MD=end.weights_MD[:, :size],
            buffers=end.buffers,
            averaged=end is not state,
            together=self.by_draws,
            said=self.optimizer.caveats(end.weights_MD),
            why=self.why or Descended.why,
        )


def after(state: Any, trajectory: Trajectory, info: Any) -> tuple[Any, Any]:
    """Return a state whose trajectory has taken a step, and the info of the step."""
    return (trajectory if isinstance(state, Trajectory) else replace(state, trajectory=trajectory)), info
