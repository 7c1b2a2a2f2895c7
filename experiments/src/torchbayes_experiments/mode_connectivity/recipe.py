"""Settings of `mode_connectivity`.

Those of the small scale were chosen by loss and error along the paths on training images that were left over, with a
seed of their own; loss and error halfway against the worse end:

    LeNet           SGD at 0.05, 15 epochs    Bezier curve 0.255 (0.200), 10.2 % (9.8 %); chain 0.227, 10.4 %
                    the same, 36 epochs       Bezier curve 0.168, 9.0 %; chain 0.122, 9.4 %
                    SGD at 0.1                the chain diverges
    PreResNet-20    SGD at 0.05, 8 epochs     Bezier curve 1.58 (1.37), 54.8 % (51.5 %)
                    SGD at 0.1, 16 epochs     Bezier curve 1.12, 51.0 %

36 epochs are three times those of the ends, as VGG-16 has them in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torchbayes.methods.curves.curve import Curve
from torchbayes.methods.optimise.map import MAP
from torchbayes.methods.optimise.optimizers import SGD, Adam
from torchbayes.model.priors.univariate import Normal

IMAGES, RESIDUAL, ALIGNMENT = "images", "residual", "alignment"
SEGMENT, BEZIER, CHAIN = "straight line", "Bezier curve", "chain"
CURVES = (BEZIER, CHAIN)
BEFORE, BY_WEIGHTS, BY_ACTIVATIONS = "as trained", "units matched by weights", "units matched by activations"
MATCHED = (BY_WEIGHTS, BY_ACTIVATIONS)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A data set, a network and how two networks are trained.

    Attributes:
        data: an image data set by name.
        network: a network by name.
        hidden: widths of the hidden layers of `mlp`; None for other networks.
        train_size: number of training rows, drawn by the seed; None for all.
        test_rows: number of test images that are scored, the first ones; None for all.
        decay: λ, weight decay for the mean loss of a row: the normal prior has the variance 1/(λN).
        ends: how the two networks are trained.
        points: positions on a path, evenly spaced with both ends.
    """

    data: str
    network: str
    hidden: tuple[int, ...] | None = None
    train_size: int | None
    test_rows: int | None
    decay: float
    ends: MAP
    points: int

    def prior(self, num_data: int) -> Normal:
        """Return the prior of every weight, for N rows."""
        return Normal((self.decay * num_data) ** -0.5)


@dataclass(frozen=True, kw_only=True)
class Connection(Task):
    """Two networks that are joined by curves.

    Attributes:
        bends: how a curve is trained; `shape` is set for each.
        surface_points: of each coordinate of the loss surfaces; 0 for none.
        surface_rows: number of training rows of the surfaces, the first ones.
    """

    bends: Curve
    surface_points: int = 0
    surface_rows: int = 1000

    def curves(self) -> dict[str, Curve]:
        """Return how each curve is trained, by its name."""
        return {BEZIER: replace(self.bends, shape="bezier"), CHAIN: replace(self.bends, shape="chain")}


@dataclass(frozen=True, kw_only=True)
class Alignment(Task):
    """Two perceptrons whose hidden units are matched.

    Attributes:
        barrier_rows: number of training rows of the loss, the first ones; None for all.
        activation_rows: number of training rows over which activations are compared.
    """

    barrier_rows: int | None
    activation_rows: int


@dataclass(frozen=True, kw_only=True)
class ModeConnectivityRecipe:
    """The tasks.

    Attributes:
        images: curves between plain convolutional networks; None to leave it out.
        residual: curves between residual networks with batch norm; None to leave it out.
        alignment: straight lines between perceptrons; None to leave it out.
        surface_seed: the seed of which loss surfaces are computed.
    """

    images: Connection | None
    residual: Connection | None
    alignment: Alignment | None
    surface_seed: int = 0


_PAIR: dict[str, Any] = {"members": 2}

SMALL = ModeConnectivityRecipe(
    images=Connection(
        data="fashion_mnist",
        network="lenet",
        train_size=10_000,
        test_rows=None,
        decay=5e-4,
        ends=MAP(epochs=12, optimizer=SGD(0.05), **_PAIR),
        bends=Curve(epochs=36, optimizer=SGD(0.05)),
        points=13,
        surface_points=17,
    ),
    residual=Connection(
        data="cifar10",
        network="preresnet20",
        train_size=2000,
        test_rows=3000,
        decay=5e-4,
        ends=MAP(epochs=12, batch_size=50, optimizer=SGD(0.1), plan="loop", **_PAIR),
        bends=Curve(epochs=16, batch_size=50, optimizer=SGD(0.1), plan="loop"),
        points=7,
    ),
    alignment=Alignment(
        data="mnist",
        network="mlp",
        hidden=(512, 512, 512),
        train_size=20_000,
        test_rows=None,
        decay=1e-4,
        ends=MAP(epochs=10, optimizer=Adam(1e-3), **_PAIR),
        points=13,
        barrier_rows=10_000,
        activation_rows=2000,
    ),
)

PAPER = ModeConnectivityRecipe(
    images=Connection(
        data="fashion_mnist",
        network="lenet",
        train_size=None,
        test_rows=None,
        decay=5e-4,
        ends=MAP(epochs=100, optimizer=SGD(0.05), **_PAIR),
        bends=Curve(epochs=200, optimizer=SGD(0.05)),
        points=61,
        surface_points=41,
        surface_rows=10_000,
    ),
    residual=Connection(
        data="cifar10",
        network="preresnet20",
        train_size=None,
        test_rows=None,
        decay=3e-4,
        ends=MAP(epochs=200, optimizer=SGD(0.1), plan="loop", **_PAIR),
        bends=Curve(epochs=200, optimizer=SGD(0.03), plan="loop"),
        points=61,
        surface_points=21,
        surface_rows=5000,
    ),
    alignment=Alignment(
        data="mnist",
        network="mlp",
        hidden=(512, 512, 512),
        train_size=None,
        test_rows=None,
        decay=1e-5,
        ends=MAP(epochs=100, optimizer=Adam(1e-3), **_PAIR),
        points=25,
        barrier_rows=None,
        activation_rows=10_000,
    ),
)
