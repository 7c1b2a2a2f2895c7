"""The averaging phase that SWA and SWAG share: its learning rate, and when a snapshot of the weights is taken."""

from __future__ import annotations

from typing import Protocol

from torchbayes.inference.descent import Info, Trajectory, descend
from torchbayes.inference.optimizers import Optimizer
from torchbayes.inference.schedules import PiecewiseLinear
from torchbayes.model.density import LogDensity
from torchbayes.model.model import Batch


class Averaging(Protocol):
    """Settings of a method that averages snapshots."""

    @property
    def optimizer(self) -> Optimizer:
        """Update rule and learning rate before averaging."""
        ...

    @property
    def averaging_lr(self) -> float:
        """Constant learning rate of the averaging phase."""
        ...

    @property
    def burn_in(self) -> float:
        """Share of the epochs before averaging starts."""
        ...

    @property
    def per_epoch(self) -> int:
        """Snapshots per epoch."""
        ...


def averaging_step(
    settings: Averaging, density: LogDensity, trajectory: Trajectory, *, batch: Batch, donate: bool
) -> tuple[Trajectory, Info, bool]:
    """Take one optimiser step on the SWAG paper's schedule, and say whether the weights are then collected.

    Args:
        settings: of the method.
        density: the hot function.
        trajectory: where the members are.
        batch: one minibatch per member, (M, B, ...).
        donate: give the trajectory's tensors up.

    Returns:
        The new trajectory, what was seen, and whether a snapshot is due.
    """
    schedule = PiecewiseLinear(settings.averaging_lr / settings.optimizer.lr, settings.burn_in)
    lr = settings.optimizer.lr * schedule.factor(trajectory.done)
    now, info = descend(density, trajectory, batch, optimizer=settings.optimizer, lr=lr, donate=donate)
    return now, info, is_snapshot(now, settings.burn_in, settings.per_epoch)


def first_averaging_epoch(trajectory: Trajectory, burn_in: float) -> int:
    """Return the first epoch whose end gives a snapshot: round(burn_in · epochs)."""
    epochs = trajectory.total_steps // trajectory.steps_per_epoch
    return min(round(burn_in * epochs), epochs - 1)


def planned_snapshots(trajectory: Trajectory, burn_in: float, per_epoch: int) -> int:
    """Return how many snapshots the whole run will take."""
    epochs = trajectory.total_steps // trajectory.steps_per_epoch
    return (epochs - first_averaging_epoch(trajectory, burn_in)) * min(per_epoch, trajectory.steps_per_epoch)


def is_snapshot(trajectory: Trajectory, burn_in: float, per_epoch: int) -> bool:
    """Say whether the weights after the step just taken are collected.

    Snapshots are spread evenly over each epoch from the first averaging epoch on; the last one falls on its end.

    Args:
        trajectory: the trajectory after the step.
        burn_in: share of the epochs before averaging starts.
        per_epoch: snapshots per epoch, at most one a step.

    Returns:
        True when a snapshot is due.
    """
    length = trajectory.steps_per_epoch
    epoch, position = divmod(trajectory.step - 1, length)
    if epoch < first_averaging_epoch(trajectory, burn_in):
        return False
    per_epoch = min(per_epoch, length)
    return (position + 1) * per_epoch // length > position * per_epoch // length
