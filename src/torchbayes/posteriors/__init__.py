"""What inference returns: distributions over weights from which functions are drawn."""

from torchbayes.posteriors.curves.curve import CurvePosterior
from torchbayes.posteriors.curves.simplex import SimplexPosterior
from torchbayes.posteriors.draws import Draws
from torchbayes.posteriors.flows.posterior import FlowPosterior, MNFPosterior
from torchbayes.posteriors.functions import Functions
from torchbayes.posteriors.gaussian import Gaussian
from torchbayes.posteriors.laplace import LaplacePosterior, as_prior
from torchbayes.posteriors.layers.batch_norm import BatchNormPosterior
from torchbayes.posteriors.layers.dropout import DropoutPosterior
from torchbayes.posteriors.layers.radial import RadialPosterior
from torchbayes.posteriors.load import load, load_module
from torchbayes.posteriors.mixtures.weighted import WeightedMixture
from torchbayes.posteriors.modules.module import ModelAverage, PredictiveModule
from torchbayes.posteriors.point import Point
from torchbayes.posteriors.posterior import Posterior
from torchbayes.posteriors.problems import ProblemWarning
from torchbayes.posteriors.subspace import InSubspace

__all__ = [
    "BatchNormPosterior",
    "CurvePosterior",
    "Draws",
    "DropoutPosterior",
    "FlowPosterior",
    "Functions",
    "Gaussian",
    "InSubspace",
    "LaplacePosterior",
    "MNFPosterior",
    "ModelAverage",
    "Point",
    "Posterior",
    "PredictiveModule",
    "ProblemWarning",
    "RadialPosterior",
    "SimplexPosterior",
    "WeightedMixture",
    "as_prior",
    "load",
    "load_module",
]
