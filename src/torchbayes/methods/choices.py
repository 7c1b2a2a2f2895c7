"""What a method leaves open, as data. Held-out rows choose it, as `torchbayes.selection` says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WEIGHTS = tuple(round(10 ** (-power / 2), 4) for power in range(7))  # of the KL divergence: 1 to 0.001
SCALES = tuple(2.0**-power for power in range(7))  # of the prior: 1 to 1/64
FACTORS = tuple(10.0 ** (power / 2) for power in range(-2, 11))  # on its precision: 0.1 to 100,000


@dataclass(frozen=True)
class Epochs:
    """How long to train."""

    descent: Any  # settings of the timed training, with `optimizer`, `plan` and `epochs`, the most there can be
    settings: tuple[str, ...] = ("epochs",)  # names of the settings that the number of epochs becomes
    least: int | Callable[[int], int] = 1  # least number of epochs, or that number from the steps of an epoch
    then: Sequence[Mapping[str, Any]] = ()  # other settings, of which one choice is made once the epochs are known
    known: Mapping[str, Any] = field(default_factory=dict)  # settings that are fixed once rows have chosen
    # whether the descent finds the networks that a method begins at, so that the choice is also theirs
    mode: bool = False
    # whether held-out rows say how large a learned noise ends, so that they judge all else as if it were right
    noise: bool = False

    def fewest(self, steps_per_epoch: int) -> int:
        """Return the least number of epochs."""
        return self.least(steps_per_epoch) if callable(self.least) else self.least

    @property
    def open(self) -> bool:
        """Whether the number is not set; a number that is set is lowered only on request."""
        return self.descent.epochs is None


@dataclass(frozen=True)
class Lowered:
    """A setting that is lowered while held-out rows become more likely."""

    setting: str
    values: Sequence[float]  # from the largest down
    trial: Mapping[str, Any] = field(default_factory=dict)  # other settings of the trial runs
    folds: int = 3  # most trial runs of each value
    open = True


@dataclass(frozen=True)
class PriorScale:
    """The scale of the model's prior, where that is open; lowered while held-out rows become more likely."""

    members: int = 1  # of a trial run; one chain of a wide posterior predicts much worse than several
    length: float | None = None  # of a trial run in epochs, as a share of the run's; None for a run that has steps
    open = True


@dataclass(frozen=True)
class Strength:
    """A factor on the prior's precision, chosen by predictions that are linearised around a mode."""

    setting: str  # that the factor becomes
    trial: Mapping[str, Any]  # other settings of the trial runs
    beside: Sequence[Mapping[str, Any]] = ()  # settings that are tried as well as those chosen before
    open: bool = True  # whether it is chosen without being asked for


@dataclass(frozen=True)
class Comparison:
    """Each member against the network where it began, by rows that are held out of start and run."""

    first: Mapping[str, Any] = field(default_factory=dict)  # other settings of a run that does not see all rows
    then: Mapping[str, Any] = field(default_factory=dict)  # settings of the run that goes on from it, on all rows
    open = True


Choice = Epochs | Lowered | PriorScale | Strength | Comparison


def is_open(method: Any) -> bool:
    """Return whether a setting of a method is open, so that held-out rows choose it."""
    return any(choice.open for choice in method.choices if not isinstance(choice, PriorScale))
