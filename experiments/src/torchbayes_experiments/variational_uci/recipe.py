"""Settings of `variational_uci`.

Lengths, learning rate and prior were compared on a fifth of the training rows of the first two splits of each set. The
noise and the rate of dropout are chosen by the run itself, on every split, from its training rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeVar

from torchbayes.methods.optimise.map import MAP
from torchbayes.methods.optimise.optimizers import Adam
from torchbayes.methods.variational.dropout import MCDropout
from torchbayes.methods.variational.vbll import VBLL
from torchbayes.methods.variational.vi import VI

SINGLE, MEAN_FIELD, DROPOUT, LAST_LAYER = "single", "mean field", "MC dropout", "VBLL"
METHODS = (SINGLE, MEAN_FIELD, DROPOUT, LAST_LAYER)
CHOSEN = "chosen"  # beside the methods' scores: noise and rate of dropout of each split
METRICS = {"nll": "NLL", "rmse": "RMSE"}

_Method = TypeVar("_Method", bound=MAP | VI | MCDropout | VBLL)


@dataclass(frozen=True)
class VariationalUCIRecipe:
    """Settings of all sets.

    Attributes:
        single: one network, with which the others are compared, and whose errors on held-out rows are the noise.
        mean_field: variational inference with independent weights.
        dropout: MC dropout.
        last_layer: variational last layers.
        rates: of dropout, among which held-out rows choose.
        shares: of a single network's noise, among which held-out rows choose that of MC dropout.
        sets: keys of `report.PUBLISHED`.
        splits: number of standard splits of each set, from the first on.
        folds: parts of the training rows, each held out once for the noise, and the first for MC dropout.
        epochs: least passes over the data, of all methods.
        steps: least steps, of a single network, last layers, and the fits that choose.
        long_steps: least steps of mean field and of MC dropout, whose gradients are noisier.
        prior_scale: standard deviation of the normal prior, for standardised inputs and targets.
        draws: functions drawn of mean field and of MC dropout.
    """

    single: MAP
    mean_field: VI
    dropout: MCDropout
    last_layer: VBLL
    rates: tuple[float, ...] = (0.005, 0.05)
    shares: tuple[float, ...] = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2)
    sets: tuple[str, ...] = ("boston", "concrete", "energy", "yacht")
    splits: int = 20
    folds: int = 5
    epochs: int = 40
    steps: int = 2600
    long_steps: int = 5000
    prior_scale: float = 0.5
    draws: int = 1000

    def lasting(self, method: _Method, rows: int, *, steps: int) -> _Method:
        """Return a method with the epochs that make so many steps, or those that it takes at least.

        Args:
            method: one of the recipe's.
            rows: N.
            steps: the least.
        """
        return replace(method, epochs=max(self.epochs, math.ceil(steps / math.ceil(rows / method.batch_size))))


SMALL = VariationalUCIRecipe(
    single=MAP(batch_size=32, optimizer=Adam(0.01)),
    mean_field=VI(batch_size=32, optimizer=Adam(0.01), estimator="weights", draws=8, kl_weight=1.0),
    dropout=MCDropout(batch_size=32, optimizer=Adam(0.01)),
    last_layer=VBLL(batch_size=32, optimizer=Adam(0.01), initial_scale=0.01, kl_weight=1.0),
)
PAPER = replace(
    SMALL,
    sets=("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht"),
    long_steps=20_000,  # as published, MC dropout took 12,000 and more
)
