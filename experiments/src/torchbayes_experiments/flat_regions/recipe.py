"""Settings of `flat_regions`.

They were chosen with seed 1000, which is none of the seeds that are run; errors are those of 5,000 training images that
were not trained on. SGD at 0.05 does not fit 1,000 clean rows beside as many poisoned ones; at 0.02 and 0.01 it fits
them all, and 0.01 was taken. Stopped at the first epoch below the level, losses on the clean rows differ by a factor of
two, so the last layer is scaled after that. SAM without poison: error 11.5, 11.2 and 10.4 % at ρ = 0.05, 0.1 and 0.2,
against 12.0 % of SGD. By width Adam with a constant rate was taken; a cosine with a tenth of the labels shuffled gave
the same order of effective dimensions and a lower peak of the test loss (2.2 nats against 4.3).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from torchbayes.methods.optimise.map import MAP
from torchbayes.methods.optimise.optimizers import SGD, Adam
from torchbayes.methods.optimise.sam import SAM
from torchbayes.methods.schedules import Constant
from torchbayes.methods.sgmcmc.sgld import SGLD

PLAIN, FLATTER = "SGD", "SAM"
RAW, FILTERS = "sphere", "filters"
SHAPES: tuple[Literal["sphere", "filters"], ...] = (RAW, FILTERS)
GRID = tuple(-2.0 + 0.05 * step for step in range(141))  # log₁₀ of eigenvalues at which their density is taken
END, MATCHED = "end", "matched"  # networks after the whole training, and at equal training loss


@dataclass(frozen=True)
class Solutions:
    """Networks that fit the same rows, with and without poison.

    Attributes:
        clean: N, rows with true labels.
        shares: rows with wrong labels that are trained on as well, in units of N; 0 first.
        hidden: widths of the hidden layers.
        level: mean loss on the clean rows, in nats, below which training ends, once none of them is misclassified, and
            to which the last layer is then scaled.
        method: how they are trained; `epochs` is the most.
        rho: radius of SAM.
        threshold: rise of the mean loss on the clean rows that ends a basin, in nats.
        directions: in which radii are found.
        steps: of Lanczos.
        probes: vectors of Lanczos.
        precision: α of the effective dimension.
        chains: by which the local learning coefficient is found.
        localisation: γ of it.
        points: of each axis of a loss surface.
    """

    clean: int = 1000
    shares: tuple[float, ...] = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0)
    hidden: tuple[int, ...] = (64, 64)
    level: float = 0.01
    method: MAP = MAP(1, 600, 64, SGD(lr=0.01, momentum=0.9), Constant(), "native")  # noqa: RUF009  (frozen)
    rho: float = 0.2
    threshold: float = 0.1
    directions: int = 64
    steps: int = 80
    probes: int = 4
    precision: float = 1.0
    chains: SGLD = SGLD(chains=2, steps=1000, burn_in=500, thin=1, batch_size=128)  # noqa: RUF009  (frozen)
    localisation: float = 1.0
    points: int = 25

    def trained(self) -> list[tuple[str, float]]:
        """Return the networks: how each is trained, and its share of poison."""
        return [*((PLAIN, share) for share in self.shares), (FLATTER, self.shares[0])]

    def trainers(self) -> dict[str, MAP]:
        """Return plain and sharpness-aware training by name."""
        sam = SAM(self.method.optimizer.rule, rho=self.rho)
        return {PLAIN: self.method, FLATTER: replace(self.method, optimizer=sam)}


@dataclass(frozen=True)
class Widths:
    """Networks of many widths on rows with noisy labels.

    Attributes:
        rows: N, training rows.
        noise: share of the labels that are shuffled.
        pool: side of the squares over which pixels are averaged.
        units: widths of the one hidden layer.
        method: how they are trained.
        level: mean training loss at which the networks are compared once more, in nats.
        precisions: α of the effective dimension; the first is that of the verdict.
        steps: of Lanczos.
        probes: vectors of Lanczos.
    """

    rows: int = 500
    noise: float = 0.2
    pool: int = 4
    units: tuple[int, ...] = (2, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128, 181, 256)
    method: MAP = MAP(1, 1500, 100, Adam(3e-3), Constant(), "native")  # noqa: RUF009  (frozen)
    level: float = 0.01
    precisions: tuple[float, ...] = (1.0, 0.1, 10.0)
    steps: int = 60
    probes: int = 4


@dataclass(frozen=True)
class FlatRecipe:
    """Both parts of the experiment.

    Attributes:
        data: a set of images by name.
        test_rows: test images, the first; None for all.
        solutions: good and bad networks.
        widths: narrow and wide networks.
    """

    data: str = "mnist"
    test_rows: int | None = None
    solutions: Solutions = Solutions()
    widths: Widths = Widths()


SMALL = FlatRecipe()

PAPER = FlatRecipe(
    solutions=Solutions(
        clean=10_000,
        hidden=(512, 512),
        shares=(0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0),
        directions=1000,
        chains=SGLD(chains=4, steps=10_000, burn_in=5000, thin=1, batch_size=512),
        points=51,
    ),
    widths=Widths(rows=4000, pool=2, units=tuple(round(2 ** (step / 2)) for step in range(4, 23)), probes=10),
)
