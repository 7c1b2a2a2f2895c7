"""HMC as the reference: how close cheaper methods come to the posterior (Izmailov et al. 2021, sections 5 and 7)."""

from torchbayes.experiments.hmc_reference.run import EXPERIMENT

__all__ = ["EXPERIMENT"]
