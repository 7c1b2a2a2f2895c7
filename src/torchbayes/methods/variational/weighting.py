"""The weight β of the KL divergence in the objective of a step.

constant: β = 1 is Bayes; below 1 the posterior is colder.

halving: β_i = 2^{B−i} B / (2^B − 1) for the i-th of the B minibatches of an epoch. Their mean is 1. The prior
dominates the first ones, and the data the last ones (Blundell et al. 2015, section 3.4).

warm-up: β grows from 0 to 1 over a share of the run, so that weights are not given up before the data have had an
effect (Sønderby et al. 2016).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torchbayes.methods.optimise.descent import Trajectory
from torchbayes.settings import check_settings


class Weighting(Protocol):
    """How much the KL divergence counts, step by step."""

    def at(self, step: int, *, steps_per_epoch: int, total_steps: int) -> float:
        """Return β of a step."""
        ...


@dataclass(frozen=True)
class Halving:
    """β_i = 2^{B−i} B / (2^B − 1), i = 1..B in an epoch of B minibatches."""

    def at(self, step: int, *, steps_per_epoch: int, total_steps: int) -> float:
        """Return β of a step."""
        number = step % steps_per_epoch + 1
        return steps_per_epoch * 0.5**number / (1 - 0.5**steps_per_epoch)


@dataclass(frozen=True)
class WarmUp:
    """β = min(1, t/(share · T)) after t of T steps.

    Attributes:
        share: share of the run after which β is 1.
    """

    share: float = 0.3

    def __post_init__(self) -> None:
        check_settings(self)
        if self.share > 1:
            raise ValueError(f"`share` must be at most 1, the whole run; got {self.share}.")

    def at(self, step: int, *, steps_per_epoch: int, total_steps: int) -> float:
        """Return β of a step."""
        return min(1.0, (step + 1) / (self.share * total_steps))


def weight_at(weight: float | Weighting | None, now: Trajectory) -> float:
    """Return β of a step; 1 where it is open."""
    if weight is None or isinstance(weight, int | float):
        return float(weight or 1.0)
    return weight.at(now.step, steps_per_epoch=now.steps_per_epoch, total_steps=now.total_steps)
