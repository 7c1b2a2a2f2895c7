"""UCI regression by full-batch HMC beside SGD and SGLD, as in Izmailov et al. (2021), section 6."""

from torchbayes_experiments.experiment import Experiment
from torchbayes_experiments.hmc_uci import recipe, report, run

EXPERIMENT = Experiment(
    name="hmc_uci",
    claim="On UCI regression the model average of full-batch HMC has a higher test log likelihood than SGD and SGLD "
    "under the same prior.",
    source="Izmailov, Vikram, Hoffman and Wilson 2021, What are Bayesian neural network posteriors really like?",
    expected="For yacht and energy: log likelihood of HMC above those of SGD and SGLD on paired splits (the paper's "
    "figure; it prints no table).",
    differences="The standard splits in the place of the paper's random ones. The paper's priors, step sizes and "
    "lengths for these sets are not known: here they were chosen on held-out training rows of the first splits, some "
    "of which are test rows of other splits. The noise has a floor of one per cent of the targets' standard deviation, "
    "masses are adapted, and chains start at networks trained by SGD, so that they mix in minutes. SGD "
    "and SGLD take far fewer gradients than HMC.",
    recipes={"small": recipe.SMALL, "paper": recipe.PAPER},
    cost={
        "small": "about five minutes on 2 cores",
        "paper": "about two hours on 2 cores (an estimate); no gain from a GPU",
    },
    run=run.run,
    summarise=report.summarise,
)
