"""What the posterior looks like: permutations, barriers, loss surfaces, spectra and volumes.

All functions take a `Model`, weights of its network (a posterior, a module or a tensor) and data as `fit` does.
"""

from torchbayes.geometry.learning import LearningCoefficient, learning_coefficient
from torchbayes.geometry.spectra import Estimate, Spectrum, spectrum, trace
from torchbayes.geometry.volumes import Basin, basin

__all__ = [
    "Basin",
    "Estimate",
    "LearningCoefficient",
    "Spectrum",
    "basin",
    "learning_coefficient",
    "spectrum",
    "trace",
]
