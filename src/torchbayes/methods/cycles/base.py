"""What methods share that keep a network of every cycle of the learning rate.

A cycle ends with the steps after which a network is kept: its number of steps depends on the length of the run alone,
so that nothing but the trajectory is in the state, and a run that is resumed keeps the same networks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from torchbayes.checks import check_counts, given
from torchbayes.density.density import LogDensity
from torchbayes.density.plans import BackendName
from torchbayes.health.descent import Descended
from torchbayes.health.ending import finite
from torchbayes.health.kept import alike
from torchbayes.methods.adversarial import attacked, check_adversarial
from torchbayes.methods.checks import check_training
from torchbayes.methods.choices import Choice, Epochs
from torchbayes.methods.defaults import Defaults, OnMinibatches
from torchbayes.methods.flat.sam import AnyOptimizer
from torchbayes.methods.optimise.descent import Info, Trajectory, descend, start
from torchbayes.methods.protocol import Needs, Shelf
from torchbayes.model.model import Batch
from torchbayes.model.network import Buffers
from torchbayes.posteriors.draws import Draws
from torchbayes.posteriors.point import Point


class Bounds(NamedTuple):
    """What is known of the cycles of a run.

    Attributes:
        epochs: of a run that has one cycle, at least.
        cycles: of a run, at most.
    """

    epochs: int
    cycles: int


class Cyclic(OnMinibatches, Defaults, ABC):
    """A descent in cycles, which keeps a network of each."""

    members: int
    epochs: int | None
    batch_size: int
    optimizer: AnyOptimizer
    draws: int | None
    plan: BackendName | str
    adversarial: float | None

    @abstractmethod
    def rate(self, step: int, total_steps: int, steps_per_epoch: int) -> float:
        """Return the learning rate of a step, counted from 0."""

    @abstractmethod
    def ends(self, total_steps: int, steps_per_epoch: int) -> Sequence[int]:
        """Return the numbers of steps after which the rate is lowest, one for each cycle.

        Raises:
            ValueError: if no cycle fits in the run.
        """

    @property
    @abstractmethod
    def bounds(self) -> Bounds:
        """What is known of the cycles before the length of the run is."""

    @property
    def needs(self) -> Needs:
        """Minibatches, through a network in training mode, and a shelf."""
        most = self.bounds.cycles if self.draws is None else min(self.draws, self.bounds.cycles)
        return Needs(batch_size=self.batch_size, network="train", draws=most)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """How long to train, by training without cycles; enough for one cycle at least."""
        least = self.bounds.epochs if self.epochs is None else min(self.bounds.epochs, self.epochs)
        return (Epochs(self, least=least),)

    def init(
        self, density: LogDensity, weights_MD: Tensor, buffers: Buffers, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> Trajectory:
        """Return the state before the first step.

        Args:
            density: the hot function.
            weights_MD: where the members start.
            buffers: the network's buffers of each member, (M, ...).
            seeds: one seed per member.
            steps_per_epoch: length of an epoch.

        Returns:
            The state.

        Raises:
            ValueError: if no cycle fits in the run.
        """
        del density
        self.ends(self.length(steps_per_epoch), steps_per_epoch)
        return start(
            weights_MD, buffers, seeds, optimizer=self.optimizer, epochs=self.epochs, steps_per_epoch=steps_per_epoch
        )

    def step(
        self, density: LogDensity, state: Trajectory, batch: Batch, *, donate: bool = False
    ) -> tuple[Trajectory, Info]:
        """Take one optimiser step.

        Args:
            density: the hot function.
            state: the state; intact afterwards unless donated.
            batch: one minibatch per member, (M, B, ...).
            donate: overwrite the state's tensors, to save copies.

        Returns:
            The new state, and the info of the step.
        """
        lr = self.rate(state.step, state.total_steps, state.steps_per_epoch)
        if self.adversarial is not None:
            state, batch = attacked(density, state, batch, share=self.adversarial)
        target = self.optimizer.objective(density)
        return descend(target, state, batch, optimizer=self.optimizer.rule, lr=lr, donate=donate)

    def draw(self, state: Trajectory) -> Tensor | None:
        """Return the weights if a network is kept now."""
        return state.weights_MD if state.step in kept(self, state.total_steps, state.steps_per_epoch) else None

    def posterior(self, density: LogDensity, state: Trajectory, shelf: Shelf | None = None) -> Draws:
        """Return the networks that were kept; the statistics of their batch norms are measured when they are used.

        Raises:
            ValueError: if there are none yet.
        """
        assert shelf is not None, "networks that are kept are put on a shelf"
        return Draws(density.model, shelf.weights_MSD(), buffers_M=state.buffers or None)

    def ending(self, posterior: Draws, state: Trajectory) -> Descended:
        """Return the last weights; the networks kept must be different functions."""
        about: dict[str, Any] = {"buffers_M": posterior.buffers_M, "calibration": posterior.calibration}
        last = Point(posterior.model, posterior.weights_MSD[:, -1], **about)
        said = self.optimizer.caveats(state.weights_MD)
        return Descended(
            weights_MD=state.weights_MD, buffers=state.buffers, result=last, said=said, first=[finite], then=[alike]
        )


def kept(method: Cyclic, total_steps: int, steps_per_epoch: int) -> Sequence[int]:
    """Return the numbers of steps after which a network is kept: those of the last `draws` cycles, or of all."""
    found = method.ends(total_steps, steps_per_epoch)
    return found if method.draws is None else found[-method.draws :]


def check_cyclic(method: Cyclic) -> None:
    """Check the settings that all of them have.

    Raises:
        ValueError: if one is out of range.
        TypeError: if the optimiser is not an optimiser object.
    """
    check_training(method, flat=True)
    check_counts(**given(epochs=method.epochs, draws=method.draws))
    check_adversarial(method.adversarial)
