"""Assessment of posteriors: metrics on data, and convergence of chains."""

from torchbayes.assess.diagnose import Diagnosis, diagnose
from torchbayes.assess.difference import Difference, difference
from torchbayes.assess.evaluate import Evaluation, detection, evaluate, fidelity, uncertainty

__all__ = [
    "Diagnosis",
    "Difference",
    "Evaluation",
    "detection",
    "diagnose",
    "difference",
    "evaluate",
    "fidelity",
    "uncertainty",
]
