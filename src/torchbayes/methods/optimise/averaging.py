"""The averaging phase that SWA and SWAG share: its learning rate, and when a snapshot of the weights is taken."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import ClassVar, Generic, NamedTuple, TypeVar

from torchbayes.methods.choices import Choice, Epochs
from torchbayes.methods.moments import Moments
from torchbayes.methods.optimise.collector import Collector
from torchbayes.methods.optimise.descent import Trajectory
from torchbayes.methods.optimise.optimizers import Adam
from torchbayes.methods.optimise.sam import AnyOptimizer
from torchbayes.methods.schedules import USUAL_EPOCHS, PiecewiseLinear, Progress
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers
from torchbayes.posteriors.gaussian import Gaussian
from torchbayes.posteriors.point import Point

# defaults: snapshots, the averaging learning rate as a share of the optimiser's, the share of the run before averaging
USUAL_SNAPSHOTS, USUAL_SHARE, USUAL_BURN_IN = 50, 0.5, 0.5
# share and burn-in of a narrow average, for models in which a wide one is worse, as it may be under little noise
_NARROW = (0.1, 0.75)

_Result = TypeVar("_Result", Point, Gaussian)


@dataclass(frozen=True)
class Averages(ABC, Generic[_Result]):
    """A descent whose second part has a constant learning rate and takes snapshots; a base beside `Descent`.

    Attributes:
        members: M, independent runs.
        epochs: passes over the data; None lets held-out rows choose them, see `fit`.
        batch_size: rows per step where the data are not batched already.
        optimizer: update rule and learning rate before averaging.
        averaging_lr: constant learning rate of the averaging phase: the larger, the wider the posterior of SWAG. None
            for half of the optimiser's; where held-out rows choose the epochs they also choose between that and a
            tenth, averaged from 0.75 of the run on.
        burn_in: share of the epochs before averaging starts; None for a half.
        per_epoch: snapshots per epoch; None spreads 50 evenly over the averaging phase.
    """

    members: int = 1
    epochs: int | None = None
    batch_size: int = 128
    optimizer: AnyOptimizer = field(default_factory=lambda: Adam(3e-3))
    averaging_lr: float | None = None
    burn_in: float | None = None
    per_epoch: int | None = None

    least: ClassVar[int]  # snapshots of each member that a posterior needs

    @property
    def deviations(self) -> int:
        """Deviations of snapshots that are kept of each member."""
        return 0

    @property
    def before(self) -> float:
        """The share of the epochs before averaging starts."""
        return USUAL_BURN_IN if self.burn_in is None else self.burn_in

    @property
    def choices(self) -> tuple[Choice, ...]:
        """How long to train, how large a learned noise ends, and whether to take a wide average or a narrow one."""
        kinds = ((USUAL_SHARE, USUAL_BURN_IN), _NARROW) if self.averaging_lr is None else ()
        ways = [
            {"averaging_lr": share * self.optimizer.lr, **({"burn_in": burn_in} if self.burn_in is None else {})}
            for share, burn_in in kinds
        ]
        return (Epochs(self, least=self._fewest_epochs, then=ways, noise=True),)

    def rate(self, now: Progress | Trajectory) -> float:
        """Return the learning rate of the next step, on the schedule of the SWAG paper."""
        lr = self.optimizer.lr
        share = USUAL_SHARE if self.averaging_lr is None else self.averaging_lr / lr
        return lr * PiecewiseLinear(share, self.before).factor(now.done)

    def due(self, now: Trajectory) -> bool:
        """Return whether the weights after the step just taken are collected."""
        return is_snapshot(now, self.before, self.per_epoch)

    def planned(self, now: Trajectory) -> int:
        """Return how many snapshots the whole run will take."""
        return planned_snapshots(now, self.before, self.per_epoch)

    def _fewest_epochs(self, steps_per_epoch: int) -> int:
        """Return the fewest epochs in which each way takes the snapshots that a posterior needs; 1 if none are enough.

        An epoch of few rows has one step, and so one snapshot at most.
        """
        latest = max(self.before, _NARROW[1]) if self.averaging_lr is None and self.burn_in is None else self.before
        runs = (Length(steps_per_epoch, epochs * steps_per_epoch) for epochs in range(1, USUAL_EPOCHS + 1))
        enough = (run for run in runs if planned_snapshots(run, latest, self.per_epoch) >= self.least)
        return next((run.total_steps // steps_per_epoch for run in enough), 1)

    @abstractmethod
    def averaged(self, model: Model, moments: Sequence[Moments], buffers: Buffers) -> _Result:
        """Return the posterior of members with these moments.

        Args:
            model: the model of the weights.
            moments: each of one member or more, in the order of the members.
            buffers: the network's buffers of each member, (M, ...).

        Returns:
            The posterior, which shares no tensor of means with the moments.

        Raises:
            ValueError: if a member has too few snapshots.
        """

    def collector(self, model: Model, *, resume: str | PathLike[str] | None = None) -> Collector[_Result]:
        """Return a collector of points that your own training loop visits, to use instead of `fit`.

        Of the settings only `members` matters, for SWAG also `rank` and `scale`, and `batch_size` for the rows of
        `posterior(data)`.

        Args:
            model: network, likelihood and prior.
            resume: file that `Collector.save` wrote, to go on from; starts afresh if there is none yet.

        Returns:
            The collector.

        Raises:
            ValueError: if memory is too small for the deviations, or the file is damaged or of another model or
                method.
        """
        return Collector(model, self, rank=self.deviations, least=self.least, resume=resume)


class Length(NamedTuple):
    """How long a run is."""

    steps_per_epoch: int
    total_steps: int


def averaging_start(run: Trajectory | Length, burn_in: float) -> int:
    """Return the steps before the averaging phase: round(burn_in · epochs) epochs, at most all but one."""
    epochs = run.total_steps // run.steps_per_epoch
    return min(round(burn_in * epochs), epochs - 1) * run.steps_per_epoch


def planned_snapshots(run: Trajectory | Length, burn_in: float, per_epoch: int | None) -> int:
    """Return how many snapshots the whole run will take, at most one per step."""
    steps = run.total_steps - averaging_start(run, burn_in)
    snapshots = USUAL_SNAPSHOTS if per_epoch is None else steps // run.steps_per_epoch * per_epoch
    return min(snapshots, steps)


def is_snapshot(trajectory: Trajectory, burn_in: float, per_epoch: int | None) -> bool:
    """Return whether the weights after the step just taken are collected.

    Snapshots are spread evenly over the averaging phase; the last one is at its end. `per_epoch` None takes the usual
    number in all.
    """
    start = averaging_start(trajectory, burn_in)
    planned, steps = planned_snapshots(trajectory, burn_in, per_epoch), trajectory.total_steps - start
    return is_even(trajectory.step - start, planned, steps)


def is_even(taken: int, count: int, steps: int) -> bool:
    """Return whether one of `count` points, spread evenly over steps up to the last, is at step `taken`."""
    return max(taken, 0) * count // steps > max(taken - 1, 0) * count // steps
