"""Assessment of posteriors: metrics on data, and convergence of chains."""

from torchbayes.assess.diagnose import Diagnosis, diagnose
from torchbayes.assess.evaluate import Evaluation, TemperatureScaling, detection, evaluate, fidelity, uncertainty

__all__ = [
    "Diagnosis",
    "Evaluation",
    "TemperatureScaling",
    "detection",
    "diagnose",
    "evaluate",
    "fidelity",
    "uncertainty",
]
