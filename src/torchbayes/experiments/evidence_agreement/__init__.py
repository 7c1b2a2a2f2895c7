"""The log evidence of small networks by estimators that share nothing: do they agree, and when does Laplace?"""

from torchbayes.experiments.evidence_agreement.run import EXPERIMENT

__all__ = ["EXPERIMENT"]
