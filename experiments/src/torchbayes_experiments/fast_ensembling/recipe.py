"""Settings of `fast_ensembling`."""

from __future__ import annotations

from dataclasses import dataclass

from torchbayes.methods.cycles.fge import FGE
from torchbayes.methods.cycles.snapshots import Snapshots
from torchbayes.methods.optimise.map import MAP
from torchbayes.methods.optimise.optimizers import SGD
from torchbayes.methods.schedules import PiecewiseLinear

INDEPENDENT, FAST, SNAPSHOTS = "independent networks", "FGE", "snapshot ensemble"
KINDS = (INDEPENDENT, FAST, SNAPSHOTS)


@dataclass(frozen=True)
class FastRecipe:
    """Settings of the three kinds of ensemble. A unit of budget is one run of `epochs`.

    Attributes:
        data: an image data set by name.
        network: a network by name.
        train_size: number of training rows, drawn with seed 0; None for all.
        units: M, the largest budget: runs of each kind.
        prior_scale: standard deviation of every weight's normal prior; s² = 1/(λN) for weight decay λ on N rows.
        epochs: of a unit: what one network needs, on its published schedule.
        batch_size: rows per step.
        optimizer: of all kinds; the rate of an independent network falls to 1 % of lr.
        burn_in: share of an FGE run before its cycles.
        cycle: epochs of a cycle of FGE; None for a tenth of what follows burn-in.
        high_lr: highest rate of FGE's cycles.
        low_lr: lowest rate of FGE's cycles.
        cycles: cosine cycles of a run of snapshots.
        test_rows: number of test images, the first ones; None for all.
        largest_error: of an independent network on the test images, in a fair comparison.
        plan: how the runs are computed; fixed, because a plan chosen by measurement may round differently in each run.
    """

    data: str = "fashion_mnist"
    network: str = "lenet"
    train_size: int | None = 10_000
    units: int = 3
    prior_scale: float = 0.2
    epochs: int = 40
    batch_size: int = 128
    optimizer: SGD = SGD(lr=0.05, momentum=0.9)  # noqa: RUF009  (frozen)
    burn_in: float = 0.7
    cycle: int | None = 2
    high_lr: float = 0.05
    low_lr: float = 0.005
    cycles: int = 5
    test_rows: int | None = None
    largest_error: float = 0.11
    plan: str = "native"

    def independent(self) -> MAP:
        """Return the method of networks that are trained one by one."""
        return MAP(self.units, self.epochs, self.batch_size, self.optimizer, PiecewiseLinear(), self.plan)

    def fast(self) -> FGE:
        """Return fast geometric ensembling, of one unit each run."""
        return FGE(
            self.units,
            self.epochs,
            self.batch_size,
            self.optimizer,
            self.cycle,
            self.burn_in,
            self.high_lr,
            self.low_lr,
            plan=self.plan,
        )

    def snapshots(self) -> Snapshots:
        """Return snapshot ensembling, of one unit each run."""
        return Snapshots(self.units, self.epochs, self.batch_size, self.optimizer, self.cycles, plan=self.plan)


SMALL = FastRecipe()

PAPER = FastRecipe(
    data="cifar10",
    network="preresnet20",
    train_size=None,
    prior_scale=(3e-4 * 50_000) ** -0.5,
    epochs=200,
    optimizer=SGD(lr=0.1, momentum=0.9),
    burn_in=0.8,
    cycle=2,
    high_lr=0.05,
    low_lr=0.01,
    largest_error=0.18,
    plan="loop",
)
