"""The log joint density and its gradient, for many members at once: the hot function, and the backends that run it."""

from torchbayes.density.density import LogDensity
from torchbayes.density.dynamics import Density, FunctionDensity, Value, ValueOnly
from torchbayes.density.plans import Plan
from torchbayes.density.ranks import Ranks
from torchbayes.native.processes import LostRankError

__all__ = ["Density", "FunctionDensity", "LogDensity", "LostRankError", "Plan", "Ranks", "Value", "ValueOnly"]
