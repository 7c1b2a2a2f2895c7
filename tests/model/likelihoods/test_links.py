"""What the likelihood applies to the outputs is not applied by the network before; a loss is no likelihood."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchbayes as tb
from tests.oracles import normal
from torchbayes import likelihoods
from torchbayes.driver.checks import OutputsWarning

X = normal(12, 3).float()
CLASSES, BINARY = torch.arange(12) % 3, (torch.arange(12) % 2).float()[:, None]
COUNTS, NUMBERS = (torch.arange(12) % 4).float()[:, None], X[:, :1]


class Ending(nn.Module):
    """A linear layer and what comes after it."""

    def __init__(self, outputs: int, end: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.end = nn.Linear(3, outputs), end

    def forward(self, inputs: Tensor) -> Tensor:
        return self.end(self.layer(inputs))


def said_of(network: nn.Module, likelihood: Any, targets: Any, method: Any = None) -> list[str]:
    model = tb.Model(network, likelihood, tb.priors.Normal())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        tb.fit(model, (X, targets), method or tb.MAP(epochs=1), start=network, callbacks=())
    return [str(one.message) for one in said if issubclass(one.category, OutputsWarning)]


def halves(end: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda outputs: torch.cat([outputs[:, :1], end(outputs[:, 1:])], -1)


WRONG = [
    (nn.Softmax(-1), likelihoods.Categorical(), CLASSES, 3, "softmax"),
    (lambda o: o.softmax(-1).clamp(1e-6, 1), likelihoods.Categorical(), CLASSES, 3, "softmax"),
    (
        lambda o: o.exp() / o.exp().sum(-1, keepdim=True),
        likelihoods.Categorical(ignore_index=-100),
        CLASSES,
        3,
        "softmax",
    ),
    (torch.sigmoid, likelihoods.Categorical(), CLASSES, 3, "sigmoid"),
    (nn.Sigmoid(), likelihoods.Bernoulli(), BINARY, 1, "sigmoid"),
    (lambda o: torch.sigmoid(o).squeeze(-1), likelihoods.Bernoulli(), BINARY, 1, "sigmoid"),
    (lambda o: torch.sigmoid(o) + 1e-6, likelihoods.Probit(), BINARY, 1, "sigmoid"),
    (nn.Softplus(), likelihoods.Poisson(), COUNTS, 1, "softplus"),
    (torch.exp, likelihoods.Poisson(), COUNTS, 1, "exponential"),
    (halves(F.softplus), likelihoods.HeteroscedasticGaussian(), NUMBERS, 2, "softplus"),
    (halves(lambda o: o.exp() + 1e-3), likelihoods.HeteroscedasticGaussian(), NUMBERS, 2, "exponential"),
]


@pytest.mark.parametrize(("end", "likelihood", "targets", "outputs", "word"), WRONG)
def test_what_the_likelihood_applies_is_told_once_with_the_remedy(end, likelihood, targets, outputs, word):
    (said,) = said_of(Ending(outputs, end), likelihood, targets)
    assert f"come from a {word}, and likelihoods.{type(likelihood).__name__} " in said
    assert "Remove it" in said


def test_the_bound_that_is_named_is_the_largest_probability_there_is():
    (said,) = said_of(Ending(3, nn.Softmax(-1)), likelihoods.Categorical(), CLASSES)
    most = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64).softmax(0)[0]
    assert f"could exceed {float(most):.2f}" in said
    assert math.isclose(float(most), math.e / (math.e + 2), rel_tol=1e-12)


@pytest.mark.parametrize(
    "method",
    [tb.VI(epochs=1, kl_weight=1.0), tb.HMC(steps=2, burn_in=1), tb.Laplace(prior="model", check_mode=False)],
)
def test_every_kind_of_method_tells(method):
    weighted = likelihoods.Weighted(likelihoods.Categorical())
    assert len(said_of(Ending(3, nn.Softmax(-1)), weighted, (CLASSES, torch.ones(12)), method)) == 1


ORDINARY = [
    (nn.Identity(), likelihoods.Categorical(), CLASSES, 3),
    (nn.LogSoftmax(-1), likelihoods.Categorical(), CLASSES, 3),
    (lambda o: o.softmax(-1).log(), likelihoods.Categorical(), CLASSES, 3),
    (lambda o: 5 * torch.tanh(o), likelihoods.Categorical(), CLASSES, 3),
    (lambda o: 0.5 + 0.01 * o, likelihoods.Bernoulli(), BINARY, 1),  # lies between 0 and 1 by chance
    (F.logsigmoid, likelihoods.Bernoulli(), BINARY, 1),
    (lambda o: torch.sigmoid(o) @ torch.ones(1, 1), likelihoods.Bernoulli(), BINARY, 1),
    (torch.sigmoid, likelihoods.Gaussian(), NUMBERS, 1),
    (F.softplus, likelihoods.StudentT(), NUMBERS, 1),
    (nn.Identity(), likelihoods.Poisson(), COUNTS, 1),
    (lambda o: F.softplus(o).log(), likelihoods.Poisson(), COUNTS, 1),
    (nn.Identity(), likelihoods.HeteroscedasticGaussian(), NUMBERS, 2),
    (lambda o: torch.cat([F.softplus(o[:, :1]), o[:, 1:]], -1), likelihoods.HeteroscedasticGaussian(), NUMBERS, 2),
    (torch.sigmoid, lambda o: torch.distributions.Bernoulli(o[:, 0], validate_args=False), BINARY[:, 0], 1),
]


@pytest.mark.parametrize(("end", "likelihood", "targets", "outputs"), ORDINARY)
def test_ordinary_networks_raise_no_alarm(end, likelihood, targets, outputs):
    assert said_of(Ending(outputs, end), likelihood, targets) == []


LOSSES = [
    (
        nn.CrossEntropyLoss(label_smoothing=0.1),
        r"CrossEntropyLoss, which is a loss\. Write likelihoods\.Categorical\(\)",
    ),
    (nn.CrossEntropyLoss, "CrossEntropyLoss.*Categorical"),
    (F.cross_entropy, "cross_entropy.*Categorical"),
    (functools.partial(F.cross_entropy, reduction="sum"), "cross_entropy.*Categorical"),
    (nn.NLLLoss(), "NLLLoss.*Categorical"),
    (nn.BCEWithLogitsLoss(), "BCEWithLogitsLoss.*Bernoulli"),
    (nn.BCELoss(), r"BCELoss.*Bernoulli\(\), which takes logits: leave out the sigmoid"),
    (nn.MSELoss(), "MSELoss.*Gaussian.*scale"),
    (F.mse_loss, "mse_loss.*Gaussian.*scale"),
    (nn.GaussianNLLLoss(), "GaussianNLLLoss.*HeteroscedasticGaussian"),
    (nn.PoissonNLLLoss(), "PoissonNLLLoss.*Poisson"),
    (nn.SmoothL1Loss(), "SmoothL1Loss.*StudentT"),
    (nn.TripletMarginLoss(), "TripletMarginLoss.*Categorical.*Bernoulli.*Gaussian"),
    (type("Mine", (nn.MSELoss,), {})(), "MSELoss.*Gaussian"),
    (lambda outputs, targets: ((outputs - targets) ** 2).sum(), "function of the outputs alone.*needs 2 arguments"),
]


@pytest.mark.parametrize(("loss", "told"), LOSSES)
def test_a_loss_is_no_likelihood(loss, told):
    with pytest.raises(TypeError, match=told):
        tb.Model(nn.Linear(3, 3), loss)


def test_functions_with_optional_arguments_are_likelihoods():
    for function in (lambda o, scale=1.0: torch.distributions.Normal(o, scale), torch.distributions.Exponential):
        tb.Model(nn.Linear(3, 1), function)
