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


class Objective(Protocol):
    """The loss and gradient that a step takes."""

    @property
    def num_data(self) -> int:
        """N."""
        ...

    def loss(
        self, weights_MD: Tensor, batch: Batch, *, buffers: Buffers | None, seeds: Sequence[int], out: Tensor
    ) -> Value:
        """Return the loss of each member, and write its gradient to `out`."""
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
