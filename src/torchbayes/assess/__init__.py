"""Assessment of posteriors: metrics on data, and convergence of chains."""

from torchbayes.assess.diagnose import Diagnosis, diagnose
from torchbayes.assess.difference import Difference, difference
from torchbayes.assess.evaluate import Evaluation, detection, evaluate, fidelity, uncertainty
from torchbayes.assess.inference_data import to_arviz
from torchbayes.assess.leave_one_out import LeaveOneOut, loo
from torchbayes.assess.stacking import stack

__all__ = [
    "Diagnosis",
    "Difference",
    "Evaluation",
    "LeaveOneOut",
    "detection",
    "diagnose",
    "difference",
    "evaluate",
    "fidelity",
    "loo",
    "stack",
    "to_arviz",
    "uncertainty",
]
