"""Assessment of posteriors: metrics on data, and convergence of chains."""

from torchbayes.assess.diagnose import Diagnosis, diagnose
from torchbayes.assess.difference import Difference, difference
from torchbayes.assess.evaluate import Evaluation, TemperatureScaling, detection, evaluate, fidelity, uncertainty

__all__ = [
    "Diagnosis",
    "Difference",
    "Evaluation",
    "TemperatureScaling",
    "detection",
    "diagnose",
    "difference",
    "evaluate",
    "fidelity",
    "uncertainty",
]
