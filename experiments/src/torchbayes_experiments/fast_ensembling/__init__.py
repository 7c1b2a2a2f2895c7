"""Fast geometric ensembling: an ensemble for the price of one network (Garipov et al. 2018; Huang et al. 2017).

Independent networks, FGE and snapshot ensembles are compared at budgets of one, two and three units, where a unit is
the number of epochs that one network needs. What FGE spends on no second network it spends on walking along a valley of
the first.
"""

from torchbayes_experiments.experiment import Experiment
from torchbayes_experiments.fast_ensembling import recipe, report, run

EXPERIMENT = Experiment(
    name="fast_ensembling",
    claim="At budgets of one, two and three times the epochs of one network, fast geometric ensembles have a higher "
    "accuracy and a lower NLL than independent networks, the less so the larger the budget; and the average of a run "
    "beats its last network.",
    source="Garipov, Izmailov, Podoprikhin, Vetrov and Wilson 2018, Loss surfaces, mode connectivity, and fast "
    "ensembling of DNNs",
    expected="Accuracy on CIFAR-100 at 1, 2 and 3 units of 200 epochs: VGG-16 74.6, 76.1 and 76.6 %, and 72.5, 74.8 "
    "and 75.6 % of independent networks; PreResNet-164 80.3, 81.3 and 81.7 %, and 78.4, 80.5 and 81.6 %. The table has "
    "no NLL.",
    differences="No data augmentation; FGE goes from the optimiser's rate to the highest one of its cycles by the "
    "linear schedule of burn-in, where the paper takes a network from four fifths of an ordinary run. The small scale "
    "has LeNet on 10,000 images of Fashion-MNIST in the place of VGG-16, ResNets and CIFAR-100, units of 40 epochs, of "
    "which the cycles take three tenths, not a fifth. The paper scale has PreResNet-20 and CIFAR-10. Scores at a "
    "budget of one or two units are means over all choices of so many out of the three runs.",
    recipes={"small": recipe.SMALL, "paper": recipe.PAPER},
    cost={
        "small": "eight to nine minutes of one core",
        "paper": "nine runs of PreResNet-20 of 200 epochs: it has not been run",
    },
    run=run.run,
    summarise=report.summarise,
)
