"""The averaging phase that SWA and SWAG share: its learning rate, and when a snapshot of the weights is taken."""

from __future__ import annotations

from typing import Protocol

from torchbayes.checks import check_counts, check_positive, check_share, given
from torchbayes.density.density import LogDensity
from torchbayes.methods.adversarial import attacked, check_adversarial
from torchbayes.methods.checks import check_training
from torchbayes.methods.flat.sam import AnyOptimizer
from torchbayes.methods.optimise.descent import Info, Trajectory, descend
from torchbayes.methods.schedules import PiecewiseLinear
from torchbayes.model.model import Batch

# defaults: number of snapshots, the averaging learning rate as a share of the optimiser's, the share of the run before
USUAL_SNAPSHOTS, USUAL_SHARE, USUAL_BURN_IN = 50, 0.5, 0.5
_NARROW = (0.1, 0.75)  # share and burn-in where weights that move as usual are worse, as those of little noise may be


class Averaging(Protocol):
    """Settings of a method that averages snapshots."""

    @property
    def epochs(self) -> int | None:
        """Passes over the data."""
        ...

    @property
    def optimizer(self) -> AnyOptimizer:
        """Update rule and learning rate before averaging."""
        ...

    @property
    def averaging_lr(self) -> float | None:
        """Constant learning rate of the averaging phase."""
        ...

    @property
    def burn_in(self) -> float | None:
        """Share of the epochs before averaging starts."""
        ...

    @property
    def per_epoch(self) -> int | None:
        """Snapshots per epoch."""
        ...

    @property
    def adversarial(self) -> float | None:
        """Share of the range of the inputs by which rows are moved; None for plain training."""
        ...


def check_averaging(settings: Averaging) -> None:
    """Check the settings.

    Raises:
        ValueError: if one is out of range.
        TypeError: if the optimiser is not an optimiser object.
    """
    check_training(settings, flat=True)
    check_counts(**given(epochs=settings.epochs, per_epoch=settings.per_epoch))
    check_share(**given(burn_in=settings.burn_in))
    check_positive(**given(averaging_lr=settings.averaging_lr))
    check_adversarial(settings.adversarial)


def burn_in_of(settings: Averaging) -> float:
    """Return the share of the epochs before averaging starts."""
    return USUAL_BURN_IN if settings.burn_in is None else settings.burn_in


def ways_to_average(settings: Averaging) -> list[dict[str, float]]:
    """Return the open settings among which held-out rows choose: a wide average, and a narrow one."""
    if settings.averaging_lr is not None:
        return []
    kinds, free = ((USUAL_SHARE, USUAL_BURN_IN), _NARROW), settings.burn_in is None
    return [
        {"averaging_lr": share * settings.optimizer.lr, **({"burn_in": burn_in} if free else {})}
        for share, burn_in in kinds
    ]


def averaging_step(
    settings: Averaging, density: LogDensity, trajectory: Trajectory, *, batch: Batch, donate: bool
) -> tuple[Trajectory, Info, bool]:
    """Take one optimiser step on the SWAG paper's schedule, and say whether the weights are then collected.

    Args:
        settings: the method.
        density: the hot function.
        trajectory: where the members are.
        batch: one minibatch per member, (M, B, ...).
        donate: overwrite the trajectory's tensors.

    Returns:
        The new trajectory, the info of the step, and whether a snapshot is due.
    """
    own, burn_in = settings.averaging_lr, burn_in_of(settings)
    share = USUAL_SHARE if own is None else own / settings.optimizer.lr
    lr = settings.optimizer.lr * PiecewiseLinear(share, burn_in).factor(trajectory.done)
    if settings.adversarial is not None:
        trajectory, batch = attacked(density, trajectory, batch, share=settings.adversarial)
    target, rule = settings.optimizer.objective(density), settings.optimizer.rule
    now, info = descend(target, trajectory, batch, optimizer=rule, lr=lr, donate=donate)
    return now, info, is_snapshot(now, burn_in, settings.per_epoch)


def averaging_start(trajectory: Trajectory, burn_in: float) -> int:
    """Return the steps before the averaging phase: round(burn_in · epochs) epochs, at most all but one."""
    epochs = trajectory.total_steps // trajectory.steps_per_epoch
    return min(round(burn_in * epochs), epochs - 1) * trajectory.steps_per_epoch


def planned_snapshots(trajectory: Trajectory, burn_in: float, per_epoch: int | None) -> int:
    """Return how many snapshots the whole run will take: at most one per step."""
    steps = trajectory.total_steps - averaging_start(trajectory, burn_in)
    wanted = USUAL_SNAPSHOTS if per_epoch is None else steps // trajectory.steps_per_epoch * per_epoch
    return min(wanted, steps)


def is_snapshot(trajectory: Trajectory, burn_in: float, per_epoch: int | None) -> bool:
    """Say whether the weights after the step just taken are collected.

    Snapshots are spread evenly over the averaging phase; the last one falls on its end.

    Args:
        trajectory: the trajectory after the step.
        burn_in: share of the epochs before averaging starts.
        per_epoch: snapshots per epoch; None for the usual number in all.

    Returns:
        True when a snapshot is due.
    """
    start = averaging_start(trajectory, burn_in)
    planned, steps = planned_snapshots(trajectory, burn_in, per_epoch), trajectory.total_steps - start
    taken = max(trajectory.step - start, 0)
    return taken * planned // steps > max(taken - 1, 0) * planned // steps
