"""Subspace inference: a handful of directions in the space of the weights, and all of Bayes within them (2019).

A subspace that contains many good networks, such as that of the principal components of SGD's trajectory or the plane
of a curve between two networks, is small enough for elliptical slice sampling. What it predicts is compared with SGD on
UCI regression, drawn as bands along one input, and scored on images for a random, a PCA and a curve subspace.
"""

from torchbayes_experiments import Experiment, Headline
from torchbayes_experiments.basins.subspace_inference import report, run

EXPERIMENT = Experiment(
    name="subspace_inference",
    claim="In five directions of SGD's trajectory, sampling and variational inference predict UCI targets better than "
    "SGD; their bands open where there are no data; and on images the NLL falls from a random subspace to the "
    "principal components and from these to the plane of a curve, all below that of the average of weights.",
    source="Izmailov, Maddox, Kirichenko, Garipov, Vetrov and Wilson 2019, Subspace inference for Bayesian deep "
    "learning, sections 5.1 to 5.3 and supplement",
    expected="Test log likelihoods of SGD, ESS and VI: boston −2.752, −2.719, −2.716; concrete −3.178, −3.007, −2.994; "
    "energy −1.736, −1.563, −1.715; yacht −0.418, −0.225, −0.396. NLL of a PreResNet-164 on CIFAR-100: SWA 0.737, "
    "random 0.686, PCA 0.665, curve 0.649.",
    differences="The least variance of the noise of the UCI networks is fixed, where the authors learn one more "
    "parameter, and temperatures were chosen on a fifth of the training rows of two splits. SGD is the last iterate of "
    "the trajectory whose average is the origin of the subspace. The regression in one dimension has nine tenths of "
    "its rows for each seed and a flat prior. Images are 5,000 of Fashion-MNIST with a LeNet of 10 and 20 filters, and "
    "the first 5,000 test images, in the place of CIFAR-100 with a PreResNet-164; curves begin at averages of "
    "trajectories.",
    recipes={"small": run.SMALL, "paper": run.PAPER},
    cost={
        "small": "one minute of one core, and two more for the table, which only the first seed runs",
        "paper": "two ResNets of 300 epochs, a curve of 600 and 120 passes of sampling: a day on one GPU (an estimate; "
        "it has not been run)",
    },
    run=run.run,
    summarise=report.summarise,
    headline=Headline(
        "test NLL of images", ("NLL",), published="published NLL", source="published, PreResNet on CIFAR-100"
    ),
)
