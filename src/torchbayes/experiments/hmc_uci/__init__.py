"""UCI regression by full-batch HMC beside SGD and SGLD, as in Izmailov et al. (2021), section 6."""

from torchbayes.experiments.hmc_uci.run import EXPERIMENT

__all__ = ["EXPERIMENT"]
