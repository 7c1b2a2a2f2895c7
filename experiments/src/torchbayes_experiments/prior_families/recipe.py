"""Settings of `prior_families`, and the names that results and tables share.

Scales and lengths of chains were chosen with seed 1000, which is none of the seeds that are run. The scale of reviews
is near that of the least NLL under a normal prior; that of digits is below it, as leapfrog steps are in proportion.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchbayes.methods.mcmc.hmc import HMC
from torchbayes.model.priors.mixture import NormalMixture
from torchbayes.model.priors.univariate import Logistic, Normal, StudentT

FAMILIES = ("normal", "logistic", "normal mixture", "Student t")
NARROW, WIDE = "normal, half the scale", "normal, twice the scale"
PRIORS = (*FAMILIES, NARROW, WIDE)


@dataclass(frozen=True)
class Problem:
    """Data, a perceptron, and the chains that sample its posterior under every prior.

    Attributes:
        data: a set by name: images, `imdb`, or a UCI set.
        label: its name in tables.
        scale: standard deviation of every weight under each family.
        hidden: widths of the hidden layers.
        hmc: the chains; by default a trajectory is (π/2) σ and the step size is adapted in burn-in.
        train_size: N, training rows drawn by the seed; None for all.
        test_rows: number of test rows, the first; None for all.
        words: of a text, the number of words whose presence is an input, the most frequent ones; 0 for other data.
        noise: standard deviation of the noise of standardised targets; 0 for classes.
    """

    data: str
    label: str
    scale: float
    hidden: tuple[int, ...]
    hmc: HMC
    train_size: int | None = None
    test_rows: int | None = None
    words: int = 0
    noise: float = 0.0


@dataclass(frozen=True)
class FamiliesRecipe:
    """Settings of all problems.

    Attributes:
        problems: what is learned.
        df: degrees of freedom of the Student t prior.
        ratio: standard deviation of the wide component of the mixture, over that of the narrow one; each has one half.
    """

    problems: tuple[Problem, ...]
    df: float = 5.0
    ratio: float = 2.0

    def named_priors(self, scale: float) -> dict[str, Normal | Logistic | NormalMixture | StudentT]:
        """Return the priors by name: four families of one standard deviation, and normal ones of half and twice it."""
        narrow = scale * math.sqrt(2 / (1 + self.ratio**2))
        return {
            "normal": Normal(scale),
            "logistic": Logistic(scale * math.sqrt(3) / math.pi),
            "normal mixture": NormalMixture((self.ratio * narrow, narrow)),
            "Student t": StudentT(self.df, scale * math.sqrt((self.df - 2) / self.df)),
            NARROW: Normal(scale / 2),
            WIDE: Normal(2 * scale),
        }


_CHAINS = HMC(chains=2, steps=110, burn_in=40)
DIGITS = Problem("digits", "digits", 0.3, (50, 50), _CHAINS, train_size=500)
REVIEWS = Problem("imdb", "IMDB, words", 0.45, (20,), _CHAINS, train_size=1500, test_rows=5000, words=500)
CONCRETE = Problem("uci_concrete", "UCI concrete", 0.5, (50,), _CHAINS, noise=0.3)

SMALL = FamiliesRecipe((DIGITS, REVIEWS, CONCRETE))
PAPER = FamiliesRecipe((
    Problem("imdb", "IMDB, words", 40**-0.5, (128,), HMC(chains=3, steps=450, burn_in=50), words=19_996),
))
