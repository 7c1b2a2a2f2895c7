"""Settings of `uci_table`."""

from __future__ import annotations

from dataclasses import dataclass

from torchbayes.methods.optimise.map import MAP
from torchbayes.methods.optimise.optimizers import Adam
from torchbayes.methods.optimise.swag import SWAG
from torchbayes.model.priors.univariate import Normal, PriorRules

METHODS = ("single", "ensemble", "MultiSWAG")
METRICS = {"nll_gaussian": "NLL", "nll": "NLL of the mixture", "rmse": "RMSE"}


@dataclass(frozen=True)
class UCITableRecipe:
    """Settings of all sets, chosen on a fifth of the training rows of the first splits, never on their test rows.

    Attributes:
        sets: keys of `report.PUBLISHED`.
        splits: number of standard splits of each set, from the first on.
        members: M, of the ensemble and of MultiSWAG.
        prior_scale: standard deviation of the normal prior, for standardised inputs and targets.
        noise_scale: that of the weights of the noise head, which limits how far the noise varies with the input. On
            sets of this size, a network that is free to shrink its noise where it fits a training row well is far too
            confident.
        epochs: passes over the data.
        batch_size: rows per step.
        lr: Adam's learning rate: cosine to 0 for the ensemble, piecewise linear to `averaging_lr` for MultiSWAG.
        averaging_lr: Adam's learning rate while SWAG collects.
        burn_in: share of the epochs before SWAG collects.
        rank: of SWAG's covariance.
        draws: number of functions drawn per member of MultiSWAG.
    """

    sets: tuple[str, ...] = ("boston", "concrete", "energy", "yacht")
    splits: int = 20
    members: int = 5
    prior_scale: float = 0.4
    noise_scale: float = 0.04
    epochs: int = 150
    batch_size: int = 100
    lr: float = 0.01
    averaging_lr: float = 0.003
    burn_in: float = 0.5
    rank: int = 20
    draws: int = 10

    def prior(self) -> PriorRules:
        """Return the prior; that of the noise head's bias, the log of a small noise variance, is wide."""
        normal = Normal(self.prior_scale)
        return {"noise.weight": Normal(self.noise_scale), "noise.bias": Normal(10.0), "*": normal}

    def ensemble(self) -> MAP:
        """Return the deep ensemble's method; the plan is fixed, so that rounding is the same everywhere."""
        return MAP(self.members, self.epochs, self.batch_size, Adam(self.lr), plan="vmap")

    def multiswag(self) -> SWAG:
        """Return MultiSWAG's method."""
        return SWAG(
            self.members,
            self.epochs,
            self.batch_size,
            Adam(self.lr),
            self.averaging_lr,
            self.burn_in,
            per_epoch=1,
            rank=self.rank,
            plan="vmap",
        )


SMALL = UCITableRecipe()
PAPER = UCITableRecipe(sets=("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht"))
