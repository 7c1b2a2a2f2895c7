"""At which temperature a posterior predicts best, with and without data augmentation.

The posterior at temperature T is proportional to (p(D|w) p(w))^(1/T). Where networks are trained with augmentation,
posteriors of T below 1 have been found to predict better ("cold posteriors"). Izmailov et al. (2021) find none with
full-batch HMC and no augmentation, and take augmentation as the cause: a row's log likelihood becomes the mean over its
views, so that N rows count as N, though the views say more.
"""

from torchbayes_experiments.experiment import Experiment
from torchbayes_experiments.temperature import recipe, report, run

EXPERIMENT = Experiment(
    name="temperature",
    claim="Without data augmentation T = 1 is at or near the best temperature of a posterior; with augmentation a "
    "temperature below 1 is best.",
    source="Izmailov, Vikram, Hoffman and Wilson 2021, What are Bayesian neural network posteriors really like?, "
    "on cold posteriors",
    expected="On IMDB without augmentation accuracies of 0.797, 0.830, 0.866, 0.830 and 0.672 and NLLs of 0.425, "
    "0.378, 0.311, 0.420 and 0.660 at T = 0.1, 0.3, 1, 3 and 10 (read off a figure); with augmentation T < 1 ahead of "
    "T = 1.",
    differences="Perceptrons on 300 images of 7 × 7 pixels in the place of residual networks and texts; both sides "
    "of the comparison are sampled here. Augmentation is a fixed set of views, each image and four shifts of it, whose "
    "log likelihoods are averaged: the expectation that minibatches with random views estimate, which HMC can sample "
    "too. The noise of cyclical SGHMC is on during whole cycles.",
    recipes={"quick": recipe.QUICK, "small": recipe.SMALL, "paper": recipe.PAPER},
    cost={
        "quick": "a quarter of a minute of one core",
        "small": "two minutes of one core",
        "paper": "ten posteriors of 40,960 images by HMC, five of them with five views of each: many thousand hours on "
        "one GPU (an estimate); it has not been run",
    },
    run=run.run,
    summarise=report.summarise,
)
