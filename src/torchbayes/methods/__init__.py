"""How to infer: one file per method, by family."""

from torchbayes.methods.laplace.laplace import Laplace
from torchbayes.methods.laplace.online import OnlineLaplace
from torchbayes.methods.mcmc.hmc import HMC
from torchbayes.methods.mcmc.metropolis import MALA, RandomWalk
from torchbayes.methods.mcmc.nuts import NUTS
from torchbayes.methods.optimise.map import MAP
from torchbayes.methods.optimise.optimizers import SGD, Adam, AdamW
from torchbayes.methods.optimise.swa import SWA
from torchbayes.methods.optimise.swag import SWAG
from torchbayes.methods.protocol import DivergedError
from torchbayes.methods.schedules import Constant, Cosine, Cycles, Decay, PiecewiseLinear, Steady
from torchbayes.methods.sgmcmc.sghmc import SGHMC
from torchbayes.methods.sgmcmc.sgld import SGLD
from torchbayes.methods.sgmcmc.sgnht import SGNHT

__all__ = [
    "HMC",
    "MALA",
    "MAP",
    "NUTS",
    "SGD",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "SWA",
    "SWAG",
    "Adam",
    "AdamW",
    "Constant",
    "Cosine",
    "Cycles",
    "Decay",
    "DivergedError",
    "Laplace",
    "OnlineLaplace",
    "PiecewiseLinear",
    "RandomWalk",
    "Steady",
]
