"""Full-batch HMC on 160 MNIST images, the setting that comes with the code of Izmailov et al. (2021).

A proposal costs 50,000 gradients, so the length of the chain is set in minutes, and the results say how many iterations
were made in them. Which of them are burn-in is decided afterwards.
"""

from torchbayes_experiments.experiment import Experiment
from torchbayes_experiments.hmc_mnist import recipe, report, run

EXPERIMENT = Experiment(
    name="hmc_mnist",
    claim="Full-batch HMC with 50,000 leapfrog steps a proposal accepts nearly every proposal on a network of 270,000 "
    "weights, is stationary within a few iterations, and its model average has a lower NLL than a single network.",
    source="Izmailov, Vikram, Hoffman and Wilson 2021, What are Bayesian neural network posteriors really like?, with "
    "the MNIST setting of the code published with it",
    expected="The setting is published without results. From the paper's other data sets: stationary log densities "
    "after burn-in, and a model average better than a single draw and than SGD in accuracy and NLL.",
    differences="As many iterations as fit into the time, not 100 of which 10 are burn-in, with a Metropolis test in "
    "burn-in too. The 160 training images are drawn from all, and standardised with their own statistics. A second, "
    "narrower prior is ours: under the published one the logits of a draw are in the thousands, so that a draw is a "
    "hard classifier, its mistakes cost hundreds of nats, and an average of few draws is a vote.",
    recipes={"small": recipe.SMALL, "paper": recipe.PAPER},
    cost={
        "small": "the recipe's 20 minutes on 2 cores, which buy about ten iterations, and some more for the narrower "
        "prior",
        "paper": "up to 100 iterations: three to four hours on 2 cores",
    },
    run=run.run,
    summarise=report.summarise,
)
