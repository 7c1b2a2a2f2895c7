"""Settings of `misspecification`, and the names that results and tables share.

Laws and bounds of the verdict were chosen by what the sandwich tells, without a run.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchbayes.experiments.misspecification.laws import Law, Line, Shape, Step
from torchbayes.methods.mcmc.hmc import HMC

BAYES, TEMPERED, STUDENT = "Bayes, T = 1", "tempered", "Student t noise"

ASSUMED = Law("as assumed")
GROWING = Law("growing noise", growing=True)
CURVED = Law("curved mean", amplitude=0.8)
OUTLIERS = Law("outliers", outliers=0.1)
NETWORK = Law("network as assumed", network=True)
RIPPLED = Law("network, rippled mean", network=True, amplitude=0.5)


@dataclass(frozen=True)
class MisspecificationRecipe:
    """Settings of all laws.

    Attributes:
        laws: of the data.
        sizes: N, numbers of rows, in rising order.
        sets: R, independent data sets of each size.
        noise: σ, standard deviation of the noise that every model assumes.
        prior_scale: standard deviation of the normal prior of every weight.
        df: degrees of freedom of the Student t likelihood, whose scale is σ.
        points: inputs at which functions are compared, evenly spaced on [−1, 1].
        hmc: the chains, one for each data set; `chains` is replaced by R.
    """

    laws: tuple[Law, ...] = (ASSUMED, GROWING, CURVED, OUTLIERS, NETWORK, RIPPLED)
    sizes: tuple[int, ...] = (50, 150, 450)
    sets: int = 600
    noise: float = 0.3
    prior_scale: float = 3.0
    df: float = 3.0
    points: int = 21
    hmc: HMC = HMC(steps=150, burn_in=50, trajectory=1.6, jitter=0.2, mass="diagonal")  # noqa: RUF009  (frozen)

    def shape(self, law: Law) -> Shape:
        """Return the model's functions: lines, or a network with one tanh unit."""
        return Step() if law.network else Line()


SMALL = MisspecificationRecipe()
PAPER = MisspecificationRecipe(sizes=(50, 150, 450, 1350, 4050), sets=4000)
