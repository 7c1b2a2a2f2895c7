"""How HMC chains mix: in function space far better than in weight space (Izmailov et al. 2021, section 4)."""

from torchbayes.experiments.hmc_mixing.run import EXPERIMENT

__all__ = ["EXPERIMENT"]
