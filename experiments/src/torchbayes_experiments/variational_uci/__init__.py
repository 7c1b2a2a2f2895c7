"""The UCI regression table of variational methods: mean field, MC dropout and variational last layers, on 20 splits."""

from torchbayes_experiments.experiment import Experiment
from torchbayes_experiments.variational_uci import recipe, report, run

EXPERIMENT = Experiment(
    name="variational_uci",
    claim="Mean field and MC dropout of one-hidden-layer networks reach the test NLL that is published for them on UCI "
    "regression, and a variational last layer predicts no worse than the same network without one.",
    source="Hernández-Lobato and Adams 2015, Probabilistic backpropagation, for the protocol; Gal and Ghahramani 2016, "
    "Dropout as a Bayesian approximation, in the run of 2018 with a grid search on every split; mean field from the "
    "Uncertainty Baselines of Nado et al. 2021; Harrison, Willes and Snoek 2024, Variational Bayesian last layers",
    expected="NLL of MC dropout on boston, concrete, energy and yacht 2.40, 2.94, 1.21 and 1.25, and that of every "
    "split; of mean field 3.12, 3.22, 0.93 and 2.01.",
    differences="The noise is fixed, for each split, at the RMSE of single networks on held-out training rows. MC "
    "dropout chooses its rate and noise on such rows too, of two rates and seven shares of that noise, where it was "
    "published with four rates and three precisions, dropout of the inputs too, and 4,000 epochs and 10,000 draws in "
    "the place of 5,000 steps and 1,000. Adam with a falling learning rate, its settings one for all sets, compared on "
    "held-out training rows of the first splits, some of which are test rows of other splits. The whole divergence "
    "counts. The published mean field has learned noise and prior scales, another split (80 % of the rows) and one "
    "draw of the weights. VBLL was published with other splits too, so it is compared with a single network here.",
    recipes={"small": recipe.SMALL, "paper": recipe.PAPER},
    cost={
        "small": "four sets, 20 splits: 27 minutes of one core",
        "paper": "all nine sets: three hours of one core (an estimate); no gain from a GPU",
    },
    run=run.run,
    summarise=report.summarise,
)
