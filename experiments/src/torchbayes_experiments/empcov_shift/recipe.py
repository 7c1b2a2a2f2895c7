"""Settings of `empcov_shift`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torchbayes.methods.mcmc.hmc import HMC
from torchbayes.methods.optimise.map import MAP
from torchbayes.methods.optimise.optimizers import Adam

# names that results and tables share
MODE, NORMAL, EMPCOV = "MAP", "HMC, normal prior", "HMC, EmpCov prior"
METHODS = (MODE, NORMAL, EMPCOV)
NOISE, DEAD = "noise in all pixels", "dead pixels come alive"


@dataclass(frozen=True)
class ShiftProblem:
    """Images, a perceptron, its priors, and how the test images are shifted.

    Attributes:
        data: an image data set by name.
        train_size: N, rows drawn by the seed; None for all.
        dead: pixels that are added to all images, 0 in training; noise comes to them alone. 0: noise in all pixels.
        hidden: widths of the hidden layers.
        prior_scale: σ of the normal prior of every weight; EmpCov has the same mean variance over the first layer.
        jitter: ε, the variance under EmpCov along directions without data.
        noise: standard deviations of the noise in test images, in those of a pixel in training; the first is 0.
        chains: of HMC.
        steps: iterations of HMC.
        burn_in: those left out.
        epochs: of MAP.
        batch_size: rows per step of MAP.
        lr: of Adam.
        test_rows: test images, the first of them.
    """

    data: str = "mnist"
    train_size: int | None = 1000
    dead: int = 0
    hidden: tuple[int, ...] = (100,)
    prior_scale: float = 0.1
    jitter: float = 1e-4
    noise: tuple[float, ...] = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
    chains: int = 1
    steps: int = 120
    burn_in: int = 40
    epochs: int = 150
    batch_size: int = 100
    lr: float = 2e-3
    test_rows: int = 2000

    def hmc(self) -> HMC:
        """Return HMC with a quarter of a period of the normal prior as trajectory.

        Lengths vary by half of that: under EmpCov directions without data have shorter periods, of which a fixed length
        may be a multiple of one half, so that weights would change their signs alone.
        """
        return HMC(self.chains, self.steps, self.burn_in, trajectory=self.prior_scale * math.pi / 2, jitter=0.5)

    def single(self) -> MAP:
        """Return how the network at the mode is trained."""
        return MAP(1, self.epochs, self.batch_size, Adam(self.lr))


@dataclass(frozen=True)
class ShiftRecipe:
    """The two problems.

    Attributes:
        images: whose own pixels are noisy.
        dead: with pixels that are dead in training.
    """

    images: ShiftProblem = ShiftProblem()
    dead: ShiftProblem = ShiftProblem("digits", 800, 40, (50,), 0.3, test_rows=900)

    def problems(self) -> dict[str, ShiftProblem]:
        """Return the problems by their names in tables."""
        return {NOISE: self.images, DEAD: self.dead}


SMALL = ShiftRecipe()

QUICK = ShiftRecipe(
    replace(SMALL.images, train_size=300, hidden=(20,), steps=60, burn_in=30, epochs=40, test_rows=500),
    replace(SMALL.dead, train_size=300, hidden=(20,), steps=60, burn_in=30, epochs=40, test_rows=300),
)

PAPER = ShiftRecipe(
    replace(SMALL.images, train_size=None, hidden=(256, 256), steps=100, burn_in=10, epochs=100, test_rows=10_000),
    replace(SMALL.dead, hidden=(256, 256), steps=100, burn_in=10),
)
