"""The model: network, likelihood, prior, and the log joint density they define."""

from torchbayes.model import likelihoods, priors
from torchbayes.model.density import LogDensity
from torchbayes.model.dynamics import Density, FunctionDensity, Value
from torchbayes.model.layout import Layout
from torchbayes.model.model import Batch, Model
from torchbayes.model.network import Network
from torchbayes.model.ranks import LostRankError, Ranks
from torchbayes.model.seeds import member_seeds
from torchbayes.model.ways import Plan

__all__ = [
    "Batch",
    "Density",
    "FunctionDensity",
    "Layout",
    "LogDensity",
    "LostRankError",
    "Model",
    "Network",
    "Plan",
    "Ranks",
    "Value",
    "likelihoods",
    "member_seeds",
    "priors",
]
