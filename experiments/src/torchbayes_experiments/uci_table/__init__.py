"""The UCI regression table: deep ensembles and MultiSWAG beside Lakshminarayanan et al. (2017), table 1."""

from torchbayes_experiments.experiment import Experiment
from torchbayes_experiments.uci_table import recipe, report, run

EXPERIMENT = Experiment(
    name="uci_table",
    claim="Deep ensembles and MultiSWAG of one-hidden-layer networks reach the published test NLL and RMSE of deep "
    "ensembles on UCI regression.",
    source="Lakshminarayanan, Pritzel and Blundell 2017, Simple and scalable predictive uncertainty estimation using "
    "deep ensembles, table 1",
    expected="For each set, NLL (of the Gaussian with the average's two moments, as published) and RMSE no worse than "
    "the published mean plus its published standard deviation over splits, to the digits printed.",
    differences="A normal prior, narrower for what makes the noise depend on the input, and 150 epochs with a falling "
    "learning rate in the place of adversarial training and 40 epochs at a rate of 0.1. One setting for all sets, "
    "chosen on held-out training rows of the first splits, some of which are test rows of other splits.",
    recipes={"small": recipe.SMALL, "paper": recipe.PAPER},
    cost={
        "small": "four sets, 20 splits: a few minutes on 2 cores",
        "paper": "all nine sets: hours on 2 cores, most of them on protein, naval and power; no gain from a GPU",
    },
    run=run.run,
    summarise=report.summarise,
)
