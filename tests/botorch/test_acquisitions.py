"""Every acquisition function of BoTorch, on drawn functions and on the normal form: it runs, or it says why not."""

from typing import Any

import pytest
import torch

pytest.importorskip("botorch")

from botorch.acquisition.multi_objective import logei
from botorch.exceptions.errors import UnsupportedError

from tests.botorch.acquisitions import MADE, kinds, made
from tests.botorch.cases import drawn_networks, points
from tests.oracles import assert_close
from torchbayes.botorch import PosteriorModel

# by BoTorch, in its own words
REFUSED = {
    "LogNoisyExpectedImprovement": (UnsupportedError, "Only single-output `SingleTaskGP` models with known"),
    "NoisyExpectedImprovement": (UnsupportedError, "Only single-output `SingleTaskGP` models with known"),
    "qBayesianActiveLearningByDisagreement": (RuntimeError, "require a SaasFullyBayesianSingleTaskGP"),
    "AnalyticExpectedUtilityOfBestOption": (AttributeError, "datapoints"),  # those of a PairwiseGP
    "PathwiseThompsonSampling": (NotImplementedError, "draw_matheron_paths"),  # of exact Gaussian processes
}
# their formulas hold for normal posteriors alone
NORMAL = {
    "qAnalyticProbabilityOfImprovement",
    "qJointEntropySearch",
    "qMaxValueEntropy",
    "qMultiFidelityMaxValueEntropy",
    "qMultiFidelityLowerBoundMaxValueEntropy",
    "qLowerBoundMultiObjectiveJointEntropySearch",
    "qLowerBoundMultiObjectiveMaxValueEntropySearch",
    "qMultiObjectivePredictiveEntropySearch",
    "qPredictiveEntropySearch",
    "PairwiseBayesianActiveLearningByDisagreement",
}
RANDOM = {"PairwiseBayesianActiveLearningByDisagreement"}  # draws anew at each call


@pytest.fixture(autouse=True)
def _without_compilation(monkeypatch):
    """Keep BoTorch from compiling a kernel, which takes a minute."""
    monkeypatch.setattr(logei, "_load_attempted", True, raising=False)


def test_all_are_listed():
    assert kinds().keys() == MADE.keys()


def surrogate(targets, form):
    model: Any = PosteriorModel(drawn_networks(2, targets, draws=24), form=form)
    rows = points(5, 2, seed=30)
    model.train_inputs = (rows if targets == 1 else rows.expand(targets, -1, -1),)
    return model


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["draws", "normal"])
@pytest.mark.parametrize("name", sorted(MADE))
def test_each_runs_or_says_why_not(name, form):
    targets, q, _ = MADE[name]
    model, columns = surrogate(targets, form), 1 if name == "FixedFeatureAcquisitionFunction" else 2
    X = points(2, q, columns, seed=41).requires_grad_()
    torch.manual_seed(0)
    if name in REFUSED:
        kind, text = REFUSED[name]
        with pytest.raises(kind, match=text):
            made(name, model)(X)
        return
    if name in NORMAL and form == "draws":
        with pytest.raises(AttributeError, match="form='normal'"):
            made(name, model)(X)
        return
    acquisition, direction, step = made(name, model), points(2, q, columns, seed=42) - 0.5, 1e-5
    values = acquisition(X)
    assert len(values) == 2
    assert values.isfinite().all()
    (gradient,) = torch.autograd.grad(values.sum(), X)
    if name in RANDOM:
        assert gradient.isfinite().all()
        return
    with torch.no_grad():
        ahead, behind = acquisition(X + step * direction), acquisition(X - step * direction)
    assert_close((gradient * direction).sum(), ((ahead - behind) / (2 * step)).sum(), rtol=1e-3, atol=1e-5)
