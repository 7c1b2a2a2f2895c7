"""Descent: MAP, SWA, SWAG, FGE and others are one motion, gradient descent, with different rates and keepers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from torchbayes.health.descent import Descended
from torchbayes.methods.adversarial import attacked
from torchbayes.methods.defaults import Defaults, OnMinibatches
from torchbayes.methods.flat.sam import AnyOptimizer
from torchbayes.methods.keepers import Kept
from torchbayes.methods.optimise.descent import Info, Trajectory, descend, start
from torchbayes.methods.protocol import Onward
from torchbayes.methods.schedules import Progress
from torchbayes.model.model import Batch
from torchbayes.model.network import Buffers


class Descent(OnMinibatches, Kept, Defaults, ABC):
    """Gradient descent on minibatches, from the first step to the last.

    Attributes:
        adversarial: share of the range of the inputs by which rows are moved; None for plain training.
        by_draws: whether draws of the result are judged together: see `torchbayes.health.descent`.
    """

    adversarial: float | None = None
    by_draws = False

    epochs: int | None
    batch_size: int
    optimizer: AnyOptimizer

    @property
    def onward(self) -> Onward:
        """The next task begins at its weights."""
        return Onward(self, "start")

    @abstractmethod
    def rate(self, now: Progress | Trajectory) -> float:
        """Return the learning rate of the next step."""

    def begin(
        self, density: Any, weights_MD: Tensor, buffers: Buffers, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> Trajectory:
        """Return the trajectory before its first step."""
        del density
        options: dict[str, Any] = {"optimizer": self.optimizer, "epochs": self.epochs}
        return start(weights_MD, buffers, seeds, **options, steps_per_epoch=steps_per_epoch)

    def move(self, density: Any, state: Trajectory, batch: Batch, *, donate: bool = False) -> tuple[Trajectory, Info]:
        """Return the trajectory one optimiser step on, and the info of the step."""
        lr = self.rate(state)
        if self.adversarial is not None:
            state, batch = attacked(density, state, batch, share=self.adversarial)
        target = self.optimizer.objective(density)
        return descend(target, state, batch, optimizer=self.optimizer.rule, lr=lr, donate=donate)

    def ending(self, posterior: Any, state: Any) -> Descended:
        """Return where the trajectory ended."""
        del posterior
        end = self.keeper.moving(state)
        return Descended(
            weights_MD=end.weights_MD,
            buffers=end.buffers,
            averaged=end is not state,
            together=self.by_draws,
            said=self.optimizer.caveats(end.weights_MD),
        )
