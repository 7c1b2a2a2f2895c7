"""Rethinking generalisation: labels that are fitted without a mistake, and evidence that falls with their disorder.

Wilson and Izmailov (2020), section 6: a model that can fit random labels need not consider them likely. For a Gaussian
process and for a network the training accuracy stays at 100 % however many labels are shuffled, and the log evidence
falls with every share of them.
"""

from torchbayes_experiments.evidence_random_labels import recipe, report, run
from torchbayes_experiments.experiment import Experiment

EXPERIMENT = Experiment(
    name="evidence_random_labels",
    claim="Training accuracy stays at 100 % however many labels are shuffled, while the log evidence falls strictly "
    "with their share, for a Gaussian process and for a network.",
    source="Wilson and Izmailov 2020, Bayesian deep learning and a probabilistic perspective of generalization, "
    "section 6",
    expected="Falls with every share: in the paper the bound on the evidence of a Gaussian process on two classes of "
    "CIFAR-10, and the Laplace evidence of PreResNet-20, while the test error rises.",
    differences="Laplace's approximation in the place of the process's variational bound, and its kernel is the same "
    "for every share; were it chosen by the evidence, its best for half of the labels shuffled or more would be "
    "guessing (seen on 400 rows). The small scale has a perceptron with 100 hidden units on 1,000 MNIST images and "
    "the digits 3 and 5.",
    recipes={"small": recipe.SMALL, "paper": recipe.PAPER},
    cost={
        "small": "about 20 seconds on one core",
        "paper": "six networks of 300 epochs: a day on one GPU; a step of the process takes 10,000³ operations (an "
        "estimate)",
    },
    run=run.run,
    summarise=report.summarise,
)
