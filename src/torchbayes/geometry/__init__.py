"""What the posterior looks like: permutations, barriers, loss surfaces, spectra and volumes.

All functions take a `Model`, weights of its network (a posterior, a module or a tensor) and data as `fit` does.
"""

from torchbayes.geometry.spectra import Estimate, Spectrum, spectrum, trace

__all__ = ["Estimate", "Spectrum", "spectrum", "trace"]
