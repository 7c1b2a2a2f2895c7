"""Settings of `misspecification`, and the names that results and tables share.

Laws and bounds of the verdict were chosen by what the sandwich tells, before coverages of any run were seen.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchbayes_experiments.misspecification.laws import Law

BAYES, TEMPERED, STUDENT = "Bayes, T = 1", "tempered", "Student t noise"

ASSUMED = Law("as assumed")
GROWING = Law("growing noise", growing=True)
CURVED = Law("curved mean", amplitude=0.8)
OUTLIERS = Law("outliers", outliers=0.1)


@dataclass(frozen=True)
class MisspecificationRecipe:
    """Settings of all laws.

    Attributes:
        laws: of the data.
        sizes: N, numbers of rows, in rising order.
        sets: R, independent data sets of each size.
        noise: σ, standard deviation of the noise that the model assumes.
        prior_scale: standard deviation of the normal prior of both weights.
        df: degrees of freedom of the Student t likelihood, whose scale is σ.
        points: inputs at which functions are compared, evenly spaced on [−1, 1].
        cells: nodes of the quadrature under the Student t likelihood, for each weight.
    """

    laws: tuple[Law, ...] = (ASSUMED, GROWING, CURVED, OUTLIERS)
    sizes: tuple[int, ...] = (50, 150, 450)
    sets: int = 1000
    noise: float = 0.3
    prior_scale: float = 3.0
    df: float = 3.0
    points: int = 21
    cells: int = 25


SMALL = MisspecificationRecipe()
PAPER = MisspecificationRecipe(sizes=(50, 150, 450, 1350), sets=10_000)
