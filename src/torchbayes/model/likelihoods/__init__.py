"""p(y | f): how data arise from a network's outputs f.

A likelihood turns outputs into a torch `Distribution` and gives the log probability of each datum. Axes: outputs
(..., B, K) with any leading axes (draws, members), targets (B,) or (B, ...), or a tuple or dict of such; a datum's log
probability sums over every axis of the targets after B. Learned parameters (a noise scale) are declared by
`parameters()`; they live in the flat vector under `likelihood.NAME` and reach the likelihood as a mapping.
"""

from torchbayes.model.likelihoods.binary import Bernoulli, Probit
from torchbayes.model.likelihoods.categorical import Categorical
from torchbayes.model.likelihoods.custom import Custom
from torchbayes.model.likelihoods.gaussian import Gaussian, HeteroscedasticGaussian, StudentT
from torchbayes.model.likelihoods.poisson import Poisson
from torchbayes.model.likelihoods.protocol import Learned, Likelihood, Parameters
from torchbayes.model.likelihoods.weighted import Weighted

__all__ = [
    "Bernoulli",
    "Categorical",
    "Custom",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Learned",
    "Likelihood",
    "Parameters",
    "Poisson",
    "Probit",
    "StudentT",
    "Weighted",
]
