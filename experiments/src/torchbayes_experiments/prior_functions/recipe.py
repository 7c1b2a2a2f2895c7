"""Settings of `prior_functions`, and the names that results and tables share.

Learning rate, epochs and the ends of the broad range were chosen with seed 1000, which is none of the seeds that are
run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchbayes.methods.optimise.optimizers import SGD
from torchbayes.methods.optimise.swag import SWAG

PIXELS = "linear"  # the model whose correlations are those of the pixels


@dataclass(frozen=True)
class Drawn:
    """Functions drawn from priors, and the images at which they are compared.

    Attributes:
        network: `lenet`, or another network by name.
        classes: the classes of the images.
        per_class: images of each, the first of the training rows that a seed draws.
        scales: standard deviations of the normal prior of every weight, in rising order.
        draws: S, functions of each prior.
        shown: images of each class in the picture.
    """

    network: str = "lenet"
    classes: tuple[int, ...] = (0, 1, 2, 4, 7)
    per_class: int = 200
    scales: tuple[float, ...] = (0.02, 0.1, 1.0)
    draws: int = 100
    shown: int = 20


@dataclass(frozen=True)
class Fitted:
    """Posteriors under priors of several scales.

    Attributes:
        network: `lenet`, or another network by name.
        settings: of the network.
        train_size: N, training rows, drawn anew for each seed; None for all.
        scales: standard deviations of the normal prior of every weight, in rising order.
        broad: ends of the range of scales over which the NLL is expected to be about the same.
        epochs: of SWAG.
        batch_size: rows per step.
        optimizer: of SWAG.
        draws: functions drawn from each posterior.
        test_rows: number of test images, the first of the test set; None for all.
    """

    network: str = "lenet"
    settings: tuple[tuple[str, Any], ...] = (("channels", (8, 16)), ("hidden", 64))
    train_size: int | None = 4000
    scales: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
    broad: tuple[float, float] = (0.1, 1.0)
    epochs: int = 30
    batch_size: int = 100
    optimizer: SGD = SGD(lr=0.02, momentum=0.9)  # noqa: RUF009  (frozen)
    draws: int = 20
    test_rows: int | None = 5000

    def swag(self) -> SWAG:
        """Return the method."""
        return SWAG(1, self.epochs, self.batch_size, self.optimizer, self.optimizer.lr, plan="native")


@dataclass(frozen=True)
class PriorRecipe:
    """Settings of both parts.

    Attributes:
        data: an image data set by name.
        drawn: functions of priors.
        fitted: posteriors by scale.
    """

    data: str = "mnist"
    drawn: Drawn = Drawn()
    fitted: Fitted = Fitted()


SMALL = PriorRecipe()
PAPER = PriorRecipe(fitted=Fitted(settings=(), train_size=None, epochs=50, test_rows=None))
