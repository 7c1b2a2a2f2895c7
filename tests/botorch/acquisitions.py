"""How each acquisition function of BoTorch is made, with the number of points at which it is judged."""

import importlib
import inspect
import pkgutil
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("botorch")

import botorch.acquisition
from botorch.acquisition import PosteriorMean, UpperConfidenceBound
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.multi_objective.utils import compute_sample_box_decomposition
from botorch.acquisition.objective import LinearMCObjective
from botorch.acquisition.penalized import L2Penalty
from botorch.models import ModelList
from botorch.sampling import SobolQMCNormalSampler
from botorch.sampling.list_sampler import ListSampler
from botorch.utils.multi_objective.box_decompositions import FastNondominatedPartitioning, NondominatedPartitioning

from tests.botorch.cases import points

_BASES = {"FullyBayesianAcquisitionFunction", "DecoupledAcquisitionFunction"}  # without `forward`


def kinds() -> dict[str, Any]:
    """The acquisition functions of BoTorch that can be made, by name."""
    classes: dict[str, Any] = {}
    for actual in pkgutil.walk_packages(botorch.acquisition.__path__, "botorch.acquisition."):
        for name, kind in vars(importlib.import_module(actual.name)).items():
            mine = inspect.isclass(kind) and issubclass(kind, AcquisitionFunction) and kind.__module__ == actual.name
            if mine and not inspect.isabstract(kind) and name not in _BASES:
                classes[name] = kind
    return classes


def sampler(count: int = 16) -> SobolQMCNormalSampler:
    return SobolQMCNormalSampler(torch.Size([count]), seed=0)


def below(samples: Tensor) -> Tensor:
    """A constraint that holds where it is below 0."""
    return samples[..., 0] - 0.5


class Centre(nn.Module):
    """A belief that the optimum is near 0."""

    def forward(self, X: Tensor) -> Tensor:
        return (-X.square().sum(-1)).exp()


ROWS, REF = points(6, 2, seed=21), [-1.0, -1.0]
FRONT = torch.tensor(REF).double(), torch.tensor([[0.3, 0.1], [0.0, 0.4]]).double()
PARETO = {"pareto_sets": points(2, 3, 2, seed=24), "pareto_fronts": points(2, 3, 2, seed=25)}
ONES = torch.ones(2).double()


def improvement(**more: Any) -> dict[str, Any]:
    return {"best_f": 0.1, **more}


def over_rows(**more: Any) -> dict[str, Any]:
    return {"X_baseline": ROWS, "sampler": sampler(), "prune_baseline": False, **more}


def volume(kind: Any = FastNondominatedPartitioning, **more: Any) -> dict[str, Any]:
    return {"ref_point": REF, "partitioning": kind(*FRONT), **more}


def two_models(**more: Any) -> dict[str, Any]:
    both = {"sampler": ListSampler(sampler(2), sampler(2)), "inner_sampler": sampler(4)}
    return {"ref_point": FRONT[0], "num_fantasies": 2, "num_pareto": 4, **both, **more}


def constrained() -> dict[str, Any]:
    return {"constraints": {1: (None, 0.5)}}


