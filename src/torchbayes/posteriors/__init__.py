"""What inference returns: distributions over weights from which functions are drawn."""

from torchbayes.posteriors.draws import Draws
from torchbayes.posteriors.functions import Functions
from torchbayes.posteriors.gaussian import Gaussian
from torchbayes.posteriors.laplace import LaplacePosterior, as_prior
from torchbayes.posteriors.load import load
from torchbayes.posteriors.point import Point
from torchbayes.posteriors.posterior import Posterior
from torchbayes.posteriors.problems import ProblemWarning
from torchbayes.posteriors.subspace import InSubspace

__all__ = [
    "Draws",
    "Functions",
    "Gaussian",
    "InSubspace",
    "LaplacePosterior",
    "Point",
    "Posterior",
    "ProblemWarning",
    "as_prior",
    "load",
]
