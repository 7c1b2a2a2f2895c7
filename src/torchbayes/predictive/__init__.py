"""Predictions of a posterior: the model average over draws, and closed forms of linearised networks."""

from torchbayes.predictive.average import Predictive
from torchbayes.predictive.functional import FunctionalLaplace, functional_laplace
from torchbayes.predictive.linearised import Linearised
from torchbayes.predictive.matching import LinearKernel, MatchedPrior, RBFKernel, match_prior
from torchbayes.predictive.predict import predict, stream
from torchbayes.predictive.prior import PriorPredictive, prior_predictive

__all__ = [
    "FunctionalLaplace",
    "LinearKernel",
    "Linearised",
    "MatchedPrior",
    "Predictive",
    "PriorPredictive",
    "RBFKernel",
    "functional_laplace",
    "match_prior",
    "predict",
    "prior_predictive",
    "stream",
]
