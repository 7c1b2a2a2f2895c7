"""Bayesian model averages under a shift of the inputs, and the prior that has the covariance of these (EmpCov).

Izmailov, Nicholson, Lotfi and Wilson (2021): along directions in which the training inputs do not vary, the data say
nothing of the first layer's weights, and a posterior keeps its prior there, where a mode has zeros. Test inputs that do
vary along them are multiplied by weights that mean nothing. Here the weights are looked at as well: where some pixels
are dead by hand, those of their weights have the prior's standard deviation, exactly.
"""

from torchbayes_experiments.empcov_shift import recipe, report, run
from torchbayes_experiments.experiment import Experiment

EXPERIMENT = Experiment(
    name="empcov_shift",
    claim="Under noise in the test inputs full-batch HMC with independent normal priors is far less accurate than MAP, "
    "though it is not on clean ones, because first-layer weights without data keep their prior; with the covariance of "
    "the inputs as that of these weights (EmpCov) it loses most of this.",
    source="Izmailov, Nicholson, Lotfi and Wilson 2021, Dangers of Bayesian model averaging under covariate shift",
    expected="On MNIST under Gaussian noise HMC with N(0, 1/100) collapses far below MAP, and EmpCov recovers most of "
    "it; on clean images HMC is at least as good as MAP. The paper's perceptron has 256 + 256 units and all images.",
    differences="The small scale has 1,000 images and 100 units. The covariance is that of the stated prior, α Σ + "
    "ε I; the published code has a precision in its place. α is such that the mean variance of the weights is that of "
    "the other prior. Added are digits with pixels that are dead in training and come alive in the test, and the size "
    "of the weights along directions without data.",
    recipes={"quick": recipe.QUICK, "small": recipe.SMALL, "paper": recipe.PAPER},
    cost={
        "quick": "ten to fifteen seconds of one core",
        "small": "80 seconds of one core",
        "paper": "HMC on 60,000 images: about a day on one GPU (an estimate); it has not been run",
    },
    run=run.run,
    summarise=report.summarise,
)
