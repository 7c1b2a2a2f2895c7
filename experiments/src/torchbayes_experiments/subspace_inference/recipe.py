"""Settings of `subspace_inference`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchbayes.methods.curves.curve import Curve
from torchbayes.methods.mcmc.elliptical import EllipticalSlice
from torchbayes.methods.optimise.optimizers import SGD, Adam
from torchbayes.methods.optimise.swag import SWAG
from torchbayes.methods.variational.vi import VI

SGD_POINT, SWA_POINT, ESS, VARIATIONAL, SWAG_POSTERIOR = "SGD", "SWA", "ESS", "VI", "SWAG"
METHODS = (SGD_POINT, SWA_POINT, ESS, VARIATIONAL, SWAG_POSTERIOR)
METRICS = {"nll_gaussian": "NLL", "rmse": "RMSE", "coverage": "share in the 95 % interval"}

RANDOM, PCA, CURVE = "random", "PCA", "curve"
SPACES = (RANDOM, PCA, CURVE)

REGRESSIONS, TOY, IMAGES = "regressions", "toy", "images"  # parts of the results
DATA, GAPS, OUTSIDE = "data", "gaps", "outside"  # parts of the axis of the toy
SECOND = 1_000_000  # between the seeds of the two networks that a curve joins


@dataclass(frozen=True, kw_only=True)
class Training:
    """How networks are trained on one of the regressions.

    Attributes:
        decay: λ, weight decay on the scale of the mean loss, for the prior N(0, 1/(λN)).
        epochs: passes over the data.
        burn_in: share of them before the averages begin.
        batch_size: rows per step.
        temperature: T of the likelihood in the subspace.
        floor: least variance of the noise, in that of the targets. The authors learn one, under weight decay; this one
            is fixed.
        lr: constant learning rate.
    """

    decay: float
    epochs: int
    burn_in: float
    batch_size: int
    temperature: float
    floor: float
    lr: float = 1e-3

    def swag(self) -> SWAG:
        """Return the method; SGD is its last iterate."""
        optimizer = SGD(self.lr, momentum=0.9)
        return SWAG(1, self.epochs, self.batch_size, optimizer, self.lr, self.burn_in, per_epoch=1, rank=20)

    def prior_scale(self, rows: int) -> float:
        """Return the standard deviation of the prior for N rows."""
        return (self.decay * rows) ** -0.5


@dataclass(frozen=True, kw_only=True)
class Regressions:
    """The table of UCI regressions.

    Attributes:
        boston: how networks are trained on this set; None to leave it out. The others likewise.
        concrete: likewise.
        energy: likewise.
        naval: likewise.
        yacht: likewise.
        elliptical: elliptical slice sampling in the subspace.
        variational: variational inference in the subspace, on all rows at every step.
        splits: number of standard splits of each set, from the first on.
        hidden: units of the hidden layer.
        rank: R, directions of the subspace.
        scale: s, standard deviation of the coordinates.
        draws: functions drawn of VI and SWAG.
    """

    boston: Training | None = None
    concrete: Training | None = None
    energy: Training | None = None
    naval: Training | None = None
    yacht: Training | None = None
    elliptical: EllipticalSlice
    variational: VI
    splits: int = 20
    hidden: int = 50
    rank: int = 5
    scale: float = 1.0
    draws: int = 200

    @property
    def trainings(self) -> dict[str, Training]:
        """The sets with how networks are trained on them."""
        named = {name: getattr(self, name) for name in ("boston", "concrete", "energy", "naval", "yacht")}
        return {name: training for name, training in named.items() if training is not None}

    @property
    def sets(self) -> tuple[str, ...]:
        """UCI sets, without `uci_`."""
        return tuple(self.trainings)


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Elliptical slice sampling in the three subspaces.

    Attributes:
        method: the sampler.
        temperature: T of the likelihood in the random and the PCA subspace.
        scale: s, standard deviation of their coordinates; a random direction is as long as the first two of PCA are on
            average.
        curve_temperature: T in the plane of the curve.
        curve_scale: s there, where the coordinates have the authors' units (`spaces.of_curve`).
        rank: R, directions of the random and the PCA subspace.
    """

    method: EllipticalSlice
    temperature: float
    scale: float
    curve_temperature: float
    curve_scale: float = 1.0
    rank: int = 5

    def temperature_of(self, space: str) -> float:
        """Return T in a subspace."""
        return self.curve_temperature if space == CURVE else self.temperature


@dataclass(frozen=True, kw_only=True)
class Toy:
    """The regression in one dimension.

    Attributes:
        swag: how two networks are trained, one after the other; subspaces go through the average of the first.
        curve: how they are connected.
        sampling: of the networks in the subspaces.
        noise: standard deviation of the noise of the targets.
        hidden: widths of the hidden layers.
        data: the set by name.
        ends: of the inputs at which predictions are made.
        clusters: ends of the inputs between which there are data.
        places: number of inputs at which predictions are made.
    """

    swag: SWAG
    curve: Curve
    sampling: Sampling
    noise: float = 0.05**0.5
    hidden: tuple[int, ...] = (200, 50, 50, 50)
    data: str = "toy_drbayes"
    ends: tuple[float, float] = (-10.0, 10.0)
    clusters: tuple[tuple[float, float], ...] = ((-7.2, -4.8), (-1.2, 1.2), (4.8, 7.2))
    places: int = 201


