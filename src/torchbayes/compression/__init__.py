"""Bayesian compression: networks without the units and weights that are noise, in as few bits as they need."""

from torchbayes.compression.compress import compress, prune, unit_noise
from torchbayes.compression.compressed import Compressed, load

__all__ = ["Compressed", "compress", "load", "prune", "unit_noise"]
