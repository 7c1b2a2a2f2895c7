"""Double descent over the width, and whether averaging removes it (Wilson and Izmailov 2020, section 7).

Trained to fit labels of which some are wrong, networks of growing width first become better, then worse up to the width
that can just fit every label (the interpolation threshold), and better again beyond it (Belkin et al. 2019; Nakkiran et
al. 2020). A Bayesian model average should improve with flexibility throughout: what makes a network at the threshold
bad is that its one solution is an arbitrary one.
"""

from torchbayes_experiments.double_descent import recipe, report, run
from torchbayes_experiments.experiment import Experiment

EXPERIMENT = Experiment(
    name="double_descent",
    claim="With wrong training labels the test error and NLL of SGD have a bump at the interpolation threshold, that "
    "of SWAG is smaller, and MultiSWAG and deep ensembles have none.",
    source="Wilson and Izmailov 2020, Bayesian deep learning and a probabilistic perspective of generalization, "
    "section 7; the phenomenon: Nakkiran et al. 2020, Deep double descent",
    expected="For ResNet-18 of growing width on CIFAR-100 with 20 % of the labels shuffled, error and NLL of SGD rise "
    "and fall again, those of SWAG less, and those of MultiSWAG fall throughout (the paper's figures; it prints no "
    "table).",
    differences="SGD is that with momentum. The small and the quick scale have LeNet of width w, with w and 2w filters "
    "and 4w hidden units, on 4,000 MNIST images; without augmentation, and without early stopping. SWAG goes on at the "
    "learning rate it was trained with. The paper scale has PreResNet-20 on CIFAR-10, and only a guess of where the "
    "threshold is.",
    recipes={"small": recipe.SMALL, "quick": recipe.QUICK, "paper": recipe.PAPER},
    cost={
        "small": "35 to 50 minutes of one core",
        "quick": "six minutes of one core",
        "paper": "11 widths of 2 × 10 networks of 300 epochs: several days on one GPU (an estimate)",
    },
    run=run.run,
    summarise=report.summarise,
)
