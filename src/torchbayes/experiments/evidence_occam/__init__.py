"""Occam's razor by the evidence: width and prior scale of a network for regression (MacKay 1992, Immer et al. 2021)."""

from torchbayes.experiments.evidence_occam.run import EXPERIMENT

__all__ = ["EXPERIMENT"]
