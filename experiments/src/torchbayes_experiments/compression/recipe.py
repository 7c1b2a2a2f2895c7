"""Settings of `compression`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torchbayes.methods.optimise.map import MAP
from torchbayes.methods.optimise.optimizers import Adam
from torchbayes.methods.variational.vi import VI
from torchbayes.methods.variational.weighting import WarmUp

# names that results, tables and figures share
GNJ, GHS = "group normal-Jeffreys", "group horseshoe"
DROPOUT, NORMAL, LAPLACE, SURGEON, MODE = "variational dropout", "VI, by noise", "Laplace", "surgeon", "magnitude"
GROUPS = (GNJ, GHS)
SINGLE = (DROPOUT, NORMAL, LAPLACE, SURGEON, MODE)
DENSE, CONVOLUTIONAL = "LeNet-300-100", "LeNet-5"


@dataclass(frozen=True)
class Published:
    """What Louizos, Ullrich and Welling (2017) print of a network.

    Attributes:
        error: test error in percent.
        rate: weights before over weights left.
        bits: bits before over bits left.
    """

    error: float
    rate: float
    bits: float


PUBLISHED = {
    (DENSE, GNJ): Published(1.8, 9, 36),
    (DENSE, GHS): Published(1.8, 9, 23),
    (CONVOLUTIONAL, GNJ): Published(1.0, 108, 361),
    (CONVOLUTIONAL, GHS): Published(1.0, 156, 419),
    (CONVOLUTIONAL, DROPOUT): Published(1.0, 63, 228),
}


@dataclass(frozen=True)
class NetworkRecipe:
    """Fits of one network.

    Attributes:
        network: a network by name.
        hidden: units of the hidden layers of `mlp`.
        epochs: of variational inference.
        single: epochs of the variational methods that prune single weights.
        mode: epochs of the plain network.
    """

    network: str = "mlp"
    hidden: tuple[int, ...] = (300, 100)
    epochs: int = 20
    single: int = 20
    mode: int = 10


@dataclass(frozen=True)
class CompressionRecipe:
    """Settings of all fits.

    Attributes:
        dense: of LeNet-300-100.
        convolutional: of LeNet-5; it is left out if None.
        data: an image data set by name.
        train_size: N; None for all.
        lr: of Adam, of variational inference.
        initial_scale: of its standard deviations.
        prior_scale: of the weights of the plain network, and of `NORMAL`.
        shares: of single weights that are kept along a curve, and of units.
        draws: of the model average of a posterior.
        rows: test rows of a timed forward pass.
        repeats: of it.
    """

    dense: NetworkRecipe = NetworkRecipe()
    convolutional: NetworkRecipe | None = None
    data: str = "mnist"
    train_size: int | None = None
    lr: float = 1e-2
    initial_scale: float = 0.01
    prior_scale: float = 0.1
    shares: tuple[float, ...] = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
    draws: int = 10
    rows: int = 256
    repeats: int = 15

    def networks(self) -> dict[str, NetworkRecipe]:
        """Return the fits of each network by its name in tables."""
        found = {DENSE: self.dense, CONVOLUTIONAL: self.convolutional}
        return {name: own for name, own in found.items() if own is not None}

    def variational(self, epochs: int) -> VI:
        """Return variational inference, its divergence phased in over the first third."""
        return VI(epochs=epochs, optimizer=Adam(self.lr), initial_scale=self.initial_scale, kl_weight=WarmUp())

    def single(self, epochs: int) -> MAP:
        """Return how the plain network is trained."""
        return MAP(epochs=epochs, optimizer=Adam(1e-3))


QUICK = CompressionRecipe()
SMALL = replace(QUICK, convolutional=NetworkRecipe("lenet", (), epochs=10, single=6, mode=6))
PAPER = replace(
    QUICK,
    dense=NetworkRecipe(epochs=200, single=200, mode=50),
    convolutional=NetworkRecipe("lenet", (), epochs=200, single=200, mode=50),
    lr=1e-3,
)
