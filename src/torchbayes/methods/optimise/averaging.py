"""The averaging phase that SWA and SWAG share: its learning rate, and when a snapshot of the weights is taken."""

from __future__ import annotations

from torchbayes.methods.choices import Choice, Epochs
from torchbayes.methods.optimise.descent import Trajectory
from torchbayes.methods.optimise.sam import AnyOptimizer
from torchbayes.methods.schedules import PiecewiseLinear, Progress

# defaults: snapshots, the averaging learning rate as a share of the optimiser's, the share of the run before averaging
USUAL_SNAPSHOTS, USUAL_SHARE, USUAL_BURN_IN = 50, 0.5, 0.5
# share and burn-in of a narrow average, for models in which a wide one is worse, as it may be under little noise
_NARROW = (0.1, 0.75)


def burn_in_of(settings: Averages) -> float:
    """Return the share of the epochs before averaging starts."""
    return USUAL_BURN_IN if settings.burn_in is None else settings.burn_in


def ways_to_average(settings: Averages) -> list[dict[str, float]]:
    """Return the open settings among which held-out rows choose: for a wide average and for a narrow one."""
    if settings.averaging_lr is not None:
        return []
    kinds, burn_in_is_open = ((USUAL_SHARE, USUAL_BURN_IN), _NARROW), settings.burn_in is None
    return [
        {"averaging_lr": share * settings.optimizer.lr, **({"burn_in": burn_in} if burn_in_is_open else {})}
        for share, burn_in in kinds
    ]


class Averages:
    """A descent whose second part has a constant learning rate and takes snapshots."""

    epochs: int | None
    optimizer: AnyOptimizer
    averaging_lr: float | None
    burn_in: float | None
    per_epoch: int | None
    adversarial: float | None

    @property
    def choices(self) -> tuple[Choice, ...]:
        """How long to train, and how to average where that is open."""
        return (Epochs(self, then=ways_to_average(self)),)

    def rate(self, now: Progress | Trajectory) -> float:
        """Return the learning rate of the next step, on the schedule of the SWAG paper."""
        lr = self.optimizer.lr
        share = USUAL_SHARE if self.averaging_lr is None else self.averaging_lr / lr
        return lr * PiecewiseLinear(share, burn_in_of(self)).factor(now.done)

    def due(self, now: Trajectory) -> bool:
        """Return whether the weights after the step just taken are collected."""
        return is_snapshot(now, burn_in_of(self), self.per_epoch)

    def planned(self, now: Trajectory) -> int:
        """Return how many snapshots the whole run will take."""
        return planned_snapshots(now, burn_in_of(self), self.per_epoch)


def averaging_start(trajectory: Trajectory, burn_in: float) -> int:
    """Return the steps before the averaging phase: round(burn_in · epochs) epochs, at most all but one."""
    epochs = trajectory.total_steps // trajectory.steps_per_epoch
    return min(round(burn_in * epochs), epochs - 1) * trajectory.steps_per_epoch


def planned_snapshots(trajectory: Trajectory, burn_in: float, per_epoch: int | None) -> int:
    """Return how many snapshots the whole run will take, at most one per step."""
    steps = trajectory.total_steps - averaging_start(trajectory, burn_in)
    snapshots = USUAL_SNAPSHOTS if per_epoch is None else steps // trajectory.steps_per_epoch * per_epoch
    return min(snapshots, steps)


def is_snapshot(trajectory: Trajectory, burn_in: float, per_epoch: int | None) -> bool:
    """Return whether the weights after the step just taken are collected.

    Snapshots are spread evenly over the averaging phase; the last one is at its end. `per_epoch` None takes the usual
    number in all.
    """
    start = averaging_start(trajectory, burn_in)
    planned, steps = planned_snapshots(trajectory, burn_in, per_epoch), trajectory.total_steps - start
    taken = max(trajectory.step - start, 0)
    return taken * planned // steps > max(taken - 1, 0) * planned // steps
