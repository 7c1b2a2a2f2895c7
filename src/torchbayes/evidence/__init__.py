"""log p(D) = log ∫ p(D|w) p(w) dw: Monte Carlo estimators with error bars, and the closed form of linear models.

Start with `annealed_importance_sampling`: it is unbiased on the natural scale, whatever the modes. `reverse_annealing`
needs draws of the posterior; the two bracket the log evidence. `thermodynamic_integration` needs chains that mix.
`prior_monte_carlo` is a check for tiny problems, `linear_gaussian_evidence` exact where it applies. All take a `Model`
and its data as `fit` does, all but the last a `FunctionTarget` too, and return an `Evidence`.
"""

from torchbayes.evidence.annealing import annealed_importance_sampling, prior_monte_carlo, reverse_annealing
from torchbayes.evidence.estimate import Evidence
from torchbayes.evidence.integration import thermodynamic_integration
from torchbayes.evidence.linear import linear_gaussian_evidence
from torchbayes.evidence.path import AnnealedDensity, FunctionTarget, ModelTarget
from torchbayes.evidence.pilot import power, sigmoidal

__all__ = [
    "AnnealedDensity",
    "Evidence",
    "FunctionTarget",
    "ModelTarget",
    "annealed_importance_sampling",
    "linear_gaussian_evidence",
    "power",
    "prior_monte_carlo",
    "reverse_annealing",
    "sigmoidal",
    "thermodynamic_integration",
]
