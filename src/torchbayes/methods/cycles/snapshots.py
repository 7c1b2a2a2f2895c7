"""Snapshots: an ensemble of the ends of cosine cycles in one training run (Huang et al. 2017).

A run of T steps is divided into C cycles. In each the learning rate falls from α₀ to almost zero, and then starts
again (Loshchilov and Hutter 2017). In step t = 1, 2, … of a run whose cycles have T/C steps it is

    α(t) = (α₀/2) [cos(π ((t − 1) mod T/C)/(T/C)) + 1]

A network is kept at the end of each cycle, where it has converged; the next start of the rate throws the run out of
its basin. Where C does not divide T, cycle k ends after ⌊k T/C⌋ steps and the formula holds with its own length. The
posterior gives every network the same weight.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field

from torchbayes.density.plans import BackendName
from torchbayes.methods.cycles.base import Bounds, Cyclic
from torchbayes.methods.optimise.descent import Descent, Trajectory
from torchbayes.methods.optimise.optimizers import Adam
from torchbayes.methods.optimise.sam import AnyOptimizer
from torchbayes.methods.optimise.settings import Runs
from torchbayes.methods.schedules import Progress


@dataclass(frozen=True)
class Snapshots(Runs, Cyclic, Descent):
    """Snapshot ensembling: one training run in cosine cycles, with a network kept at the end of each.

    Attributes:
        members: M, independent runs, each of which gives S networks.
        epochs: passes over the data, of all cycles together; None lets held-out rows choose them, see `fit`.
        optimizer: update rule, and learning rate at the start of a cycle.
        cycles: C, cycles of the run; fewer where it has fewer steps.
        draws: S, networks kept, those of the last cycles; None keeps one of each.
        plan: how the stack of members is run: auto, native, loop, vmap or compiled.
        adversarial: ε of adversarial training, as in `MAP`; None for plain training.
    """

    optimizer: AnyOptimizer = field(default_factory=lambda: Adam(3e-3))
    cycles: int = 5
    draws: int | None = None
    plan: BackendName | str = "auto"
    adversarial: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.draws is not None and self.draws > self.cycles:
            raise ValueError(
                f"`draws` must be at most the {self.cycles} `cycles`, each of which gives a network; got {self.draws}. "
                f"Raise `cycles`, or lower `draws`."
            )

    @property
    def bounds(self) -> Bounds:
        return Bounds(1, self.cycles)

    def ends(self, total_steps: int, steps_per_epoch: int) -> list[int]:
        count = min(self.cycles, total_steps)
        return [number * total_steps // count for number in range(1, count + 1)]

    def rate(self, now: Progress | Trajectory) -> float:
        step, total_steps, steps_per_epoch = now.step, now.total_steps, now.steps_per_epoch
        ends = [0, *self.ends(total_steps, steps_per_epoch)]
        number = bisect_right(ends, step)
        first, length = ends[number - 1], ends[number] - ends[number - 1]
        return self.optimizer.lr / 2 * (math.cos(math.pi * (step - first) / length) + 1)
