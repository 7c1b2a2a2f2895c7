"""Rethinking generalisation: labels that are fitted without a mistake, and evidence that falls with their disorder."""

from torchbayes.experiments.evidence_random_labels.run import EXPERIMENT

__all__ = ["EXPERIMENT"]
