"""Bayesian compression: networks without the units and weights that are noise, in as few bits as they need."""

from torchbayes.compression.compress import compress, prune, unit_noise
from torchbayes.compression.compressed import Compressed, load
from torchbayes.compression.rounding import Rounding
from torchbayes.compression.surgery import PickedLinear, Surgery

__all__ = ["Compressed", "PickedLinear", "Rounding", "Surgery", "compress", "load", "prune", "unit_noise"]
