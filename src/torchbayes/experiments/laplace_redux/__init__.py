"""Laplace around a trained LeNet: confidence and detection on foreign images, calibration (Daxberger et al. 2021)."""

from torchbayes.experiments.laplace_redux.run import EXPERIMENT

__all__ = ["EXPERIMENT"]
