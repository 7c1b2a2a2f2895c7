"""p(w): what is believed about the weights before the data."""

from torchbayes.model.priors.correlated import Correlated, EmpCov
from torchbayes.model.priors.groups import FanInNormal, Hierarchical, LogHalfCauchy
from torchbayes.model.priors.mixture import NormalMixture
from torchbayes.model.priors.multiplied import GroupHorseshoe, GroupNormalJeffreys, LogHalfNormal, with_multipliers
from torchbayes.model.priors.noise import LogInverseChi
from torchbayes.model.priors.scales import Scaled, with_scales
from torchbayes.model.priors.sparse import Horseshoe, LogUniform
from torchbayes.model.priors.univariate import (
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
    "Correlated",
    "EmpCov",
    "FanInNormal",
    "Flat",
    "GroupHorseshoe",
    "GroupNormalJeffreys",
    "Hierarchical",
    "Horseshoe",
    "Laplace",
    "LogHalfCauchy",
    "LogHalfNormal",
    "LogInverseChi",
    "LogUniform",
    "Logistic",
    "Normal",
    "NormalMixture",
    "Prior",
    "PriorLike",
    "PriorRules",
    "SampledPrior",
    "Scaled",
    "ShapedPrior",
    "StudentT",
    "Univariate",
    "with_multipliers",
    "with_scales",
]
