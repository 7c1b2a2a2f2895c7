"""p(w): what is believed about the weights before the data."""

from torchbayes.model.priors.mixture import NormalMixture
from torchbayes.model.priors.noise import LogInverseChi
from torchbayes.model.priors.sparse import Horseshoe, LogUniform
from torchbayes.model.priors.univariate import (
    FanInNormal,
    Flat,
    Laplace,
    Logistic,
    Normal,
    Prior,
    PriorLike,
    PriorRules,
    SampledPrior,
    ShapedPrior,
    StudentT,
    Univariate,
)

__all__ = [
    "FanInNormal",
    "Flat",
    "Horseshoe",
    "Laplace",
    "LogInverseChi",
    "LogUniform",
    "Logistic",
    "Normal",
    "NormalMixture",
    "Prior",
    "PriorLike",
    "PriorRules",
    "SampledPrior",
    "ShapedPrior",
    "StudentT",
    "Univariate",
]
