"""Settings of `hmc_mnist`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchbayes.methods.mcmc.hmc import HMC
from torchbayes.methods.optimise.map import MAP
from torchbayes.methods.optimise.optimizers import Adam


@dataclass(frozen=True)
class MNISTChainRecipe:
    """Settings of the chains and of the single networks; the chain under the wide prior has the published ones.

    Attributes:
        data: key of `data.names()`.
        train_size: training images.
        hidden: widths of the network.
        prior_scale: standard deviation of the normal prior.
        step_size: of a leapfrog step.
        trajectory: length of a proposal, in units of the weights.
        iterations: maximum number of iterations of the chain.
        minutes: of sampling; the chain ends with the iteration in which they are used up.
        burn_in: share of the iterations that were run, the first of them, that is left out.
        narrow_scale: standard deviation of a second, narrower prior, under which a draw is not a hard classifier.
        narrow_step_size: of a leapfrog step under it; a proposal is a quarter of the prior's period.
        narrow_iterations: of the chain under it.
        members: number of networks trained to the mode; their mean scores are those of a single network.
        epochs: of their training.
        batch_size: images per step of their training.
        lr: learning rate of Adam.
        test_rows: number of test images; None for all.
    """

    data: str = "mnist"
    train_size: int = 160
    hidden: tuple[int, ...] = (256, 256)
    prior_scale: float = 1.0
    step_size: float = 3e-5
    trajectory: float = 1.5
    iterations: int = 100
    minutes: float = 20.0
    burn_in: float = 0.2
    narrow_scale: float = 0.2
    narrow_step_size: float = 5e-4
    narrow_iterations: int = 100
    members: int = 3
    epochs: int = 500
    batch_size: int = 80
    lr: float = 1e-3
    test_rows: int | None = None

    def chain(self) -> HMC:
        """Return HMC with one chain that keeps every iteration."""
        leapfrogs = math.ceil(self.trajectory / self.step_size)
        return HMC(1, self.iterations, 0, step_size=self.step_size, trajectory=self.trajectory, max_leapfrogs=leapfrogs)

    def narrow(self) -> HMC:
        """Return HMC under the narrower prior."""
        return HMC(1, self.narrow_iterations, 0, step_size=self.narrow_step_size)

    def single(self) -> MAP:
        """Return how networks are trained to the mode."""
        return MAP(self.members, self.epochs, self.batch_size, Adam(self.lr))


SMALL = MNISTChainRecipe()
PAPER = MNISTChainRecipe(minutes=240.0, burn_in=0.1)
