"""Conformal prediction: intervals and sets that hold as many targets as they say, whatever the model."""

from torchbayes.conformal.calibrate import calibrate
from torchbayes.conformal.classes import APS, LAC, RAPS, ClassScore
from torchbayes.conformal.conformal import Conformal, load
from torchbayes.conformal.jackknife import jackknife_intervals
from torchbayes.conformal.laplace import Jackknife, jackknife
from torchbayes.conformal.numbers import CQR, PIT, Absolute, Density, Forecast, Normalised, NumberScore
from torchbayes.conformal.ranks import Threshold

__all__ = [
    "APS",
    "CQR",
    "LAC",
    "PIT",
    "RAPS",
    "Absolute",
    "ClassScore",
    "Conformal",
    "Density",
    "Forecast",
    "Jackknife",
    "Normalised",
    "NumberScore",
    "Threshold",
    "calibrate",
    "jackknife",
    "jackknife_intervals",
    "load",
]
