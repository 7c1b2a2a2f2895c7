"""What a method leaves open, as data. Rows that are held out choose it; how is in `torchbayes.selection`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WEIGHTS = tuple(round(10 ** (-power / 2), 4) for power in range(7))  # of the KL divergence: 1 to 0.001
SCALES = tuple(2.0**-power for power in range(7))  # of the prior: 1 to 1/64
FACTORS = tuple(10.0 ** (power / 2) for power in range(-2, 11))  # on its precision: 0.1 to 100,000


@dataclass(frozen=True)
class Epochs:
    """How long to train.

    Attributes:
        descent: what is timed: settings with `epochs`, which are the most there can be, `optimizer` and `plan`.
        settings: names of the settings that the number of epochs becomes.
        least: epochs at least.
        then: other settings, of which one choice is made once the epochs are known.
        known: what else is known of the settings once rows have chosen.
        mode: whether the descent is that of the networks that a method begins at, so that the choice is also theirs.
    """

    descent: Any
    settings: tuple[str, ...] = ("epochs",)
    least: int = 1
    then: Sequence[Mapping[str, Any]] = ()
    known: Mapping[str, Any] = field(default_factory=dict)
    mode: bool = False

    @property
    def open(self) -> bool:
        """Whether nothing is set; else rows may lower what is, if they are asked to."""
        return self.descent.epochs is None


@dataclass(frozen=True)
class Lowered:
    """A setting that is lowered while held-out rows become more likely.

    Attributes:
        setting: its name.
        values: what it may be, from the largest down.
        trial: other settings of the trial runs.
        folds: trial runs of each value, at most.
    """

    setting: str
    values: Sequence[float]
    trial: Mapping[str, Any] = field(default_factory=dict)
    folds: int = 3
    open = True


@dataclass(frozen=True)
class PriorScale:
    """The scale of the model's prior, where that is open; lowered while held-out rows become more likely.

    Attributes:
        members: of a trial run. One chain of a wide posterior predicts much worse than several.
        length: of a trial run in epochs, as a share of the run's; None for a run that has steps.
    """

    members: int = 1
    length: float | None = None
    open = True


@dataclass(frozen=True)
class Strength:
    """A factor on the prior's precision, by predictions that are linearised around a mode.

    Attributes:
        setting: the setting that the factor becomes.
        trial: other settings of the trial runs.
        beside: settings that are tried as well as those chosen before.
        open: whether it is chosen without being asked for.
    """

    setting: str
    trial: Mapping[str, Any]
    beside: Sequence[Mapping[str, Any]] = ()
    open: bool = True


Choice = Epochs | Lowered | PriorScale | Strength


def is_open(method: Any) -> bool:
    """Return whether a setting of a method is open, so that held-out rows choose it."""
    return any(choice.open for choice in method.choices if not isinstance(choice, PriorScale))
