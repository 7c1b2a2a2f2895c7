"""Full-batch HMC on 160 MNIST images, the setting that comes with the code of Izmailov et al. (2021)."""

from torchbayes.experiments.hmc_mnist.run import EXPERIMENT

__all__ = ["EXPERIMENT"]
