"""What a posterior is worth: metrics on data, and whether chains have converged."""

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
