"""What inference returns: distributions over weights from which functions are drawn."""

from torchbayes.posteriors.draws import Draws as Draws
from torchbayes.posteriors.functions import Functions as Functions
from torchbayes.posteriors.gaussian import Gaussian as Gaussian
from torchbayes.posteriors.load import load as load
from torchbayes.posteriors.point import Point as Point
from torchbayes.posteriors.posterior import Posterior as Posterior
