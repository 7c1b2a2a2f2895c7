"""FGE: fast geometric ensembling (Garipov et al. 2018), an ensemble along one training run.

After burn-in, which trains as SWA and SWAG do, the learning rate goes from α₁ down to α₂ and back in cycles of c
steps. In the i-th step of the cycles, i = 1, 2, …,

    t(i) = ((i − 1) mod c + 1)/c
    α(i) = (1 − 2t) α₁ + 2t α₂          for t ≤ ½
           (2 − 2t) α₂ + (2t − 1) α₁    for t > ½

A network is kept after the ⌈c/2⌉-th step of each, when the rate is lowest: it then lies in a valley of low loss, and
the high rate between two of them carries the run along that valley to another function. The posterior gives every
network the same weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torchbayes.density.plans import BackendName
from torchbayes.methods.cycles.base import Bounds, Cyclic
from torchbayes.methods.optimise.descent import Descent, Trajectory
from torchbayes.methods.optimise.optimizers import Adam
from torchbayes.methods.optimise.sam import AnyOptimizer
from torchbayes.methods.optimise.settings import Runs
from torchbayes.methods.schedules import USUAL_EPOCHS, PiecewiseLinear, Progress

_CYCLES = 10  # default number of cycles
_HIGH, _LOW = 0.5, 0.05  # default rates, as shares of the optimiser's


@dataclass(frozen=True)
class FGE(Runs, Cyclic, Descent):
    """Fast geometric ensembling: networks kept along one training run, in valleys of the loss.

    Attributes:
        members: M, independent runs, each of which gives S networks.
        epochs: passes over the data, burn-in included; None lets held-out rows choose them, see `fit`.
        optimizer: update rule and learning rate before the cycles.
        cycle: epochs of a cycle; None divides what follows burn-in into ten.
        burn_in: share of the epochs before the cycles; 0 to start from a trained network. What is left over after the
            last whole cycle is added to it.
        high_lr: α₁; None for half of the optimiser's rate.
        low_lr: α₂; None for a tenth of α₁.
        draws: S, networks kept, those of the last cycles; fewer where the run has fewer; None keeps one of each.
        plan: how the stack of members is run: auto, native, loop, vmap or compiled.
        adversarial: ε of adversarial training, as in `MAP`; None for plain training.
    """

    optimizer: AnyOptimizer = field(default_factory=lambda: Adam(3e-3))
    cycle: int | None = None
    burn_in: float = 0.5
    high_lr: float | None = None
    low_lr: float | None = None
    draws: int | None = None
    plan: BackendName | str = "auto"
    adversarial: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low > self.high:
            raise ValueError(
                f"`low_lr` must be at most the highest rate of a cycle, {self.high:g}; got {self.low:g}. Lower it, or "
                f"raise `high_lr`."
            )

    @property
    def high(self) -> float:
        """α₁."""
        return _HIGH * self.optimizer.lr if self.high_lr is None else self.high_lr

    @property
    def low(self) -> float:
        """α₂."""
        return _LOW / _HIGH * self.high if self.low_lr is None else self.low_lr

    @property
    def bounds(self) -> Bounds:
        if self.cycle is None:
            return Bounds(1, _CYCLES)
        after = (1 - self.burn_in) * (self.epochs or USUAL_EPOCHS)
        least = math.ceil(
            self.cycle / (1 - self.burn_in) - 1e-9
        )  # tolerance, because 2/(1 − 0.8) is a little more than 10 in floating point
        return Bounds(least, max(1, math.ceil(after / self.cycle)))

    def cycles(self, total_steps: int, steps_per_epoch: int) -> tuple[int, int, int]:
        """Return the steps before the cycles, the steps of a cycle, and the number of cycles.

        Args:
            total_steps: length of the run.
            steps_per_epoch: length of an epoch.

        Returns:
            The three numbers; the steps are those of the whole run.

        Raises:
            ValueError: if no cycle fits in the run, or one has a single step, and so no lowest rate.
        """
        if total_steps < 2:
            raise ValueError(
                "a run of 1 step has no room for a cycle, which takes at least 2. Raise `epochs`, or lower "
                "`batch_size`."
            )
        after = total_steps - min(round(self.burn_in * total_steps), total_steps - 2)
        steps = max(2, after // _CYCLES) if self.cycle is None else self.cycle * steps_per_epoch
        if steps < 2:
            raise ValueError(
                "a cycle must have at least 2 steps, to have a lowest rate between two high ones; got `cycle` "
                f"{self.cycle}, which is {steps} step. Set `cycle` to 2 or more epochs, or lower `batch_size`."
            )
        if steps > after:
            raise ValueError(
                f"`cycle` {self.cycle}, of {steps} steps, does not fit in what burn-in leaves of {total_steps} steps: "
                f"{after}. Raise `epochs` to {self.bounds.epochs} or more, shorten `cycle`, or lower `burn_in`, which "
                f"is {self.burn_in:g}."
            )
        count = after // steps
        if self.cycle is None:
            count = min(count, _CYCLES)
        return total_steps - count * steps, steps, count

    def ends(self, total_steps: int, steps_per_epoch: int) -> range:
        before, steps, count = self.cycles(total_steps, steps_per_epoch)
        return range(before + (steps + 1) // 2, before + (count - 1) * steps + (steps + 1) // 2 + 1, steps)

    def rate(self, now: Progress | Trajectory) -> float:
        step, total_steps, steps_per_epoch = now.step, now.total_steps, now.steps_per_epoch
        before, steps, _ = self.cycles(total_steps, steps_per_epoch)
        if step < before:
            share = self.high / self.optimizer.lr
            return self.optimizer.lr * PiecewiseLinear(share).factor(step / before)
        return triangle((step - before) % steps + 1, steps, self.high, low=self.low)


def triangle(step: int, steps: int, high: float, *, low: float) -> float:
    """Return α in step i (`step`, 1 to c) of a cycle of c steps."""
    share = step / steps
    if share <= 0.5:
        return (1 - 2 * share) * high + 2 * share * low
    return (2 - 2 * share) * low + (2 * share - 1) * high
