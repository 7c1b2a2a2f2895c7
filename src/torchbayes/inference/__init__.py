"""How to infer: one driver and one file per method."""

from torchbayes.inference.descent import DivergedError as DivergedError
from torchbayes.inference.fit import fit as fit
from torchbayes.inference.map import MAP as MAP
from torchbayes.inference.optimizers import SGD as SGD
from torchbayes.inference.optimizers import Adam as Adam
from torchbayes.inference.optimizers import AdamW as AdamW
from torchbayes.inference.progress import Event as Event
from torchbayes.inference.schedules import Constant as Constant
from torchbayes.inference.schedules import Cosine as Cosine
from torchbayes.inference.schedules import PiecewiseLinear as PiecewiseLinear
from torchbayes.inference.swa import SWA as SWA
from torchbayes.inference.swag import SWAG as SWAG
