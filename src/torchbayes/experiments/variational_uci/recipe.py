"""Settings of `variational_uci`, chosen on a fifth of the training rows of the first two splits of each set."""

from __future__ import annotations

from dataclasses import dataclass

from torchbayes.methods.optimise.map import MAP
from torchbayes.methods.optimise.optimizers import Adam
from torchbayes.methods.variational.dropout import MCDropout
from torchbayes.methods.variational.vbll import VBLL
from torchbayes.methods.variational.vi import VI

SINGLE, MEAN_FIELD, DROPOUT, LAST_LAYER = "single", "mean field", "MC dropout", "VBLL"
METHODS = (SINGLE, MEAN_FIELD, DROPOUT, LAST_LAYER)
METRICS = {"nll": "NLL", "rmse": "RMSE"}


@dataclass(frozen=True)
class VariationalUCIRecipe:
    """Settings of all sets.

    Attributes:
        sets: keys of `report.PUBLISHED`.
        splits: number of standard splits of each set, from the first on.
        prior_scale: standard deviation of the normal prior, for standardised inputs and targets.
        single: one network, with which the others are compared.
        mean_field: variational inference with independent weights.
        dropout: MC dropout.
        rate: of its dropout of the hidden units.
        last_layer: variational last layers.
        draws: functions drawn of mean field and of MC dropout.
    """

    single: MAP
    mean_field: VI
    dropout: MCDropout
    last_layer: VBLL
    rate: float = 0.005
    prior_scale: float = 0.5
    sets: tuple[str, ...] = ("boston", "concrete", "energy", "yacht")
    splits: int = 20
    draws: int = 100


SMALL = VariationalUCIRecipe(
    single=MAP(epochs=400, batch_size=32, optimizer=Adam(0.005)),
    mean_field=VI(epochs=1000, batch_size=32, optimizer=Adam(0.005), draws=2, antithetic=True, kl_weight=1.0),
    dropout=MCDropout(epochs=400, batch_size=32, optimizer=Adam(0.005)),
    last_layer=VBLL(epochs=400, batch_size=32, optimizer=Adam(0.005)),
)
PAPER = VariationalUCIRecipe(
    single=SMALL.single,
    mean_field=SMALL.mean_field,
    dropout=SMALL.dropout,
    last_layer=SMALL.last_layer,
    sets=("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht"),
)
