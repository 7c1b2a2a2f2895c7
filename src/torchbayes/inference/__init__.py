"""How to infer: one driver and one file per method."""

from torchbayes.inference.descent import DivergedError
from torchbayes.inference.fit import fit
from torchbayes.inference.hmc import HMC
from torchbayes.inference.laplace import Laplace
from torchbayes.inference.map import MAP
from torchbayes.inference.metropolis import MALA, RandomWalk
from torchbayes.inference.nuts import NUTS
from torchbayes.inference.online_laplace import OnlineLaplace
from torchbayes.inference.optimizers import SGD, Adam, AdamW
from torchbayes.inference.progress import Event
from torchbayes.inference.sample import Chains, sample
from torchbayes.inference.schedules import Constant, Cosine, Cycles, Decay, PiecewiseLinear, Steady
from torchbayes.inference.sghmc import SGHMC
from torchbayes.inference.sgld import SGLD
from torchbayes.inference.sgnht import SGNHT
from torchbayes.inference.swa import SWA
from torchbayes.inference.swag import SWAG

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
    "Chains",
    "Constant",
    "Cosine",
    "Cycles",
    "Decay",
    "DivergedError",
    "Event",
    "Laplace",
    "OnlineLaplace",
    "PiecewiseLinear",
    "RandomWalk",
    "Steady",
    "fit",
    "sample",
]
