"""Settings of `variational_fidelity`.

All were chosen with seed 1000, which is none of the seeds that are run, by the distance from HMC: on images on training
rows left over by that seed, on the curve at its test inputs, which have no targets in it. Tried were lengths of
variational inference from 500 to 1,500 epochs of images, one draw or a pair, rates of dropout of 0.1 and 0.2, and
learning rates of SWAG. IVON has its defaults but for its length. A Hessian that is forgotten fast, which brings IVON
nearer to the optimum of its bound, took it further from HMC.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchbayes.methods.mcmc.hmc import HMC
from torchbayes.methods.optimise.map import MAP
from torchbayes.methods.optimise.optimizers import SGD, Adam
from torchbayes.methods.optimise.swag import SWAG
from torchbayes.methods.schedules import Cycles
from torchbayes.methods.sgmcmc.sghmc import SGHMC
from torchbayes.methods.variational.dropout import MCDropout
from torchbayes.methods.variational.ivon import IVON
from torchbayes.methods.variational.vi import VI
from torchbayes_experiments.shared.image_hmc import CIFAR10, DIGITS, MNIST, Problems

_EPOCH = 512  # steps of 80 rows of CIFAR-10
MEAN_FIELD, IVON_NAME, DROPOUT, ENSEMBLE = "mean field", "IVON", "MC dropout", "deep ensemble"
MULTISWAG, CYCLICAL = "MultiSWAG", "cSGHMC"


@dataclass(frozen=True)
class Methods:
    """The methods that are compared with HMC; single ones are the members of these, each alone.

    Attributes:
        mean_field: variational inference with independent weights.
        ivon: the same family by natural gradients.
        dropout: MC dropout; None to leave it out, where the network has no such layers.
        rate: of its dropout after each hidden layer.
        ensemble: the deep ensemble.
        multiswag: SWAG around several solutions.
        cyclical: SGHMC with a cyclical step size.
    """

    mean_field: VI
    ivon: IVON
    dropout: MCDropout | None
    rate: float
    ensemble: MAP
    multiswag: SWAG
    cyclical: SGHMC

    def named(self) -> dict[str, MAP | SWAG | VI | IVON | MCDropout | SGHMC]:
        """Return the methods by their names in tables."""
        dropout = {} if self.dropout is None else {DROPOUT: self.dropout}
        others = {ENSEMBLE: self.ensemble, MULTISWAG: self.multiswag, CYCLICAL: self.cyclical}
        return {MEAN_FIELD: self.mean_field, IVON_NAME: self.ivon, **dropout, **others}


@dataclass(frozen=True)
class Curve:
    """The regression in one dimension, on inputs x and x² − 1 as in the paper.

    Attributes:
        methods: that are compared with HMC.
        hmc: the chains.
        prior_scale: σ, standard deviation of every weight's normal prior.
        noise_scale: standard deviation of the noise, in that of the targets, 1.
        hidden: widths of the hidden layers.
        label: name in tables.
    """

    methods: Methods
    hmc: HMC
    prior_scale: float = 0.5
    noise_scale: float = 0.2
    hidden: tuple[int, ...] = (10, 10, 10)
    label: str = "curve"


@dataclass(frozen=True)
class FidelityRecipe(Problems):
    """The problems.

    Attributes:
        curve: the regression; None to leave it out.
        methods: that are compared with HMC on images.
        draws: functions drawn of each member that can be drawn from.
    """

    curve: Curve | None
    methods: Methods
    draws: int = 100


_IMAGES = Methods(
    mean_field=VI(
        members=5, epochs=1500, batch_size=100, optimizer=Adam(0.003), draws=2, antithetic=True, kl_weight=1.0
    ),
    ivon=IVON(members=8, epochs=500, batch_size=100),
    dropout=MCDropout(members=5, epochs=200, batch_size=100, optimizer=Adam(0.005)),
    rate=0.1,
    ensemble=MAP(members=5, epochs=100, batch_size=100, optimizer=Adam(0.005)),
    multiswag=SWAG(members=5, epochs=200, batch_size=100, optimizer=Adam(0.005), averaging_lr=0.01),
    cyclical=SGHMC(
        chains=2,
        steps=40_000,
        burn_in=5000,
        thin=150,
        step_size=4e-6,
        batch_size=100,
        momentum=0.98,
        schedule=Cycles(5000, exploration=0.25, draws=20),
    ),
)
_CURVE = Methods(
    mean_field=VI(
        members=5, epochs=10_000, batch_size=60, optimizer=Adam(0.01), draws=2, antithetic=True, kl_weight=1.0
    ),
    ivon=IVON(members=8, epochs=20_000, batch_size=60),
    dropout=MCDropout(members=5, epochs=5000, batch_size=60, optimizer=Adam(0.01)),
    rate=0.05,
    ensemble=MAP(members=5, epochs=5000, batch_size=60, optimizer=Adam(0.01)),
    multiswag=SWAG(members=5, epochs=5000, batch_size=60, optimizer=Adam(0.01), averaging_lr=0.003),
    cyclical=SGHMC(
        chains=2,
        steps=100_000,
        burn_in=10_000,
        thin=150,
        step_size=2e-5,
        batch_size=60,
        momentum=0.98,
        schedule=Cycles(10_000, exploration=0.25, draws=40),
    ),
)
SMALL = FidelityRecipe(
    curve=Curve(_CURVE, HMC(chains=4, steps=800, burn_in=300, max_leapfrogs=1000)),
    digits=DIGITS,
    noisy=None,
    mnist=MNIST,
    methods=_IMAGES,
)
PAPER = FidelityRecipe(
    curve=None,
    digits=CIFAR10,
    noisy=None,
    mnist=None,
    methods=Methods(
        mean_field=VI(
            members=5,
            epochs=300,
            batch_size=80,
            optimizer=Adam(1e-4),
            estimator="weights",
            relative_scale=0.01,
            kl_weight=1.0,
        ),
        ivon=IVON(members=8, epochs=200, batch_size=80),
        dropout=None,
        rate=0.0,
        ensemble=MAP(members=50, epochs=500, batch_size=80, optimizer=SGD(lr=3e-7 * 40_960, momentum=0.9)),
        multiswag=SWAG(members=10, epochs=300, batch_size=80, optimizer=SGD(lr=0.1, momentum=0.9), averaging_lr=0.01),
        cyclical=SGHMC(
            chains=1,
            steps=10_000 * _EPOCH,
            burn_in=1000 * _EPOCH,
            step_size=3e-7,
            batch_size=80,
            momentum=0.95,
            schedule=Cycles(50 * _EPOCH, exploration=0.0),
            thin=1,
        ),
    ),
)
