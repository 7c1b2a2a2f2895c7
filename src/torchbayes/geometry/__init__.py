"""What the posterior looks like: permutations, barriers, loss surfaces, spectra and volumes.

All functions take a `Model`, weights of its network (a posterior, a module or a tensor) and data as `fit` does.
"""

from torchbayes.geometry.alignment import align
from torchbayes.geometry.barriers import Barrier, Interior, barrier, interior
from torchbayes.geometry.lanczos import Leading
from torchbayes.geometry.learning import LearningCoefficient, learning_coefficient
from torchbayes.geometry.spectra import Estimate, Spectrum, curved_directions, spectrum, trace
from torchbayes.geometry.surfaces import Plane, Rays, Surface, rays, surface
from torchbayes.geometry.symmetry.permutations import PermutationGroup, PermutationGroups, permutation_groups
from torchbayes.geometry.volumes import Basin, basin

__all__ = [
    "Barrier",
    "Basin",
    "Estimate",
    "Interior",
    "Leading",
    "LearningCoefficient",
    "PermutationGroup",
    "PermutationGroups",
    "Plane",
    "Rays",
    "Spectrum",
    "Surface",
    "align",
    "barrier",
    "basin",
    "curved_directions",
    "interior",
    "learning_coefficient",
    "permutation_groups",
    "rays",
    "spectrum",
    "surface",
    "trace",
]
