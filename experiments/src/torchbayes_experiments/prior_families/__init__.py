"""Whether the family of the prior of the weights matters, once their standard deviation is given.

Izmailov et al. (2021), section 6: on IMDB the average over full-batch HMC scores about the same under normal, logistic
and normal mixture priors of one variance. Here are three problems, a Student t prior beside these, and, for comparison,
normal priors of half and twice the scale.
"""

from torchbayes_experiments.experiment import Experiment
from torchbayes_experiments.prior_families import recipe, report, run

EXPERIMENT = Experiment(
    name="prior_families",
    claim="Under normal, logistic, normal mixture and Student t priors of one standard deviation the average over "
    "full-batch HMC scores about the same; the scores differ less than those of normal priors of half and twice the "
    "scale.",
    source="Izmailov, Vikram, Hoffman and Wilson 2021, What are Bayesian neural network posteriors really like?, "
    "section 6 (the comparison with the scale is ours)",
    expected="On IMDB accuracies of 0.866, 0.869 and 0.863, NLLs of 0.311, 0.304 and 0.317 and ECEs of 0.029, 0.024 "
    "and 0.025 under normal, logistic and mixture priors of variance 1/40.",
    differences="Perceptrons in the place of a network with convolutions and an LSTM: of 1,500 IMDB reviews they see "
    "which of the 500 most frequent words each has. Digits and a regression are beside it, and a Student t prior of "
    "five degrees of freedom. The mixture has two components of equal share, one of twice the standard deviation of "
    "the other.",
    recipes={"small": recipe.SMALL, "paper": recipe.PAPER},
    cost={
        "small": "about five minutes of one core",
        "paper": "six posteriors of 25,000 reviews: days on one GPU (an estimate); it has not been run",
    },
    run=run.run,
    summarise=report.summarise,
)
