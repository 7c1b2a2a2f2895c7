"""Schedules of learning rates, functions of the completed share of the run, and of step sizes, of the step alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from torchbayes.settings import NOT_NEGATIVE, check_settings

# default least length of a run: enough steps to train on a small table, where an epoch has few
USUAL_EPOCHS, USUAL_STEPS = 50, 2000
RAMP = 100  # steps in which a factor rises to 1


@dataclass(frozen=True)
class Constant:
    """lr(t) = lr."""

    def factor(self, done: float) -> float:
        """Return the factor on the learning rate when a share `done` in [0, 1) of the run is complete."""
        return 1.0


@dataclass(frozen=True)
class Cosine:
    """lr(t) = lr · [final + (1 − final)(1 + cos πt)/2] (Loshchilov and Hutter 2017, without restarts).

    Attributes:
        final: the last factor.
        warmup: share of the run in which the rate first rises linearly from 0.
    """

    final: float = 0.0
    warmup: float = 0.0

    def __post_init__(self) -> None:
        check_settings(self)

    def factor(self, done: float) -> float:
        """Return the factor on the learning rate when a share `done` in [0, 1) of the run is complete."""
        if done < self.warmup:
            return done / self.warmup
        done_of_rest = (done - self.warmup) / (1 - self.warmup)
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * done_of_rest)) / 2


@dataclass(frozen=True)
class PiecewiseLinear:
    """The schedule of the SWAG paper (Maddox et al. 2019): constant, a linear fall, constant.

    lr(t) = lr for t ≤ ½ end, falls linearly to final · lr at 0.9 end, and stays there. With SWA and SWAG `end` is the
    share of the run before averaging starts and `final` the ratio of the averaging rate to lr.

    Attributes:
        final: last factor.
        end: share of the run that the schedule spans.
    """

    final: float = 0.01
    end: float = 1.0

    def __post_init__(self) -> None:
        check_settings(self)
        if self.end > 1:
            raise ValueError(f"`end` must be a share of the run, from 0 to 1; got {self.end}.")

    def factor(self, done: float) -> float:
        """Return the factor on the learning rate when a share `done` in [0, 1) of the run is complete."""
        share = done / self.end if self.end > 0 else 1.0
        if share <= 0.5:
            return 1.0
        return 1.0 - (1.0 - self.final) * min((share - 0.5) / 0.4, 1.0)


def ramp(step: int) -> float:
    """Return a factor that rises from 0 to 1 in 100 steps, for what begins where the density may be sharp."""
    return min(step / RAMP, 1.0)


Schedule = Constant | Cosine | PiecewiseLinear


@dataclass(frozen=True)
class Decay:
    """ε_t = ε (1 + t/offset)^−power, that is a (b + t)^−γ with b = offset and a = ε b^γ (Welling and Teh 2011).

    Attributes:
        offset: b, in steps.
        power: γ; convergence is proved for γ in (½, 1].
    """

    offset: float = 1000.0
    power: float = field(default=0.55, metadata=NOT_NEGATIVE)

    def __post_init__(self) -> None:
        check_settings(self)

    def at(self, step: int) -> float:
        """Return the factor on the step size at a step, counted from 0."""
        return (1 + step / self.offset) ** -self.power

    def noisy(self, step: int) -> bool:
        """Return whether noise is added at a step: always."""
        return True


@dataclass(frozen=True)
class Cycles:
    """Cosine cycles (Zhang et al. 2020): ε_t = (ε/2) [cos(π (t mod length)/length) + 1].

    The first part of a cycle explores: large steps without noise. The rest samples, with noise, and retains draws at
    the cycle's end.

    Attributes:
        length: steps of a cycle.
        exploration: share of a cycle without noise.
        draws: draws retained at the end of each cycle, the method's `thin` steps apart.
    """

    length: int = 1000
    exploration: float = 0.8
    draws: int = 1

    def __post_init__(self) -> None:
        check_settings(self)

    def at(self, step: int) -> float:
        """Return the factor on the step size at a step, counted from 0."""
        return (1 + math.cos(math.pi * (step % self.length) / self.length)) / 2

    def noisy(self, step: int) -> bool:
        """Return whether noise is added at a step."""
        return step % self.length >= self.exploration * self.length


@dataclass(frozen=True)
class Steady:
    """ε_t = ε."""

    def at(self, step: int) -> float:
        """Return the factor on the step size at a step: 1."""
        return 1.0

    def noisy(self, step: int) -> bool:
        """Return whether noise is added at a step: always."""
        return True


StepSchedule = Steady | Decay | Cycles


class Progress(NamedTuple):
    """Where a run is: what the learning rate of its next step depends on."""

    step: int
    total_steps: int
    steps_per_epoch: int

    @property
    def done(self) -> float:
        """Completed share of the run, in [0, 1]."""
        return self.step / self.total_steps


def epochs_of(epochs: int | None, steps_per_epoch: int, *, steps: int = USUAL_STEPS) -> int:
    """Return the length of a run in epochs: as set, or 50, or more where these have fewer than `steps`."""
    return max(USUAL_EPOCHS, -(-steps // steps_per_epoch)) if epochs is None else epochs
