"""What a run keeps of its path: the end, a mean, moments, the ends of cycles, or thinned draws.

A method is settings, a motion and a keeper, and the posterior that they give. A keeper works with any motion: it reads
`weights_MD`, `step` and, where there is one, the length of the run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from torchbayes.checks import check_choice, check_memory, check_object, check_positive, seen
from torchbayes.density.plans import BACKEND_NAMES
from torchbayes.methods.moments import Moments
from torchbayes.model.network import Buffers
from torchbayes.settings import check_settings, kinds_of

Due = Callable[[Any], bool]
"""Whether weights are kept after the step that led to a state."""


class Following:
    """A state that follows the state of a motion."""

    trajectory: Any  # state of the motion, such as a `Trajectory`

    @property
    def step(self) -> int:
        """Steps taken."""
        return self.trajectory.step

    @property
    def total_steps(self) -> int:
        """Length of the run."""
        return self.trajectory.total_steps


class Keeper(Protocol):
    """Decides what a run keeps of the path of a motion."""

    def begin(self, moving: Any) -> Any:
        """Return the state of a run before the first step of the motion, with nothing kept."""
        ...

    def moving(self, state: Any) -> Any:
        """Return the state of the motion."""
        ...

    def keep(self, state: Any, moved: Any, *, donate: bool) -> Any:
        """Return the state of a run after the motion went from `state` to `moved`.

        `donate` overwrites what `state` keeps.
        """
        ...

    def draw(self, state: Any) -> Tensor | None:
        """Return weights (M, D) to put on the shelf now, or None."""
        ...


class Last:
    """Keeps the end of the path: the state is that of the motion."""

    def begin(self, moving: Any) -> Any:
        """Return the state of the motion, which is also that of the run."""
        return moving

    def moving(self, state: Any) -> Any:
        """Return the state itself."""
        return state

    def keep(self, state: Any, moved: Any, *, donate: bool) -> Any:
        """Return the state of the motion."""
        return moved

    def draw(self, state: Any) -> Tensor | None:
        """Return None: nothing goes on the shelf."""
        return None


@dataclass(frozen=True)
class Thinned(Last):
    """Puts the weights after some steps on a shelf."""

    due: Due

    def draw(self, state: Any) -> Tensor | None:
        return state.weights_MD if self.due(state) else None


@dataclass(frozen=True)
class EndsOfCycles(Last):
    """Puts the weights at the ends of cycles on a shelf."""

    ends: Callable[[Any], Sequence[int]]  # numbers of steps after which weights are kept, for a run in a state

    def begin(self, moving: Any) -> Any:
        self.ends(moving)  # raises ValueError if no cycle fits in the run
        return moving

    def draw(self, state: Any) -> Tensor | None:
        return state.weights_MD if state.step in self.ends(state) else None


@dataclass(frozen=True)
class Averaged(Following):
    """The state of a run, with a mean of its weights."""

    trajectory: Any
    mean_MD: Tensor  # mean of the snapshots
    snapshots: int  # their number


@dataclass(frozen=True)
class Spread(Following):
    """The state of a run, with moments of its snapshots."""

    trajectory: Any
    moments: Moments


class Beside:
    """Common base of keepers that keep something besides the end of the path."""

    def moving(self, state: Averaged | Spread) -> Any:
        """Return the state of the motion."""
        return state.trajectory

    def draw(self, state: Averaged | Spread) -> None:
        """Return None: nothing goes on the shelf."""


@dataclass(frozen=True)
class Mean(Beside):
    """Keeps the mean of the weights that are due."""

    due: Due

    def begin(self, moving: Any) -> Averaged:
        """Return the mean of no snapshots, 0."""
        return Averaged(moving, torch.zeros_like(moving.weights_MD), 0)

    def keep(self, state: Averaged, moved: Any, *, donate: bool) -> Averaged:
        """Return the mean with the weights of the motion, if these are due."""
        if not self.due(moved):
            return replace(state, trajectory=moved)
        count = state.snapshots + 1
        return Averaged(moved, state.mean_MD.lerp(moved.weights_MD, 1 / count), count)


@dataclass(frozen=True)
class WithMoments(Beside):
    """Keeps mean, variances and the last deviations of the weights that are due."""

    due: Due
    rank: int  # number of deviations
    planned: Callable[[Any], int] | None = None  # number of snapshots that a run will take; None where it is not known

    def begin(self, moving: Any) -> Spread:
        """Return moments of no snapshots.

        Raises ValueError if the run is too short for two snapshots, or memory too small for the deviations.
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
    """A motion with a keeper: gives a method its `init`, `step` and `draw`."""

    def __post_init__(self) -> None:
        check_method(self)

    @property
    def keeper(self) -> Keeper:
        """What a run keeps of its path; by default the end."""
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
            ValueError: if the method does not suit the density, or memory is too small.
        """
        return self.keeper.begin(
            self.begin(density, weights_MD, buffers or {}, seeds=seeds, steps_per_epoch=steps_per_epoch)
        )

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


def check_method(method: Any) -> None:
    """Check the settings of a method by their annotations and names, and turn its numbers into Python's.

    Raises:
        ValueError: if a number, a word or the plan is invalid.
        TypeError: if the optimiser, the schedule or the weighting is of another kind.
    """
    check_settings(method)
    settings, kinds = vars(method), kinds_of(type(method))
    if "plan" in settings:
        check_choice(("auto", *BACKEND_NAMES), plan=method.plan)
    if "optimizer" in settings:
        _check_optimizer(method, any(hasattr(kind, "rho") for kind in kinds.get("optimizer", ())))
    if any(hasattr(kind, "factor") for kind in kinds.get("schedule", ())):
        check_object(("factor",), "Cosine()", schedule=method.schedule)
    weight = settings.get("kl_weight")
    if isinstance(weight, int | float):
        check_positive(kl_weight=weight)
    elif weight is not None:
        check_object(("at",), "1.0 or WarmUp()", kl_weight=weight)


def _check_optimizer(method: Any, sharp: bool) -> None:
    """Check the optimiser; only where it may be `SAM`, by its annotation, may it take gradients beside the weights."""
    if not sharp and hasattr(method.optimizer, "rho"):
        raise TypeError(
            f"`optimizer` of {type(method).__name__} must take gradients where the method asks for them, as Adam() "
            f"does; got {seen(method.optimizer)}. Give its `base`, or take MAP, SWA, SWAG, FGE, Snapshots or MCDropout."
        )
    wanted = ("lr", "slots", "rule", "objective") if sharp else ("lr", "slots", "update")
    check_object(wanted, "Adam()", optimizer=method.optimizer)
