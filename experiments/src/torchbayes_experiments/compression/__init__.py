"""Bayesian compression: networks without the units whose multipliers are noise, in as few bits as they need.

Louizos, Ullrich and Welling (2017) put a prior on groups of weights under which whole units become superfluous, remove
them, and keep of each weight the bits that its posterior leaves. Here the smaller networks are built, saved and timed,
and the pruning of single weights, by variational dropout, by noise, by a Laplace posterior and by magnitude, is beside.
"""

from torchbayes_experiments.compression import recipe, report, run
from torchbayes_experiments.experiment import Experiment

EXPERIMENT = Experiment(
    name="compression",
    claim="Under priors of groups most units of a network are superfluous: without them, and with a few bits for each "
    "weight that is left, it is many times smaller and faster, at next to no cost in accuracy.",
    source="Louizos, Ullrich and Welling 2017, Bayesian compression for deep learning; table 1 for LeNet-5, its "
    "numbers for LeNet-300-100 from memory",
    expected="LeNet-300-100: 1.8 % error with 9 times fewer weights (both priors), 36 and 23 times fewer bits. "
    "LeNet-5: 1.0 % with 108 and 156 times fewer weights, 361 and 419 times fewer bits; sparse variational dropout "
    "63 and 228.",
    differences="The divergence of the normal-Jeffreys prior is exact in the place of a fit to it. Bits are those of "
    "fixed-point numbers whose step follows from the posterior's standard deviations; the paper counts floating-point "
    "numbers, and takes the variance. Runs are short: 20 epochs of LeNet-300-100, 10 of LeNet-5.",
    recipes={"quick": recipe.QUICK, "small": recipe.SMALL, "paper": recipe.PAPER},
    cost={
        "quick": "LeNet-300-100: ten minutes of one core",
        "small": "with LeNet-5: three quarters of an hour of one core",
        "paper": "200 epochs of both: an hour of one GPU (an estimate); it has not been run",
    },
    run=run.run,
    summarise=report.summarise,
)
