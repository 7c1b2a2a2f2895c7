"""What inference returns: distributions over weights from which functions are drawn."""

from torchbayes.posteriors.draws import Draws
from torchbayes.posteriors.functions import Functions
from torchbayes.posteriors.gaussian import Gaussian
from torchbayes.posteriors.laplace import LaplacePosterior, as_prior
from torchbayes.posteriors.load import load
from torchbayes.posteriors.point import Point
from torchbayes.posteriors.posterior import Posterior

__all__ = ["Draws", "Functions", "Gaussian", "LaplacePosterior", "Point", "Posterior", "as_prior", "load"]
