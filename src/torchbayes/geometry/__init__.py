"""What the posterior looks like: permutations, barriers, loss surfaces, spectra and volumes.

All functions take a `Model`, weights of its network (a posterior, a module or a tensor) and data as `fit` does.
"""

from torchbayes.geometry.alignment import align
from torchbayes.geometry.barriers import Barrier, barrier
from torchbayes.geometry.permutations import PermutationGroup, PermutationGroups, permutation_groups

__all__ = ["Barrier", "PermutationGroup", "PermutationGroups", "align", "barrier", "permutation_groups"]
