"""HMC as the reference: how close cheaper methods come to the posterior (Izmailov et al. 2021, sections 5 and 7).

All methods share network, prior, likelihood and rows. The reference is the predictive distribution by full-batch HMC at
temperature 1. The other methods are judged on the test rows by how well they predict and by how close they come to the
reference: agreement, the share of equal decisions, and total variation, mean_i ½ Σ_c |p_ic − q_ic|. One chain of HMC
against the others is the ceiling: there the method is exact, and only the chains are short.
"""

from torchbayes_experiments.experiment import Experiment
from torchbayes_experiments.hmc_reference import recipe, report, run

EXPERIMENT = Experiment(
    name="hmc_reference",
    claim="The average over full-batch HMC predicts better than a single network, and SG-MCMC comes closer to it than "
    "a single network does, with a deep ensemble between them.",
    source="Izmailov, Vikram, Hoffman and Wilson 2021, What are Bayesian neural network posteriors really like?, "
    "sections 5 and 7",
    expected="On CIFAR-10 total variation from HMC falls from 0.190 (SGD) over 0.115 (deep ensemble) to 0.110, 0.109 "
    "and 0.099 (SGLD, SGHMC, cyclical SGHMC), one HMC chain being at 0.074, and NLL from 0.80 (SGD) to 0.31 (HMC).",
    differences="The small scale has perceptrons with 50 + 50 hidden units on 1,000 images: digits of 8 x 8 pixels, "
    "the same with a fifth of all labels drawn at random, and MNIST averaged to 14 x 14. HMC adapts its step size. "
    "A single network is the mode under the same prior, found by Adam; the paper trains one by SGD with twice the "
    "weight precision. ECE has 15 bins of equal width. Variational inference is left out. With wider priors, tanh "
    "units or fewer units, HMC is less sure than it should be on data as clean as these, and its NLL is worse than a "
    "single network's.",
    recipes={"small": recipe.SMALL, "paper": recipe.PAPER},
    cost={
        "small": "a few minutes on 2 cores",
        "paper": "61 million passes over the data for HMC alone: years on one GPU (an estimate)",
    },
    run=run.run,
    summarise=report.summarise,
)
