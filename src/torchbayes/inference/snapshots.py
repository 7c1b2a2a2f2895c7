"""When SWA and SWAG take a snapshot of the weights."""

from __future__ import annotations

from torchbayes.inference.descent import Trajectory


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
