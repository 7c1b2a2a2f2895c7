"""MultiSWAG under corruption: averaging within basins as well as over them (Wilson and Izmailov 2020, section 4)."""

from torchbayes_experiments.experiment import Experiment
from torchbayes_experiments.multiswag_corruption import recipe, report, run

EXPERIMENT = Experiment(
    name="multiswag_corruption",
    claim="Under strong corruption MultiSWAG has a lower NLL than a deep ensemble, and the ensemble a lower one than a "
    "single network.",
    source="Wilson and Izmailov 2020, Bayesian deep learning and a probabilistic perspective of generalization",
    expected="For PreResNet-20 on CIFAR-10-C: NLL of MultiSWAG ≤ MultiSWA < deep ensemble < single network, the more "
    "so the stronger the corruption (the paper's figures; it prints no table).",
    differences="Twelve corruptions instead of sixteen, made here from the published constants where there are any; "
    "no data augmentation. The small scale has Fashion-MNIST and LeNet in the place of CIFAR-10 and PreResNet-20.",
    recipes={"small": recipe.SMALL, "paper": recipe.PAPER},
    cost={
        "small": "about a quarter of an hour on 2 cores",
        "paper": "2 × 10 networks of 300 epochs and 200 draws with batch-norm recalibration: about a day on one GPU "
        "(an estimate)",
    },
    run=run.run,
    summarise=report.summarise,
)
