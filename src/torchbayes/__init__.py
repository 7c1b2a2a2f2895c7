"""Bayesian deep learning for PyTorch: posteriors over networks, and their model average.

Three verbs, `fit`, `predict` and `evaluate`, on four nouns: `Model`, a method such as `SWAG`, a posterior, and the
`Predictive` it gives.
"""

from importlib import import_module
from types import ModuleType

from torchbayes import calibration
from torchbayes.acquisition.acquire import Acquired, acquire
from torchbayes.assess.approximation import Approximation
from torchbayes.assess.diagnose import Diagnosis, diagnose
from torchbayes.assess.difference import Difference, difference
from torchbayes.assess.evaluate import Evaluation, detection, evaluate, fidelity, uncertainty
from torchbayes.assess.inference_data import to_arviz
from torchbayes.assess.leave_one_out import LeaveOneOut, loo
from torchbayes.assess.stacking import stack
from torchbayes.calibration import TemperatureScaling
from torchbayes.calls import explain_constructors as _explain_constructors
from torchbayes.catalogue import methods as _methods
from torchbayes.catalogue.methods import *  # noqa: F403  (every method that the catalogue has)
from torchbayes.certificate import Budget, Certificate, Check, certify
from torchbayes.continual import Learned, Task, coresets, sequence
from torchbayes.decisions.decide import decide
from torchbayes.density import FunctionDensity, LogDensity, LostRankError, Ranks
from torchbayes.distillation.distill import distill
from torchbayes.driver import Chains, Event, Progress, Tracker, sample
from torchbayes.methods.laplace.subnetwork import subnetwork
from torchbayes.methods.laplace.tuning import tune
from torchbayes.methods.optimise.collector import Collector
from torchbayes.methods.optimise.optimizers import SGD, Adam, AdamW
from torchbayes.methods.optimise.sam import SAM
from torchbayes.methods.protocol import DivergedError
from torchbayes.methods.schedules import Constant, Cosine, Cycles, Decay, PiecewiseLinear, Steady
from torchbayes.methods.variational.weighting import Halving, WarmUp
from torchbayes.model import Batch, Model, likelihoods, priors
from torchbayes.model.parameters import Parameters, ordered
from torchbayes.model.subspace import Subspace
from torchbayes.posteriors import (
    BatchNormPosterior,
    CurvePosterior,
    Draws,
    DropoutPosterior,
    FlowPosterior,
    Functions,
    Gaussian,
    InSubspace,
    LaplacePosterior,
    MNFPosterior,
    ModelAverage,
    Point,
    Posterior,
    PredictiveModule,
    ProblemWarning,
    RadialPosterior,
    SimplexPosterior,
    WeightedMixture,
    as_prior,
    load,
    load_module,
)
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.functional import FunctionalLaplace, functional_laplace
from torchbayes.predictive.linearised import Linearised
from torchbayes.predictive.matching import LinearKernel, MatchedPrior, RBFKernel, match_prior
from torchbayes.predictive.predict import predict, stream
from torchbayes.predictive.prior import PriorPredictive, prior_predictive
from torchbayes.predictive.propagated import Propagated
from torchbayes.randomness.seeds import member_seeds
from torchbayes.selection import fit

__version__ = "0.1.0"

_ROOMS = (
    "acquisition",
    "adapters",
    "botorch",
    "compression",
    "conformal",
    "data",
    "distillation",
    "experiments",
    "forecasting",
    "geometry",
    "hub",
    "lora",
    "metrics",
    "networks",
    "report",
    "trainers",
)


def __getattr__(name: str) -> ModuleType:
    """Return a package, imported when first used, because not every program needs `torchbayes.data` and the like."""
    if name in _ROOMS:
        return import_module(f"torchbayes.{name}")
    raise AttributeError(f"module 'torchbayes' has no attribute {name!r}")


__all__ = [
    "SAM",
    "SGD",
    "Acquired",
    "Adam",
    "AdamW",
    "Approximation",
    "Batch",
    "BatchNormPosterior",
    "Budget",
    "Certificate",
    "Chains",
    "Check",
    "Collector",
    "Constant",
    "Cosine",
    "CurvePosterior",
    "Cycles",
    "Decay",
    "Diagnosis",
    "Difference",
    "DivergedError",
    "Draws",
    "DropoutPosterior",
    "Evaluation",
    "Event",
    "FlowPosterior",
    "FunctionDensity",
    "FunctionalLaplace",
    "Functions",
    "Gaussian",
    "Halving",
    "InSubspace",
    "LaplacePosterior",
    "Learned",
    "LeaveOneOut",
    "LinearKernel",
    "Linearised",
    "LogDensity",
    "LostRankError",
    "MNFPosterior",
    "MatchedPrior",
    "Model",
    "ModelAverage",
    "Parameters",
    "PiecewiseLinear",
    "Point",
    "Posterior",
    "Predictive",
    "PredictiveModule",
    "PriorPredictive",
    "ProblemWarning",
    "Progress",
    "Propagated",
    "RBFKernel",
    "RadialPosterior",
    "Ranks",
    "SimplexPosterior",
    "Steady",
    "Subspace",
    "Task",
    "TemperatureScaling",
    "Tracker",
    "WarmUp",
    "WeightedMixture",
    "__version__",
    "acquire",
    "as_prior",
    "calibration",
    "certify",
    "coresets",
    "decide",
    "detection",
    "diagnose",
    "difference",
    "distill",
    "evaluate",
    "fidelity",
    "fit",
    "functional_laplace",
    "likelihoods",
    "load",
    "load_module",
    "loo",
    "match_prior",
    "member_seeds",
    "ordered",
    "predict",
    "prior_predictive",
    "priors",
    "sample",
    "sequence",
    "stack",
    "stream",
    "subnetwork",
    "to_arviz",
    "tune",
    "uncertainty",
]
__all__ += _methods.__all__

_explain_constructors(globals(), vars(likelihoods), vars(priors))
