"""Descent: MAP, SWA, SWAG, FGE and others are one motion, gradient descent, with different rates and keepers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchbayes.health.descent import Descended
from torchbayes.methods.adversarial import attacked
from torchbayes.methods.defaults import Defaults, OnMinibatches, Report
from torchbayes.methods.finite import FOR_STEPS, WORKSPACE, Seen, clone, looked_at, writable
from torchbayes.methods.keepers import Kept
from torchbayes.methods.optimise.optimizers import Slots
from torchbayes.methods.optimise.sam import AnyOptimizer
from torchbayes.methods.schedules import Progress, Schedule, epochs_of
from torchbayes.model.model import Batch
from torchbayes.model.network import Buffers
from torchbayes.randomness.seeds import Purpose, mix


@dataclass(frozen=True)
class Trajectory:
    """The state of a descent of M members."""

    weights_MD: Tensor
    slots: Slots = field(metadata=FOR_STEPS)  # the optimiser's memory
    buffers: Buffers
    gradient_MD: Tensor = field(metadata=WORKSPACE, repr=False)  # scratch space for the gradient
    seeds: tuple[int, ...]
    step: int
    steps_per_epoch: int
    total_steps: int
    # numbers of past steps that are not checked yet
    unseen: tuple[Seen, ...] = field(default=(), metadata=WORKSPACE, repr=False)
    # of the inputs, for adversarial training; else empty
    ranges: Mapping[str, Tensor] = field(default_factory=dict, repr=False)

    @property
    def trajectory(self) -> Trajectory:
        """Itself: states of other methods have a trajectory as an attribute."""
        return self

    @property
    def done(self) -> float:
        """Completed share of the run, in [0, 1]."""
        return self.step / self.total_steps

    def clone(self) -> Trajectory:
        """Return a copy that shares no tensor with this one."""
        return writable(self, donate=False)


@dataclass(frozen=True)
class Info(Report):
    """What a step reports for the log, in nats."""

    loss_M: Tensor  # negative log joint density per observation of each member on its batch
    nll_M: Tensor  # mean negative log likelihood of the batch's rows, a part of it
    lr: float


def start(
    weights_MD: Tensor,
    buffers: Buffers,
    seeds: Sequence[int],
    *,
    optimizer: AnyOptimizer,
    epochs: int | None,
    steps_per_epoch: int,
) -> Trajectory:
    """Return the trajectory before its first step."""
    return Trajectory(
        weights_MD.clone(),
        optimizer.slots(weights_MD),
        clone(buffers),
        torch.empty_like(weights_MD),
        tuple(seeds),
        0,
        steps_per_epoch,
        epochs_of(epochs, steps_per_epoch) * steps_per_epoch,
    )


def descend(
    density: Any, trajectory: Trajectory, batch: Batch, *, optimizer: Any, lr: float, donate: bool
) -> tuple[Trajectory, Info]:
    """Take one optimiser step on the loss −(T/N) log p(w, D) of every member.

    `density` is a LogDensity, or has its `loss` and `num_data`; `optimizer` moves the weights by its `update`.

    The batch has one minibatch per member, (M, B, ...). The tensors of a donated trajectory are overwritten and must
    not be used again, which saves three copies. Raises DivergedError if a loss or gradient is not finite. On a CPU the
    weights are then those before the step; on other devices it is found up to 49 steps later, and the weights may not
    be finite.
    """
    now = writable(trajectory, donate=donate)
    seeds = [mix(Purpose.STEP, seed, now.step) for seed in now.seeds]
    loss_M, gradient_MD, log_likelihood_M = density.loss(
        now.weights_MD, batch, buffers=now.buffers, seeds=seeds, out=now.gradient_MD
    )
    unseen = looked_at(now, batch, Seen.of(now.step, lr, value_M=loss_M, gradient_MD=gradient_MD))
    optimizer.update(now.weights_MD, gradient_MD, now.slots, lr=lr)
    return replace(now, step=now.step + 1, unseen=unseen), Info(loss_M, log_likelihood_M / -density.num_data, lr)


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
        return start(
            weights_MD, buffers, seeds, optimizer=self.optimizer, epochs=epochs, steps_per_epoch=steps_per_epoch
        )

    def move(self, density: Any, state: Any, batch: Batch, *, donate: bool = False) -> tuple[Any, Any]:
        target, now = self.target(density, state), state.trajectory
        lr = self.rate(now)
        if self.adversarial is not None:
            now, batch = attacked(density, now, batch, share=self.adversarial)
        return after(
            state,
            *descend(self.optimizer.objective(target), now, batch, optimizer=self.optimizer.rule, lr=lr, donate=donate),
        )

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
