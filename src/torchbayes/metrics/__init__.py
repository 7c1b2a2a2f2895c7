"""Pure tensor functions that score predictions, independent of models, posteriors and loaders.

Scores against targets (``scoring``), calibration and its repair (``calibration``, ``temperature``), confusions and
referral (``decisions``), detection of inputs out of distribution (``ood``), fidelity to a reference predictive
(``fidelity``) and entropies (``uncertainty``).

Inputs are float32 or float64 tensors on any device with float64 (move tensors from Apple's MPS to the CPU first).
Elementwise work runs in their dtype, sums over points in float64. A score of a whole set is a 0-d float64 tensor on the
device of the inputs; a value for each point keeps the dtype of the input. Wrong inputs raise TypeError or ValueError.
"""

from torchbayes.metrics._checks import weighted_mean
from torchbayes.metrics.calibration import (
    Reliability,
    central_level,
    ece,
    ece_mass,
    interval_coverage,
    interval_score,
    quantile_calibration,
    reliability,
)
from torchbayes.metrics.decisions import RiskCoverage, Selection, confusion, risk_coverage, selective_accuracy
from torchbayes.metrics.fidelity import agreement, total_variation, wasserstein1
from torchbayes.metrics.ood import aupr, auroc, fpr95
from torchbayes.metrics.scoring import accuracy, brier, crps_draws, crps_gaussian, crps_normals, nll, rmse
from torchbayes.metrics.temperature import fit_temperature
from torchbayes.metrics.uncertainty import entropy, expected_entropy, mutual_information

__all__ = [
    "Reliability",
    "RiskCoverage",
    "Selection",
    "accuracy",
    "agreement",
    "aupr",
    "auroc",
    "brier",
    "central_level",
    "confusion",
    "crps_draws",
    "crps_gaussian",
    "crps_normals",
    "ece",
    "ece_mass",
    "entropy",
    "expected_entropy",
    "fit_temperature",
    "fpr95",
    "interval_coverage",
    "interval_score",
    "mutual_information",
    "nll",
    "quantile_calibration",
    "reliability",
    "risk_coverage",
    "rmse",
    "selective_accuracy",
    "total_variation",
    "wasserstein1",
    "weighted_mean",
]
