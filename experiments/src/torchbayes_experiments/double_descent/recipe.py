"""Settings of `double_descent`, and the names that results and tables share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchbayes.methods.optimise.map import MAP
from torchbayes.methods.optimise.optimizers import SGD
from torchbayes.methods.optimise.swag import SWAG
from torchbayes.methods.schedules import PiecewiseLinear

ONE, ONE_SWAG, ENSEMBLE, MULTISWAG = METHODS = ("SGD", "SWAG", "ensemble", "MultiSWAG")
ALONE = {ENSEMBLE: ONE, MULTISWAG: ONE_SWAG}  # an average of members, and the name of its members taken alone
MEASURES = ("error", "nll")


@dataclass(frozen=True)
class DescentRecipe:
    """Settings of both fits at every width, and of the evaluation.

    `good` and `peak` were chosen on held-out rows of the training set with other seeds, before the seeds of a run.

    Attributes:
        data: an image data set by name.
        network: `lenet`, whose width w means w and 2w filters and 4w hidden units; `mlp`, with w hidden units; or a
            residual network by name.
        widths: in rising order.
        good: a width below the interpolation threshold.
        peak: the width at which the test error of SGD is expected to be largest.
        train_size: N, training rows, drawn anew for each seed; None for all.
        share: of the training labels that are shuffled.
        members: M, number of networks of the ensemble and of Gaussians of MultiSWAG.
        weight_decay: λ, from which each weight's normal prior has the variance 1/(λN).
        epochs: passes over the data, the same for both methods.
        batch_size: rows per step.
        optimizer: of both methods; the ensemble's rate falls to 1 % of lr, MultiSWAG's to `averaging_lr`.
        averaging_lr: learning rate while SWAG collects.
        burn_in: share of the epochs before SWAG collects.
        rank: of SWAG's covariance; one snapshot per epoch is collected.
        draws: number of functions drawn per member of MultiSWAG.
        test_rows: number of test images, the first of the test set; None for all.
        plan: how the members are run; fixed, because a plan chosen by measurement may round differently in each run.
    """

    data: str = "mnist"
    network: str = "lenet"
    widths: tuple[int, ...] = (2, 4, 6, 10, 24)
    good: int = 2
    peak: int = 6
    train_size: int | None = 4000
    share: float = 0.2
    members: int = 5
    weight_decay: float = 3e-4
    epochs: int = 50
    batch_size: int = 100
    optimizer: SGD = SGD(lr=0.05, momentum=0.9)  # noqa: RUF009  (frozen)
    averaging_lr: float = 0.05
    burn_in: float = 0.5
    rank: int = 20
    draws: int = 5
    test_rows: int | None = None
    plan: str = "native"

    def __post_init__(self) -> None:
        inner = self.widths[1:-1]
        if sorted(set(self.widths)) != list(self.widths) or self.good not in self.widths or self.peak not in inner:
            raise ValueError(
                f"`widths` must rise and hold `good` and, not at an end, `peak`; got {self.widths}, {self.good} and "
                f"{self.peak}."
            )

    def settings(self, width: int) -> dict[str, Any]:
        """Return the settings of the network at a width."""
        if self.network == "lenet":
            return {"channels": (width, 2 * width), "hidden": 4 * width}
        return {"hidden": (width,)} if self.network == "mlp" else {"width": width}

    def ensemble(self) -> MAP:
        """Return the method of SGD and of the deep ensemble."""
        return MAP(self.members, self.epochs, self.batch_size, self.optimizer, PiecewiseLinear(), self.plan)

    def multiswag(self) -> SWAG:
        """Return the method of SWAG and of MultiSWAG."""
        return SWAG(
            self.members,
            self.epochs,
            self.batch_size,
            self.optimizer,
            self.averaging_lr,
            self.burn_in,
            per_epoch=1,
            rank=self.rank,
            plan=self.plan,
        )


QUICK = DescentRecipe()

SMALL = DescentRecipe(widths=(1, 2, 3, 4, 5, 6, 8, 10, 16, 24, 32), members=10)

PAPER = DescentRecipe(
    data="cifar10",
    network="preresnet20",
    widths=(2, 4, 6, 8, 10, 12, 16, 24, 32, 48, 64),
    good=4,
    peak=10,
    train_size=None,
    members=10,
    epochs=300,
    batch_size=128,
    optimizer=SGD(lr=0.1, momentum=0.9),
    plan="loop",
)
