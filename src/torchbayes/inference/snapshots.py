"""When SWA and SWAG take a snapshot of the weights."""

from __future__ import annotations

from torchbayes.inference.descent import Trajectory


def first_averaging_epoch(trajectory: Trajectory, start: float) -> int:
    """Return the first epoch whose end gives a snapshot: round(start · epochs)."""
    epochs = trajectory.total_steps // trajectory.steps_per_epoch
    return min(round(start * epochs), epochs - 1)


def is_snapshot(trajectory: Trajectory, start: float, per_epoch: int) -> bool:
    """Say whether the weights after the step just taken are collected.

    Snapshots are spread evenly over each epoch from the first averaging epoch on; the last one falls on its end.

    Args:
        trajectory: the trajectory after the step.
        start: share of the epochs before averaging starts.
        per_epoch: snapshots per epoch, at most one a step.

    Returns:
        True when a snapshot is due.
    """
    length = trajectory.steps_per_epoch
    epoch, position = divmod(trajectory.step - 1, length)
    if epoch < first_averaging_epoch(trajectory, start):
        return False
    per_epoch = min(per_epoch, length)
    return (position + 1) * per_epoch // length > position * per_epoch // length
