"""Inverse problems: unknown coefficients of differential equations, from data at sensors, with error bars.

A network u(x; w) stands for the solution, and every number that is observed, of u or of what the equations make of it,
is a row of one likelihood (Raissi et al. 2019; Yang et al. 2021, "B-PINNs"). `Problem` makes a `Model` of it, which
every method fits.
"""

from torchbayes.inverse.derivatives import derivatives, gradient, laplacian
from torchbayes.inverse.problem import Problem

__all__ = ["Problem", "derivatives", "gradient", "laplacian"]
