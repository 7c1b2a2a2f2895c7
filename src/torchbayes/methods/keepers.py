"""What of the path of a run stays: its end, a mean, moments, the ends of cycles, thinned draws.

A keeper works with whatever moves weights: it reads `weights_MD`, `step` and where a run has one its length. A method
is settings, a motion and a keeper, and the posterior that they give.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from torchbayes.checks import check_memory
from torchbayes.methods.checks import check_method
from torchbayes.methods.moments import Moments
from torchbayes.model.network import Buffers

Due = Callable[[Any], bool]
"""Whether weights are kept after the step that led to a state."""


class Following:
    """A state beside that of a motion.

    Attributes:
        trajectory: the state of the motion, such as a `Trajectory`.
    """

    trajectory: Any

    @property
    def step(self) -> int:
        """Steps taken."""
        return self.trajectory.step

    @property
    def total_steps(self) -> int:
        """Length of the run."""
        return self.trajectory.total_steps


class Keeper(Protocol):
    """What stays of the path of a motion."""

    def begin(self, moving: Any) -> Any:
        """Return the state of a run, with nothing kept, for a motion that has not taken a step."""
        ...

    def moving(self, state: Any) -> Any:
        """Return the state of the motion."""
        ...

    def keep(self, state: Any, moved: Any, *, donate: bool) -> Any:
        """Return the state of a run after a step of the motion.

        Args:
            state: before it.
            moved: the state of the motion after it.
            donate: overwrite what `state` keeps.
        """
        ...

    def draw(self, state: Any) -> Tensor | None:
        """Return weights (M, D) to put on the shelf now, or None."""
        ...


class Last:
    """Keeps the end of the path: the state is that of the motion."""

    def begin(self, moving: Any) -> Any:
        """Return the state of the motion."""
        return moving

    def moving(self, state: Any) -> Any:
        """Return the state itself."""
        return state

    def keep(self, state: Any, moved: Any, *, donate: bool) -> Any:
        """Return the state of the motion."""
        return moved

    def draw(self, state: Any) -> Tensor | None:
        """Return nothing."""
        return None


@dataclass(frozen=True)
class Thinned(Last):
    """Puts the weights after some steps on a shelf.

    Attributes:
        due: whether weights are kept after the step that led to a state.
    """

    due: Due

    def draw(self, state: Any) -> Tensor | None:
        """Return the weights, if they are due."""
        return state.weights_MD if self.due(state) else None


@dataclass(frozen=True)
class EndsOfCycles(Last):
    """Puts the weights at the ends of cycles on a shelf.

    Attributes:
        ends: the numbers of steps after which weights are kept, for a run in a state.
    """

    ends: Callable[[Any], Sequence[int]]

    def begin(self, moving: Any) -> Any:
        """Return the state of the motion.

        Raises:
            ValueError: if no cycle fits in the run.
        """
        self.ends(moving)
        return moving

    def draw(self, state: Any) -> Tensor | None:
        """Return the weights at the end of a cycle."""
        return state.weights_MD if state.step in self.ends(state) else None


@dataclass(frozen=True)
class Averaged(Following):
    """The state of a run, with a mean of its weights.

    Attributes:
        trajectory: the state of the motion.
        mean_MD: mean of the snapshots.
        snapshots: n, their number.
    """

    trajectory: Any
    mean_MD: Tensor
    snapshots: int


@dataclass(frozen=True)
class Spread(Following):
    """The state of a run, with moments of its weights.

    Attributes:
        trajectory: the state of the motion.
        moments: of the snapshots so far.
    """

    trajectory: Any
    moments: Moments


class Beside:
    """What keepers share that keep something beside the end of the path."""

    def moving(self, state: Averaged | Spread) -> Any:
        """Return the state of the motion."""
        return state.trajectory

    def draw(self, state: Averaged | Spread) -> None:
        """Return nothing."""


@dataclass(frozen=True)
class Mean(Beside):
    """Keeps the mean of weights.

    Attributes:
        due: whether weights are kept after the step that led to a state.
    """

    due: Due

    def begin(self, moving: Any) -> Averaged:
        """Return the mean of nothing, which is 0."""
        return Averaged(moving, torch.zeros_like(moving.weights_MD), 0)

    def keep(self, state: Averaged, moved: Any, *, donate: bool) -> Averaged:
        """Return the mean with the weights of the motion, if these are due."""
        if not self.due(moved):
            return replace(state, trajectory=moved)
        count = state.snapshots + 1
        return Averaged(moved, state.mean_MD.lerp(moved.weights_MD, 1 / count), count)


@dataclass(frozen=True)
class WithMoments(Beside):
    """Keeps mean, variances and the last deviations of weights.

    Attributes:
        due: whether weights are kept after the step that led to a state.
        rank: deviations that are kept.
        planned: number of snapshots that a run will take, which must be 2 or more; None where it is not known.
    """

    due: Due
    rank: int
    planned: Callable[[Any], int] | None = None

    def begin(self, moving: Any) -> Spread:
        """Return no moments.

        Raises:
            ValueError: if the run is too short for two snapshots, or the deviations cannot be held.
        """
        weights_MD = moving.weights_MD
        needed = self.rank * weights_MD.nbytes
        check_memory(needed, "directions of all members", weights_MD.device, rank=self.rank)
        if self.planned is not None and (planned := self.planned(moving)) < 2:
            raise ValueError(
                f"there must be at least 2 snapshots to have a spread; this run would take {planned}. Train longer, "
                f"lower `burn_in` or raise `per_epoch`."
            )
        return Spread(moving, Moments.empty(weights_MD, self.rank))

    def keep(self, state: Spread, moved: Any, *, donate: bool) -> Spread:
        """Return the moments with the weights of the motion, if these are due."""
        if not self.due(moved):
            return replace(state, trajectory=moved)
        return Spread(moved, state.moments.collect(moved.weights_MD, donate=donate))


class Kept(ABC):
    """A motion with a keeper: what `init`, `step` and `draw` of a method are."""

    def __post_init__(self) -> None:
        check_method(self)

    @property
    def keeper(self) -> Keeper:
        """What of the path stays: its end."""
        return Last()

    @abstractmethod
    def begin(
        self, density: Any, weights_MD: Tensor, buffers: Buffers, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> Any:
        """Return the state of the motion before its first step."""

    @abstractmethod
    def move(self, density: Any, state: Any, batch: Any, *, donate: bool = False) -> tuple[Any, Any]:
        """Return the state of the motion one step on, and what the step reports."""

    def init(
        self, density: Any, weights_MD: Tensor, buffers: Any = None, *, seeds: Sequence[int], steps_per_epoch: int = 1
    ) -> Any:
        """Return the state before the first step.

        Raises:
            ValueError: if the method does not suit the density, or something cannot be held.
        """
        options = {"seeds": seeds, "steps_per_epoch": steps_per_epoch}
        return self.keeper.begin(self.begin(density, weights_MD, buffers or {}, **options))

    def step(self, density: Any, state: Any, batch: Any = None, *, donate: bool = False) -> tuple[Any, Any]:
        """Return the state one step on, and what the step reports; the old state is intact unless donated.

        Raises:
            DivergedError: if numbers are not finite.
        """
        keeper = self.keeper
        moved, info = self.move(density, keeper.moving(state), batch, donate=donate)
        return keeper.keep(state, moved, donate=donate), info

    def draw(self, state: Any) -> Tensor | None:
        """Return weights (M, D) to put on the shelf now, or None."""
        return self.keeper.draw(state)
