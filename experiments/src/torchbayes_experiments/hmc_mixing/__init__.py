"""How HMC chains mix: in function space far better than in weight space (Izmailov et al. 2021, section 4).

R-hat compares the variance between chains with that within them, for every weight and for every test probability. The
units of a layer can be permuted without changing the function, so chains with different weights may predict alike.
"""

from torchbayes_experiments.experiment import Experiment
from torchbayes_experiments.hmc_mixing import recipe, report, run

EXPERIMENT = Experiment(
    name="hmc_mixing",
    claim="Chains of full-batch HMC mix far better in function space than in weight space.",
    source="Izmailov, Vikram, Hoffman and Wilson 2021, What are Bayesian neural network posteriors really like?, "
    "section 4",
    expected="R-hat of most test probabilities is below 1.1 and their tail is short, R-hat of weights has a long tail "
    "(to about 54 against about 4 on CIFAR-10, figure read by eye).",
    differences="The small scale has perceptrons on 1,000 digits or averaged MNIST images, more and shorter chains, "
    "adapted step sizes, and rank-normalised split R-hat, which is stricter than the paper's. With 50 + 50 "
    "units and a narrow prior the weights mix nearly as well as the functions, and a part may stay open "
    "because both shares are zero; the narrow network, 10 units and a wide prior, is where chains keep to "
    "their own arrangement of units.",
    recipes={"small": recipe.SMALL, "paper": recipe.PAPER},
    cost={
        "small": "a few minutes on 2 cores",
        "paper": "61 million passes over the data: years on one GPU (an estimate)",
    },
    run=run.run,
    summarise=report.summarise,
)
