"""Multiplicative normalising flows on classes that were not seen, and on turned digits (Louizos and Welling 2017).

A normal distribution of every weight by itself is narrow where the data are rich; multipliers that weights of a layer
share make it wider along some directions, and its predictions less sure where there were no data. Networks are trained
on five classes of CIFAR-10, and asked about the other five; and on digits, one of which is then turned upside down.
"""

from torchbayes_experiments import Experiment, Headline
from torchbayes_experiments.variational.multiplicative_flows import report, run

EXPERIMENT = Experiment(
    name="multiplicative_flows",
    claim="A LeNet under multiplicative normalising flows has a lower test error on five classes of CIFAR-10 than with "
    "weight decay or with independent weights, an error no higher than that of a deep ensemble, and is less sure than "
    "with weight decay on the five classes that it has not seen and on digits that are turned.",
    source="Louizos and Welling 2017, Multiplicative normalizing flows for variational Bayesian neural networks, "
    "sections 4.2 and 4.3",
    expected="Test errors of 24 % (L2), 16 % (dropout), 21 % (deep ensemble), 22 % (FFG), 23 % (FFLU) and 16 % (MNF); "
    "on unseen classes MNF puts the most mass at high entropies. L2 stays sure of a turned digit that it takes for "
    "another, MNF spreads its probabilities.",
    differences="At the small scale a LeNet of 20 and 50 filters and 500 units in the place of 192, 192 and 1000; "
    "10,000 training images of CIFAR-10 and 5,000 of MNIST, drawn by the seed; 30 epochs in the place of 100, with a "
    "learning rate that falls along a cosine; weights begin with a standard deviation of 0.02 (FFLU 0.005), not e^−9. "
    "At no scale have standard deviations an upper bound. A step draws one set of multipliers for all rows of a "
    "minibatch, where the paper draws them for each row; convolutions have noise by flipout. The auxiliary "
    "distribution of MNF begins as that of the multipliers, and has its tanh in convolutions too, unlike the authors' "
    "code. Turned digits are 200 test images of a 3, not one, and without FFLU at the small scale. Dropout is before "
    "both dense layers. Averages are over 50 draws at the small scale. The weight decay, margins and bounds are ours; "
    "margins and bounds were set before any whole run.",
    recipes={"small": run.SMALL, "paper": run.PAPER},
    cost={
        "small": "40 to 57 minutes of one core for a seed",
        "paper": "18 trainings of 100 epochs, ten of them of a network of 5.7 million weights: hours on one GPU (an "
        "estimate; it has not been run)",
    },
    run=run.run,
    summarise=report.summarise,
    headline=Headline("test error on five classes of CIFAR-10, %", ("error, %",), published="paper: error, %"),
)
