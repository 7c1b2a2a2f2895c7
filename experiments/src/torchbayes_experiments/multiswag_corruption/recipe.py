"""Settings of `multiswag_corruption`."""

from __future__ import annotations

from dataclasses import dataclass

from torchbayes.data import CORRUPTIONS
from torchbayes.methods.optimise.map import MAP
from torchbayes.methods.optimise.optimizers import SGD
from torchbayes.methods.optimise.swag import SWAG
from torchbayes.methods.schedules import PiecewiseLinear

METHODS = ("single", "SWAG", "ensemble", "MultiSWA", "MultiSWAG")


@dataclass(frozen=True)
class CorruptionRecipe:
    """Settings of both fits and of the evaluation.

    Attributes:
        data: an image data set by name.
        network: a network by name.
        train_size: number of training rows, drawn with seed 0; None for all.
        members: M, number of basins of the ensemble and of MultiSWAG.
        prior_scale: standard deviation of every weight's normal prior; s² = 1/(λN) for weight decay λ on N rows.
        epochs: passes over the data, the same for both methods.
        batch_size: rows per step.
        optimizer: of both methods; the ensemble's rate falls to 1 % of lr, MultiSWAG's to `averaging_lr`.
        averaging_lr: learning rate while SWAG collects.
        burn_in: share of the epochs before SWAG collects.
        per_epoch: snapshots per epoch.
        rank: of SWAG's covariance.
        draws: number of functions drawn per member of MultiSWAG.
        test_rows: number of test images of the clean evaluation; None for all.
        corrupted_rows: number of test images that are corrupted, the first of the test set.
        corruptions: names of the corruptions.
        plan: how the members are run; fixed, because a plan chosen by measurement may round differently in each run.
    """

    data: str = "fashion_mnist"
    network: str = "lenet"
    train_size: int | None = None
    members: int = 5
    prior_scale: float = 0.2
    epochs: int = 8
    batch_size: int = 128
    optimizer: SGD = SGD(lr=0.05, momentum=0.9)  # noqa: RUF009  (frozen)
    averaging_lr: float = 0.02
    burn_in: float = 0.5
    per_epoch: int = 5
    rank: int = 20
    draws: int = 6
    test_rows: int | None = None
    corrupted_rows: int = 1000
    corruptions: tuple[str, ...] = tuple(CORRUPTIONS)
    plan: str = "loop"

    def ensemble(self) -> MAP:
        """Return the deep ensemble's method."""
        return MAP(self.members, self.epochs, self.batch_size, self.optimizer, PiecewiseLinear(), self.plan)

    def multiswag(self) -> SWAG:
        """Return MultiSWAG's method."""
        return SWAG(
            self.members,
            self.epochs,
            self.batch_size,
            self.optimizer,
            self.averaging_lr,
            self.burn_in,
            self.per_epoch,
            self.rank,
            plan=self.plan,
        )


SMALL = CorruptionRecipe()

PAPER = CorruptionRecipe(
    data="cifar10",
    network="preresnet20",
    members=10,
    prior_scale=(3e-4 * 50_000) ** -0.5,
    epochs=300,
    optimizer=SGD(lr=0.1, momentum=0.9),
    averaging_lr=0.01,
    burn_in=161 / 300,
    per_epoch=1,
    draws=20,
    corrupted_rows=10_000,
)
