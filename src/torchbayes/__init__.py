"""Bayesian deep learning for PyTorch: posteriors over networks, and their model average.

Three verbs, `fit`, `predict` and `evaluate`, on four nouns: `Model`, a method such as `SWAG`, a posterior, and the
`Predictive` it gives.
"""

from torchbayes.evaluate import Evaluation as Evaluation
from torchbayes.evaluate import TemperatureScaling as TemperatureScaling
from torchbayes.evaluate import detection as detection
from torchbayes.evaluate import evaluate as evaluate
from torchbayes.evaluate import fidelity as fidelity
from torchbayes.evaluate import uncertainty as uncertainty
from torchbayes.inference import MAP as MAP
from torchbayes.inference import SGD as SGD
from torchbayes.inference import SWA as SWA
from torchbayes.inference import SWAG as SWAG
from torchbayes.inference import Adam as Adam
from torchbayes.inference import AdamW as AdamW
from torchbayes.inference import Constant as Constant
from torchbayes.inference import Cosine as Cosine
from torchbayes.inference import DivergedError as DivergedError
from torchbayes.inference import Event as Event
from torchbayes.inference import PiecewiseLinear as PiecewiseLinear
from torchbayes.inference import fit as fit
from torchbayes.model import Batch as Batch
from torchbayes.model import FunctionDensity as FunctionDensity
from torchbayes.model import LogDensity as LogDensity
from torchbayes.model import Model as Model
from torchbayes.model import likelihoods as likelihoods
from torchbayes.model import member_seeds as member_seeds
from torchbayes.model import priors as priors
from torchbayes.posteriors import Draws as Draws
from torchbayes.posteriors import Functions as Functions
from torchbayes.posteriors import Gaussian as Gaussian
from torchbayes.posteriors import Point as Point
from torchbayes.posteriors import load as load
from torchbayes.predictive import Predictive as Predictive
from torchbayes.predictive import predict as predict
from torchbayes.predictive import stream as stream

__version__ = "0.1.0"