@dataclass(frozen=True, kw_only=True)
class Images:
    """The images.

    Attributes:
        swag: how two networks are trained, one after the other.
        curve: how they are connected.
        sampling: of the networks in the subspaces.
        prior_scale: standard deviation of every weight's normal prior.
        data: the set by name.
        network: the network by name.
        channels: filters of the convolutions of a LeNet.
        hidden: units of its hidden layer.
        train_size: number of training images, drawn by the seed; None for all.
        test_rows: number of test images, the first ones; None for all.
        draws: functions drawn of SWAG.
    """

    swag: SWAG
    curve: Curve
    sampling: Sampling
    prior_scale: float
    data: str = "fashion_mnist"
    network: str = "lenet"
    channels: tuple[int, int] = (10, 20)
    hidden: int = 100
    train_size: int | None = 5000
    test_rows: int | None = None
    draws: int = 30

    def network_settings(self) -> dict[str, Any]:
        """Return the settings of the network."""
        return {"channels": self.channels, "hidden": self.hidden} if self.network == "lenet" else {}


@dataclass(frozen=True, kw_only=True)
class SubspaceRecipe:
    """The three parts.

    Attributes:
        regressions: the UCI table; None to leave a part out.
        toy: the regression in one dimension.
        images: the images.
        regression_seeds: how many seeds run the UCI table, from the first on: its repeats are the splits.
    """

    regressions: Regressions | None
    toy: Toy | None
    images: Images | None
    regression_seeds: int = 1


_TOY_SGD, _IMAGE_SGD = SGD(5e-4, momentum=0.95), SGD(0.05, momentum=0.9)
SMALL = SubspaceRecipe(
    regressions=Regressions(
        boston=Training(decay=0.1, epochs=300, burn_in=2 / 3, batch_size=30, temperature=1.0, floor=0.02),
        concrete=Training(decay=0.01, epochs=1000, burn_in=0.5, batch_size=100, temperature=10.0, floor=0.05),
        energy=Training(decay=0.1, epochs=1000, burn_in=0.5, batch_size=100, temperature=1.0, floor=0.002),
        yacht=Training(decay=1e-3, epochs=1000, burn_in=0.5, batch_size=30, temperature=1.0, floor=0.0005),
        elliptical=EllipticalSlice(4, 100, 50, plan="native"),
        variational=VI(
            epochs=200, batch_size=100_000, optimizer=Adam(0.1), estimator="weights", draws=4, kl_weight=1.0,
            plan="native",
        ),
    ),
    toy=Toy(
        swag=SWAG(1, 3000, 50, _TOY_SGD, _TOY_SGD.lr, 2 / 3, per_epoch=1, rank=20),
        curve=Curve(epochs=3000, batch_size=50, optimizer=_TOY_SGD),
        sampling=Sampling(
            method=EllipticalSlice(4, 400, 100, plan="native"), temperature=1.5, scale=20.0, curve_temperature=0.75
        ),
    ),
    images=Images(
        swag=SWAG(1, 24, 100, _IMAGE_SGD, 0.02, 0.5, per_epoch=4, rank=20, plan="native"),
        curve=Curve(epochs=12, batch_size=100, optimizer=_IMAGE_SGD, plan="native"),
        sampling=Sampling(
            method=EllipticalSlice(2, 35, 5, plan="native"), temperature=1000.0, scale=4.0, curve_temperature=1000.0
        ),
        prior_scale=0.4,
        test_rows=5000,
    ),
)  # fmt: skip
PAPER = SubspaceRecipe(
    regressions=Regressions(
        boston=Training(decay=0.1, epochs=300, burn_in=2 / 3, batch_size=30, temperature=0.1, floor=0.02),
        concrete=Training(decay=0.01, epochs=1000, burn_in=0.5, batch_size=100, temperature=1e4, floor=0.05),
        energy=Training(decay=0.1, epochs=1000, burn_in=0.5, batch_size=100, temperature=691 / 20, floor=0.002),
        naval=Training(
            decay=1e-4, epochs=1000, burn_in=0.5, batch_size=100, temperature=10741 / 20, floor=1e-4, lr=5e-4
        ),
        yacht=Training(decay=1e-3, epochs=1000, burn_in=0.5, batch_size=30, temperature=277 / 20, floor=0.0005),
        elliptical=EllipticalSlice(4, 100, 50, plan="vmap"),
        variational=VI(
            epochs=1000, batch_size=100_000, optimizer=Adam(0.03), estimator="weights", draws=4, kl_weight=1.0,
            plan="vmap",
        ),
        rank=20,
    ),
    toy=Toy(
        swag=SWAG(1, 3000, 50, _TOY_SGD, _TOY_SGD.lr, 2 / 3, per_epoch=1, rank=20),
        curve=Curve(epochs=6000, batch_size=50, optimizer=_TOY_SGD),
        sampling=Sampling(
            method=EllipticalSlice(4, 1000, 100, plan="vmap"), temperature=1.5, scale=5.0, curve_temperature=0.75
        ),
    ),
    images=Images(
        swag=SWAG(1, 300, 128, SGD(0.1, momentum=0.9), 0.05, 161 / 300, per_epoch=1, rank=20, plan="loop"),
        curve=Curve(epochs=600, batch_size=128, optimizer=_IMAGE_SGD, plan="loop"),
        sampling=Sampling(
            method=EllipticalSlice(1, 40, 10, plan="loop"), temperature=5000.0, scale=2.0, curve_temperature=1e4
        ),
        prior_scale=(3e-4 * 50_000) ** -0.5,
        data="cifar10",
        network="resnet20_frn",
        train_size=None,
    ),
    regression_seeds=3,
)  # fmt: skip
