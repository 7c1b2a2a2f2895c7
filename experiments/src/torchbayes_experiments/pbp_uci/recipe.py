"""Settings of `pbp_uci`: those of the paper."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torchbayes.methods.sites.pbp import PBP

ONE, TWO, STREAM = "PBP", "two hidden layers", "stream"
METRICS = {"rmse": "RMSE", "nll": "NLL"}
SECONDS = "seconds"  # beside the metrics: of one core, for a fit


@dataclass(frozen=True)
class PBPUCIRecipe:
    """Settings of all sets.

    Attributes:
        sets: keys of `published.PUBLISHED`.
        splits: number of standard splits of each set, from the first on.
        method: the fit that is compared with the published one.
        passes: shorter fits beside it, for the curve, each from the start.
        deep: sets on which a network of two hidden layers is fitted too.
        hidden: units of a hidden layer; twice as many for protein, as published.
        parts: in how many parts the stream of rows comes.
    """

    sets: tuple[str, ...] = ("boston", "concrete", "energy", "wine", "yacht")
    splits: int = 20
    method: PBP = field(default_factory=PBP)
    passes: tuple[int, ...] = (1, 2, 5, 10, 20)
    deep: tuple[str, ...] = ("boston", "concrete", "energy", "wine", "yacht")
    hidden: int = 50
    parts: int = 10

    def width(self, name: str) -> int:
        """Return the units of a hidden layer for a set."""
        return 2 * self.hidden if name == "protein" else self.hidden


def after(passes: int) -> str:
    """Return the name of a fit of so many passes."""
    return "1 pass" if passes == 1 else f"{passes} passes"


SMALL = PBPUCIRecipe()
PAPER = replace(
    SMALL,
    sets=("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht"),
    passes=(1, 2, 5, 10),  # those of 20 would cost half as much again
)
