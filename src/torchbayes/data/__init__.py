"""Data: sets by name, corruptions of images, and out-of-distribution images."""

from torchbayes.data.base import Data, Pair, Standardise
from torchbayes.data.corruptions import CORRUPTIONS, corrupt, corrupt_data
from torchbayes.data.datasets import load, names, num_splits
from torchbayes.data.ood import ood_names, out_of_distribution

__all__ = [
    "CORRUPTIONS",
    "Data",
    "Pair",
    "Standardise",
    "corrupt",
    "corrupt_data",
    "load",
    "names",
    "num_splits",
    "ood_names",
    "out_of_distribution",
]
