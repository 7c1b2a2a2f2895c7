"""Support and inductive bias: what evidence a linear model, a perceptron and a convolutional network find in images."""

from torchbayes.experiments.evidence_support.run import EXPERIMENT

__all__ = ["EXPERIMENT"]
