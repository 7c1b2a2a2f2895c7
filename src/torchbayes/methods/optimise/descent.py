"""One step of gradient descent on a stack of members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from torchbayes.density.dynamics import Value
from torchbayes.methods.finite import FOR_STEPS, WORKSPACE, Seen, clone, looked_at, writable
from torchbayes.methods.optimise.optimizers import Slots
from torchbayes.methods.optimise.sam import AnyOptimizer
from torchbayes.methods.reports import Report
from torchbayes.methods.schedules import epochs_of
from torchbayes.model.model import Batch
from torchbayes.model.network import Buffers
from torchbayes.randomness.seeds import Purpose, mix


@dataclass(frozen=True)
class Trajectory:
    """The state of a descent of M members.

    Attributes:
        weights_MD: weights.
        slots: the optimiser's memory.
        buffers: the network's buffers of each member, (M, ...).
        gradient_MD: memory for the gradient, reused at every step; its content means nothing between steps.
        seeds: one seed per member.
        step: steps taken.
        steps_per_epoch: length of an epoch.
        total_steps: length of the run.
        unseen: numbers of past steps that are still to be looked at.
        ranges: of the inputs, for adversarial training; else empty.
    """

    weights_MD: Tensor
    slots: Slots = field(metadata=FOR_STEPS)
    buffers: Buffers
    gradient_MD: Tensor = field(metadata=WORKSPACE, repr=False)
    seeds: tuple[int, ...]
    step: int
    steps_per_epoch: int
    total_steps: int
    unseen: tuple[Seen, ...] = field(default=(), metadata=WORKSPACE, repr=False)
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
    """What a step reports for the log; no later step needs it.

    Attributes:
        loss_M: negative log joint density per observation of each member on its batch, in nats.
        nll_M: the data's part of it: mean negative log likelihood of the batch's rows, in nats.
        lr: learning rate of the step.
    """

    loss_M: Tensor
    nll_M: Tensor
    lr: float


class Objective(Protocol):
    """What a step takes loss and gradient of."""

    @property
    def num_data(self) -> int:
        """N."""
        ...

    def loss(
        self, weights_MD: Tensor, batch: Batch, *, buffers: Buffers | None, seeds: Sequence[int], out: Tensor
    ) -> Value:
        """Return the loss of each member, with its gradient in `out`."""
        ...


class Update(Protocol):
    """The part of an optimiser that a step needs."""

    def update(self, weights_MD: Tensor, gradient_MD: Tensor, slots: Slots, *, lr: float) -> None:
        """Take one step in place."""
        ...


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
    density: Objective, trajectory: Trajectory, batch: Batch, *, optimizer: Update, lr: float, donate: bool
) -> tuple[Trajectory, Info]:
    """Take one optimiser step on the loss −(T/N) log p(w, D) of every member.

    Args:
        density: the hot function, in training mode, or what stands in its place.
        trajectory: where the members are.
        batch: one minibatch per member, (M, B, ...).
        optimizer: the update rule.
        lr: learning rate of this step.
        donate: give up `trajectory`: its tensors are overwritten and must not be used again. Saves three copies.

    Returns:
        The new trajectory, and the info of the step.

    Raises:
        DivergedError: if a loss or gradient is not finite. On a CPU the weights are then those before the step; on
            other devices it is found up to 49 steps later, and the weights may not be finite.
    """
    now = writable(trajectory, donate=donate)
    seeds = [mix(Purpose.STEP, seed, now.step) for seed in now.seeds]
    loss_M, gradient_MD, log_likelihood_M = density.loss(
        now.weights_MD, batch, buffers=now.buffers, seeds=seeds, out=now.gradient_MD
    )
    unseen = looked_at(now, batch, Seen.of(now.step, lr, value_M=loss_M, gradient_MD=gradient_MD))
    optimizer.update(now.weights_MD, gradient_MD, now.slots, lr=lr)
    return replace(now, step=now.step + 1, unseen=unseen), Info(loss_M, log_likelihood_M / -density.num_data, lr)
