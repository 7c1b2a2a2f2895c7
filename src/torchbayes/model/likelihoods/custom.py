"""Custom: any function of the outputs that returns a torch Distribution."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution

from torchbayes.checks import check_function, seen
from torchbayes.model.likelihoods.protocol import NONE, Likelihood, Parameters
from torchbayes.model.likelihoods.shapes import aligned, check_tensor, per_datum


@dataclass(frozen=True, repr=False)
class Custom(Likelihood):
    """Any function of the outputs that returns a torch Distribution. `Model` wraps a bare callable in it.

    Attributes:
        function: outputs (..., B, K) -> Distribution over targets: batch shape (..., B) or (..., B, more), followed by
            any event shape. With `validate_args=False` it can be vectorised over members.
    """

    function: Callable[[Tensor], Distribution]

    def __post_init__(self) -> None:
        check_function("a function from outputs to a torch Distribution", function=self.function)

    def __repr__(self) -> str:  # the same in every process, so that a run can be resumed
        return f"Custom({getattr(self.function, '__qualname__', type(self.function).__qualname__)})"

    def distribution(self, outputs: Tensor, parameters: Parameters = NONE) -> Distribution:
        """Return the function's distribution."""
        return self.function(outputs)

    def log_prob(self, outputs: Tensor, targets: Tensor, parameters: Parameters = NONE) -> Tensor:
        """Return the distribution's log probability, summed over every axis after B."""
        distribution = self.distribution(outputs, parameters)
        targets = aligned(targets, distribution, outputs.ndim)
        return per_datum(distribution.log_prob(targets), targets, len(distribution.event_shape))

    def check(self, outputs: Tensor, targets: Any) -> None:
        """Check that the function gives a distribution over these targets, with the rows in its batch shape."""
        check_tensor(targets)
        distribution = self.distribution(outputs)
        if not isinstance(distribution, Distribution):
            raise TypeError(f"a custom likelihood must return a torch Distribution; got {type(distribution).__name__}.")
        batch, event = distribution.batch_shape, distribution.event_shape
        if batch[:1] != outputs.shape[:1] or aligned(targets, distribution, outputs.ndim).shape != batch + event:
            raise ValueError(
                f"the custom likelihood must give a distribution over targets of shape {tuple(targets.shape)}, with "
                f"the {len(outputs)} rows in its batch shape; got batch shape {tuple(batch)} and event shape "
                f"{tuple(event)}. Reshape the targets or the distribution."
            )


def as_likelihood(given: Likelihood | Callable[[Tensor], Distribution]) -> Likelihood:
    """Return a likelihood: the one given, or a bare function of the outputs wrapped in `Custom`.

    A class in the place of an object, a loss, or anything else is a TypeError.
    """
    if loss := _loss(given):
        raise TypeError(
            f"a `likelihood` must be one of torchbayes.likelihoods or a function from outputs to a torch Distribution; "
            f"got {loss}, which is a loss. Write {_INSTEAD.get(loss, _OF_LOSSES)}."
        )
    if isinstance(given, type) and isinstance(given, Likelihood):
        raise TypeError(f"a `likelihood` must be an object; got the class {given.__name__}. Write {given.__name__}().")
    if isinstance(given, Likelihood):
        return given
    if not callable(given):
        raise TypeError(
            f"a `likelihood` must be one of torchbayes.likelihoods or a function of the outputs; got {seen(given)}."
        )
    if (needed := _needed(given)) != 1:
        raise TypeError(
            f"a `likelihood` must be a function of the outputs alone, which returns a torch Distribution; got "
            f"{seen(given)}, which needs {needed} arguments. A loss is no likelihood: {_OF_LOSSES}."
        )
    return Custom(given)


_CLASSES, _BINARY, _NUMBERS = "likelihoods.Categorical()", "likelihoods.Bernoulli()", "likelihoods.Gaussian()"
_OF_LOSSES = f"{_CLASSES} for classes, {_BINARY} for binary targets, {_NUMBERS} for numbers"
_INSTEAD = {  # a loss of torch, as a class and as a function -> the likelihood whose negative logarithm it is
    **dict.fromkeys(("CrossEntropyLoss", "cross_entropy", "NLLLoss", "nll_loss"), _CLASSES),
    **dict.fromkeys(("BCEWithLogitsLoss", "binary_cross_entropy_with_logits"), f"{_BINARY}, which takes logits"),
    **dict.fromkeys(("BCELoss", "binary_cross_entropy"), f"{_BINARY}, which takes logits: leave out the sigmoid"),
    **dict.fromkeys(("MultiLabelSoftMarginLoss", "multilabel_soft_margin_loss"), f"{_BINARY}, which takes logits"),
    **dict.fromkeys(("MSELoss", "mse_loss"), f"{_NUMBERS} with the `scale` of the noise, or scale='learned'"),
    **dict.fromkeys(("GaussianNLLLoss", "gaussian_nll_loss"), "likelihoods.HeteroscedasticGaussian()"),
    **dict.fromkeys(("PoissonNLLLoss", "poisson_nll_loss"), "likelihoods.Poisson()"),
    **dict.fromkeys(("L1Loss", "l1_loss"), "lambda outputs: torch.distributions.Laplace(outputs, scale)"),
    **dict.fromkeys(
        ("HuberLoss", "huber_loss", "SmoothL1Loss", "smooth_l1_loss"), "likelihoods.StudentT(), which bears outliers"
    ),
}


def _loss(given: Any) -> str:
    """Return the name of a loss of torch, which is a module, its class or a function; empty for anything else."""
    given = given.func if isinstance(given, partial) else given
    kind = given if isinstance(given, type) else type(given)
    if issubclass(kind, nn.Module):
        names = [base.__name__ for base in kind.__mro__ if base.__module__ == "torch.nn.modules.loss"]
        return names[0] if names else ""
    name = getattr(given, "__name__", "")
    return name if name in _INSTEAD and getattr(F, name, None) is given else ""


def _needed(function: Callable[..., Any]) -> int:
    """Return the number of required arguments of a function; 1 if it is not known, or the function takes any number."""
    try:
        each = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    positional = [p for p in each if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}]
    return max(1, sum(p.default is p.empty for p in positional))
