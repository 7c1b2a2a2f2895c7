"""Support and inductive bias: the evidence of a linear model, a perceptron and a convolutional network for images.

Wilson and Izmailov (2020), figure 2: the evidence of a model measures how well its prior over functions supports the
data. The prior of a convolutional network has its mass on functions of structured images. On labels that are unrelated
to the images no model should have more evidence than guessing.
"""

from torchbayes_experiments.evidence_support import recipe, report, run
from torchbayes_experiments.experiment import Experiment

EXPERIMENT = Experiment(
    name="evidence_support",
    claim="In structured images a convolutional network finds more evidence than a perceptron, and that more than a "
    "linear model; in shuffled labels none finds more than guessing does.",
    source="Wilson and Izmailov 2020, Bayesian deep learning and a probabilistic perspective of generalization, "
    "section 3 and figure 2",
    expected="On structured data the order of inductive biases; with noisy labels less evidence for each network, with "
    "random labels no more than −log K a row (the paper's figure is a sketch; it has no numbers).",
    differences="The sketch is put to the test: evidence by Laplace with Kronecker factors and a prior scale for each "
    "layer that the evidence chooses, in turns with training. The small scale has 10,000 MNIST images. On fewer "
    "(4,000 with the first seed) the linear model is ahead of the perceptron, whose first layer has a prior that knows "
    "nothing of images.",
    recipes={"small": recipe.SMALL, "paper": recipe.PAPER},
    cost={
        "small": "about three minutes on one core",
        "paper": "three networks of 200 epochs on three sets: hours on one GPU (an estimate)",
    },
    run=run.run,
    summarise=report.summarise,
)
