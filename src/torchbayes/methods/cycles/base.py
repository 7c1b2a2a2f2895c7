"""What methods share that keep a network of every cycle of the learning rate.

The steps after which a network is kept depend only on the length of the run. So the state holds nothing but the
trajectory, and a run that is resumed keeps the same networks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from torchbayes.density.density import LogDensity
from torchbayes.health.descent import Descended
from torchbayes.health.ending import finite
from torchbayes.health.kept import alike
from torchbayes.methods.choices import Choice, Epochs
from torchbayes.methods.keepers import EndsOfCycles
from torchbayes.methods.optimise.descent import Trajectory
from torchbayes.methods.optimise.sam import AnyOptimizer
from torchbayes.methods.protocol import Needs, Shelf
from torchbayes.posteriors.draws import Draws
from torchbayes.posteriors.point import Point


class Bounds(NamedTuple):
    """Bounds on the cycles of a run."""

    epochs: int  # least length of a run with one cycle
    cycles: int  # most cycles of a run


class Cyclic(ABC):
    """Base of descents in cycles, each of which keeps a network."""

    epochs: int | None
    batch_size: int
    optimizer: AnyOptimizer
    draws: int | None
    adversarial: float | None

    @abstractmethod
    def ends(self, total_steps: int, steps_per_epoch: int) -> Sequence[int]:
        """Return the numbers of steps after which the rate is lowest, one for each cycle.

        Raises:
            ValueError: if no cycle fits in the run.
        """

    @property
    @abstractmethod
    def bounds(self) -> Bounds:
        """What is known of the cycles before the length of the run is; 50 epochs are assumed where that is open."""

    @property
    def needs(self) -> Needs:
        """Minibatches, through a network in training mode, and a shelf."""
        most = self.bounds.cycles if self.draws is None else min(self.draws, self.bounds.cycles)
        return Needs(batch_size=self.batch_size, network="train", draws=most)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The number of epochs, at least enough for one cycle, by training without cycles."""
        least = self.bounds.epochs if self.epochs is None else min(self.bounds.epochs, self.epochs)
        return (Epochs(self, least=least),)

    @property
    def keeper(self) -> EndsOfCycles:
        """The networks at the ends of cycles."""
        return EndsOfCycles(lambda now: kept(self, now.total_steps, now.steps_per_epoch))

    def posterior(self, density: LogDensity, state: Trajectory, shelf: Shelf | None = None) -> Draws:
        """Return the networks that were kept; the statistics of their batch norms are measured when they are used.

        Raises:
            ValueError: if there are none yet.
        """
        assert shelf is not None, "networks that are kept are put on a shelf"
        return Draws(density.model, shelf.weights_MSD(), buffers_M=state.buffers or None)

    def ending(self, posterior: Draws, state: Trajectory) -> Descended:
        """Return the last weights; the networks kept must be different functions."""
        last = Point(
            posterior.model,
            posterior.weights_MSD[:, -1],
            buffers_M=posterior.buffers_M,
            calibration=posterior.calibration,
        )
        caveats = self.optimizer.caveats(state.weights_MD)
        return Descended(
            weights_MD=state.weights_MD, buffers=state.buffers, result=last, said=caveats, first=[finite], then=[alike]
        )


def kept(method: Cyclic, total_steps: int, steps_per_epoch: int) -> Sequence[int]:
    """Return the numbers of steps after which a network is kept: those of the last `draws` cycles, or of all."""
    ends = method.ends(total_steps, steps_per_epoch)
    return ends if method.draws is None else ends[-method.draws :]
