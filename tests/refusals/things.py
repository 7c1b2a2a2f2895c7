"""Good models, data and posteriors for calls of which one argument is then replaced by nonsense; each made once."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.laws.cases import normal
from torchbayes.linalg import Diagonal
from torchbayes.randomness.seeds import Purpose, seeded

INPUTS = normal(12, 2, dtype=torch.float32)
LABELS = torch.arange(12) % 3
DATA = (INPUTS, LABELS)


def net() -> nn.Module:
    """A small classifier, always with the same weights."""
    with seeded(Purpose.FACTORY, 1):
        return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3))


@cache
def model() -> tb.Model:
    return tb.Model(net(), tb.likelihoods.Categorical())


@cache
def regression() -> tb.Model:
    with seeded(Purpose.FACTORY, 1):
        return tb.Model(nn.Linear(2, 1), tb.likelihoods.Gaussian(0.5))


def weights(members: int, draws: int | None = None) -> Tensor:
    size = model().layout.size
    actual = normal(members * (draws or 1), size, seed=3, dtype=torch.float32)
    return actual if draws is None else actual.unflatten(0, (members, draws))


@cache
def point() -> tb.Point:
    return tb.Point(model(), weights(2))


@cache
def gaussian() -> tb.Gaussian:
    return tb.Gaussian(model(), weights(1), Diagonal(torch.ones_like(weights(1))))


@cache
def multiplied() -> tb.Gaussian:
    made = tb.priors.with_multipliers(net(), tb.priors.GroupNormalJeffreys())
    own = tb.Model(made.network, tb.likelihoods.Categorical(), made.prior)
    mean_MD = own.network.weights()[None]
    return tb.Gaussian(own, mean_MD, Diagonal(torch.full_like(mean_MD, 1e-4)))


@cache
def propagated() -> tb.Gaussian:
    mean_MD = torch.zeros(1, regression().layout.size)
    return tb.Gaussian(regression(), mean_MD, Diagonal(torch.ones_like(mean_MD)))


@cache
def space() -> tb.Subspace:
    return tb.Subspace(regression(), torch.zeros(3), torch.eye(2, 3))


@cache
def inner() -> tb.Point:
    return tb.Point(space().model, torch.zeros(1, 2))


@cache
def chains() -> tb.Draws:
    return tb.Draws(model(), weights(2, 6))


@cache
def long_chains() -> tb.Draws:
    return tb.Draws(model(), 0.1 * weights(2, 30))


@cache
def laplace() -> tb.LaplacePosterior:
    actual = tb.fit(
        model(), DATA, tb.Laplace(structure="diagonal", check_mode=False, prior="model"), start=net(), callbacks=()
    )
    assert isinstance(actual, tb.LaplacePosterior)
    return actual


@cache
def learned() -> tb.Learned:
    scores = {"accuracy": torch.full((2, 2), 0.5)}
    return tb.Learned([point()] * 2, [point()] * 2, ["a", "b"], scores, {"accuracy": torch.zeros(2)})


@cache
def functions() -> tb.Functions:
    return point().functions()


@cache
def predictive() -> tb.Predictive:
    return tb.predict(point(), INPUTS)


@cache
def evaluation() -> tb.Evaluation:
    return tb.evaluate(predictive(), LABELS)


def density() -> tb.FunctionDensity:
    return tb.FunctionDensity(lambda w: -0.5 * (w**2).sum(-1))
