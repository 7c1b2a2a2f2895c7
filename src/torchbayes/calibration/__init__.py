"""Calibrators of a posterior's averaged predictions, fitted on rows that were held out."""

from torchbayes.calibration.binary import LogOddsScaling, SeparableError
from torchbayes.calibration.calibrator import Calibrator, ClassCalibrator
from torchbayes.calibration.fit import Calibrated, fit, fit_calibrator, load
from torchbayes.calibration.noise import NoiseScaling
from torchbayes.calibration.scaling import LogLinear
from torchbayes.calibration.temperature import TemperatureScaling
from torchbayes.calibration.venn_abers import VennAbers

__all__ = [
    "Calibrated",
    "Calibrator",
    "ClassCalibrator",
    "LogLinear",
    "LogOddsScaling",
    "NoiseScaling",
    "SeparableError",
    "TemperatureScaling",
    "VennAbers",
    "fit",
    "fit_calibrator",
    "load",
]