# name -> (targets, q, settings)
MADE: dict[str, tuple[int, int, Any]] = {
    "qNegIntegratedPosteriorVariance": (1, 2, lambda: {"mc_points": ROWS, "sampler": sampler(1)}),
    "PairwiseMCPosteriorVariance": (1, 2, lambda: {"objective": LinearMCObjective(ONES[:1]), "sampler": sampler()}),
    "LogProbabilityOfImprovement": (1, 1, improvement),
    "ProbabilityOfImprovement": (1, 1, improvement),
    "qAnalyticProbabilityOfImprovement": (1, 2, improvement),
    "ExpectedImprovement": (1, 1, improvement),
    "LogExpectedImprovement": (1, 1, improvement),
    "LogConstrainedExpectedImprovement": (2, 1, lambda: improvement(objective_index=0, **constrained())),
    "LogProbabilityOfFeasibility": (2, 1, constrained),
    "ConstrainedExpectedImprovement": (2, 1, lambda: improvement(objective_index=0, **constrained())),
    "LogNoisyExpectedImprovement": (1, 1, lambda: {"X_observed": ROWS}),
    "NoisyExpectedImprovement": (1, 1, lambda: {"X_observed": ROWS}),
    "UpperConfidenceBound": (1, 1, lambda: {"beta": 2.0}),
    "PosteriorMean": (1, 1, dict),
    "ScalarizedPosteriorMean": (1, 2, lambda: {"weights": ONES}),
    "PosteriorStandardDeviation": (1, 1, dict),
    "qBayesianActiveLearningByDisagreement": (1, 2, dict),
    "FixedFeatureAcquisitionFunction": (1, 1, lambda: {"d": 2, "columns": [1], "values": [0.4]}),
    "qJointEntropySearch": (
        1,
        1,
        lambda: {"optimal_inputs": points(3, 2, seed=22), "optimal_outputs": points(3, 1, seed=23)},
    ),
    "qKnowledgeGradient": (1, 4, lambda: {"num_fantasies": 2, "sampler": sampler(2)}),
    "qMultiFidelityKnowledgeGradient": (1, 4, lambda: {"num_fantasies": 2, "sampler": sampler(2)}),
    "ProjectedAcquisitionFunction": (1, 1, lambda: {"project": torch.sin}),
    "qLogExpectedImprovement": (1, 2, lambda: improvement(sampler=sampler())),
    "qLogNoisyExpectedImprovement": (1, 2, over_rows),
    "qLogProbabilityOfFeasibility": (1, 2, lambda: {"constraints": [below], "sampler": sampler()}),
    "qMaxValueEntropy": (1, 1, lambda: {"candidate_set": ROWS}),
    "qLowerBoundMaxValueEntropy": (1, 1, lambda: {"candidate_set": ROWS}),
    "qMultiFidelityMaxValueEntropy": (1, 1, lambda: {"candidate_set": ROWS}),
    "qMultiFidelityLowerBoundMaxValueEntropy": (1, 1, lambda: {"candidate_set": ROWS}),
    "qExpectedImprovement": (1, 2, lambda: improvement(sampler=sampler())),
    "qNoisyExpectedImprovement": (1, 2, over_rows),
    "qProbabilityOfImprovement": (1, 2, lambda: improvement(sampler=sampler(), tau=0.1)),
    "qSimpleRegret": (1, 2, lambda: {"sampler": sampler()}),
    "qUpperConfidenceBound": (1, 2, lambda: {"beta": 2.0, "sampler": sampler()}),
    "qLowerConfidenceBound": (1, 2, lambda: {"beta": 2.0, "sampler": sampler()}),
    "qPosteriorStandardDeviation": (1, 2, lambda: {"sampler": sampler()}),
    "ExpectedHypervolumeImprovement": (2, 1, lambda: volume(NondominatedPartitioning)),
    "qHypervolumeKnowledgeGradient": (2, 9, two_models),
    "qMultiFidelityHypervolumeKnowledgeGradient": (2, 9, lambda: two_models(target_fidelities={1: 1.0})),
    "qLowerBoundMultiObjectiveJointEntropySearch": (
        2,
        1,
        lambda: {**PARETO, "hypercell_bounds": compute_sample_box_decomposition(PARETO["pareto_fronts"])},
    ),
    "qLogExpectedHypervolumeImprovement": (2, 2, lambda: volume(sampler=sampler())),
    "qLogNoisyExpectedHypervolumeImprovement": (2, 2, lambda: over_rows(ref_point=REF)),
    "qLowerBoundMultiObjectiveMaxValueEntropySearch": (
        2,
        1,
        lambda: {"hypercell_bounds": compute_sample_box_decomposition(PARETO["pareto_fronts"])},
    ),
    "qExpectedHypervolumeImprovement": (2, 2, lambda: volume(sampler=sampler())),
    "qNoisyExpectedHypervolumeImprovement": (2, 2, lambda: over_rows(ref_point=REF)),
    "MOMF": (2, 2, lambda: volume(sampler=sampler())),
    "qLogNParEGO": (2, 2, lambda: over_rows(scalarization_weights=ONES / 2)),
    "qMultiObjectivePredictiveEntropySearch": (2, 1, lambda: {"pareto_sets": PARETO["pareto_sets"]}),
    "qMultiStepLookahead": (1, 3, lambda: {"batch_sizes": [1], "samplers": [sampler(2)]}),
    "MultiOutputPosteriorMean": (2, 1, dict),
    "MultiOutputAcquisitionFunctionWrapper": (1, 1, dict),
    "PenalizedAcquisitionFunction": (
        1,
        1,
        lambda: {"penalty_func": L2Penalty(torch.zeros(2).double()), "regularization_parameter": 0.1},
    ),
    "qPredictiveEntropySearch": (1, 1, lambda: {"optimal_inputs": points(3, 2, seed=22)}),
    "AnalyticExpectedUtilityOfBestOption": (1, 2, dict),
    "qExpectedUtilityOfBestOption": (1, 2, lambda: {"sampler": sampler()}),
    "PairwiseBayesianActiveLearningByDisagreement": (1, 2, dict),
    "PriorGuidedAcquisitionFunction": (1, 1, lambda: {"prior_module": Centre()}),
    "ProximalAcquisitionFunction": (1, 1, lambda: {"proximal_weights": ONES}),
    "PathwiseThompsonSampling": (1, 1, dict),
}
_WRAPPERS = {
    "FixedFeatureAcquisitionFunction",
    "ProjectedAcquisitionFunction",
    "PenalizedAcquisitionFunction",
    "PriorGuidedAcquisitionFunction",
    "ProximalAcquisitionFunction",
}


def made(name: str, model: Any) -> Any:
    """Return the acquisition function of a surrogate."""
    kind, settings = kinds()[name], MADE[name][2]()
    if name == "MultiOutputAcquisitionFunctionWrapper":
        return kind([PosteriorMean(model), UpperConfidenceBound(model, 2.0)])
    if "Hypervolume" in name and "KnowledgeGradient" in name:  # these choose which target to evaluate
        return kind(ModelList(model.subset_output([0]), model.subset_output([1])), **settings)
    return kind(UpperConfidenceBound(model, 2.0) if name in _WRAPPERS else model, **settings)
