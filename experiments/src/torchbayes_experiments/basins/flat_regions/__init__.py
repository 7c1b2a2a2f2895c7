"""Flat regions: volumes of good and bad solutions, and effective dimension by width (Huang et al., Maddox et al. 2020).

Networks that fit the same rows equally well generalise well or badly, as they were trained on these alone or on rows
with wrong labels as well. And wide networks that fit their rows generalise better than narrow ones, though they have
more weights. Both are put down to the size of the region of low loss around a solution.
"""

from torchbayes_experiments import Experiment, Headline
from torchbayes_experiments.basins.flat_regions import report, run

EXPERIMENT = Experiment(
    name="flat_regions",
    claim="Of networks that fit the same rows at the same loss, those that generalise badly lie in basins whose "
    "volumes are smaller by many orders of magnitude; and past interpolation the effective dimension falls together "
    "with the test loss, while the number of weights grows.",
    source="Huang et al. 2020, Understanding generalization through visualizations; Maddox, Benton and Wilson 2020, "
    "Rethinking parameter counting in deep models: effective dimensionality revisited; Wilson and Izmailov 2020, "
    "Bayesian deep learning and a probabilistic perspective of generalization",
    expected="Filter-normalised volumes that fall as the test error rises, by thousands of orders of magnitude on "
    "street view digits; by width, double descent of the test loss, and beyond its peak an effective dimension that "
    "follows it (figures in both papers; from memory).",
    differences="Poison is further training rows with wrong labels, which weigh as much as the others. Networks stop "
    "at a loss on the clean rows, to which their last layer is then scaled; geometry is taken on these rows. The "
    "effective dimension is that of the Gauss-Newton matrix: the Hessian has negative eigenvalues beyond −α, and the "
    "quadrature of λ/(λ + α) then does not converge. Added are raw volumes, the typical direction, the local learning "
    "coefficient, and networks of all widths at equal training loss. The small scale has perceptrons on MNIST, on "
    "1,000 images and on 500 of 7 × 7 pixels, a fifth of whose labels are shuffled.",
    recipes={"small": run.SMALL, "paper": run.PAPER},
    cost={
        "small": "two and a half minutes of one core for a seed",
        "paper": "about two hours on one GPU (an estimate); it has not been run",
    },
    run=run.run,
    summarise=report.summarise,
    headline=Headline(
        "log₁₀ volume of the basin, in units of the filters' norms",
        ("filters, volume",),
        rows=("SAM, 0 %", *(f"SGD, {poison} %" for poison in (0, 10, 25, 50, 100, 200))),
    ),
)
