"""What a certificate may cost: numbers of fits and of rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from torchbayes.checks import check_choice, check_counts, check_kind, check_object, plain
from torchbayes.methods.mcmc.nuts import NUTS

CHECKS = ("simulation", "coverage", "k-hat", "R-hat", "leave-one-out", "reference", "seeds")
"""The checks, in the order of the page."""


@dataclass(frozen=True)
class Budget:
    """How many fits a certificate takes, and of how many rows.

    Attributes:
        simulations: fits of simulated data. 50 show an error of .2 or more of a distribution function, 200 one of .1.
        rows: most rows of a simulated data set, and of the rows that the reference samples; evenly spaced ones.
        folds: fits of the coverage check, each without the rows of one fold; at least 2.
        seeds: further fits of the same rows with other seeds.
        source: where simulated truths come from: the "prior", or the "posterior" that is judged, where data from the
            prior look unlike any that are met. Fits then have the real rows beside the simulated ones.
        reference: method whose draws stand for the posterior itself.
        checks: which checks are made.
    """

    simulations: int = 50
    rows: int = 200
    folds: int = 5
    seeds: int = 2
    source: Literal["prior", "posterior"] = "prior"
    reference: Any = field(default_factory=lambda: NUTS(chains=4, steps=1000, burn_in=500))
    checks: tuple[str, ...] = CHECKS

    def __post_init__(self) -> None:
        plain(self)
        check_counts(rows=self.rows, seeds=self.seeds)
        check_counts(least=2, simulations=self.simulations, folds=self.folds)
        check_choice(("prior", "posterior"), source=self.source)
        check_object(("init", "step", "visit"), "NUTS()", reference=self.reference)
        check_kind((list, tuple), f"a tuple of names, some of {', '.join(CHECKS)}", checks=self.checks)
        for name in self.checks:
            check_choice(CHECKS, checks=name)
