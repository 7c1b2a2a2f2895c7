"""How to infer: one driver and one file per method."""

from torchbayes.inference.descent import DivergedError
from torchbayes.inference.fit import fit
from torchbayes.inference.map import MAP
from torchbayes.inference.optimizers import SGD, Adam, AdamW
from torchbayes.inference.progress import Event
from torchbayes.inference.schedules import Constant, Cosine, PiecewiseLinear
from torchbayes.inference.swa import SWA
from torchbayes.inference.swag import SWAG

__all__ = [
    "MAP",
    "SGD",
    "SWA",
    "SWAG",
    "Adam",
    "AdamW",
    "Constant",
    "Cosine",
    "DivergedError",
    "Event",
    "PiecewiseLinear",
    "fit",
]
