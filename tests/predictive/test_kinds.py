"""What a predictive is asked that its targets do not have is said, for every likelihood; what they have is right."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from tests.oracles import assert_close, normal
from torch import Tensor, distributions

import torchbayes as tb

L = tb.likelihoods
OF_CLASSES = ("probs", "entropy", "expected_entropy", "mutual_information")
MOMENTS = ("mean", "variance", "epistemic", "aleatoric")
ASKED: dict[str, Any] = {
    **{name: operator.attrgetter(name) for name in (*OF_CLASSES, *MOMENTS)},
    "quantile": lambda p: p.quantile(0.5),
    "interval": lambda p: p.interval(0.9),
    "sample": lambda p: p.sample(4),
}


def many(outputs: Tensor) -> distributions.Distribution:
    return distributions.MultivariateNormal(outputs, torch.eye(outputs.shape[-1]).double())


def without_moments(outputs: Tensor) -> distributions.Distribution:
    return distributions.TransformedDistribution(distributions.Normal(outputs, 1.0), distributions.TanhTransform())


def of_classes(outputs: Tensor) -> distributions.Distribution:
    return distributions.Independent(distributions.Categorical(logits=outputs.unflatten(-1, (1, -1))), 1)


NO_PROBS: dict[str, str] = dict.fromkeys(OF_CLASSES, "class probabilities exist for")
NO_MOMENTS: dict[str, str] = dict.fromkeys(MOMENTS, "classes have no mean")
NO_ORDER: dict[str, str] = dict.fromkeys(("quantile", "interval"), "classes have no quantiles")
CASES: dict[str, tuple[Any, dict[str, str]]] = {
    "categorical": (L.Categorical(), NO_MOMENTS | NO_ORDER),
    "weighted categorical": (L.Weighted(L.Categorical()), NO_MOMENTS | NO_ORDER),
    "bernoulli": (L.Bernoulli(), NO_ORDER),
    "probit": (L.Probit(), NO_ORDER),
    "gaussian": (L.Gaussian(0.5), NO_PROBS),
    "heteroscedastic": (L.HeteroscedasticGaussian(), NO_PROBS),
    "poisson": (L.Poisson(), NO_PROBS),
    "student": (L.StudentT(4.0, 1.0), NO_PROBS | {"quantile": "StudentT has no `cdf`"}),
    "multivariate": (L.Custom(many), NO_PROBS | dict.fromkeys(("quantile", "interval"), "numbers together")),
    "no moments": (
        L.Custom(without_moments),
        NO_PROBS
        | dict.fromkeys(("mean", "epistemic"), "has no mean in torch")
        | dict.fromkeys(("variance", "aleatoric"), "has no (mean|variance) in torch"),
    ),
    "independent classes": (L.Custom(of_classes), NO_PROBS | NO_MOMENTS | NO_ORDER),
}


@pytest.mark.parametrize("name", CASES)
def test_what_targets_do_not_have_is_said(name: str):
    likelihood, refused = CASES[name]
    predictive = tb.Predictive(normal(3, 5, 4), likelihood)
    for asked, ask in ASKED.items():
        if asked in refused:
            with pytest.raises((TypeError, NotImplementedError), match=refused[asked]):
                ask(predictive)
            assert asked not in (*OF_CLASSES, *MOMENTS) or not hasattr(predictive, asked)
        else:
            actual = ask(predictive)
            assert all(torch.isfinite(each).all() for each in (actual if isinstance(actual, tuple) else (actual,)))


def test_the_moments_of_a_binary_target_are_those_of_a_number():
    outputs = normal(3, 5, 1)
    for likelihood, probs in ((L.Bernoulli(), outputs.sigmoid()), (L.Probit(), torch.special.ndtr(outputs))):
        actual, p = tb.Predictive(outputs, likelihood), probs.mean(0)
        assert_close(actual.mean, p)
        assert_close(actual.variance, p * (1 - p))
        assert_close(actual.aleatoric, (probs * (1 - probs)).mean(0))
