"""Distributions over classes: averaged probabilities, entropies, and errors of others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor, distributions
from torch.distributions import Distribution

from torchbayes.metrics.uncertainty import entropies, rows_at_once
from torchbayes.model.likelihoods.dirichlet import DirichletCategorical


class UndefinedError(TypeError, AttributeError):
    """Predictions of such targets have no such quantity; `hasattr` is False too."""


class UnknownError(NotImplementedError, AttributeError):
    """The quantity exists, but torch has no formula for this distribution; `hasattr` is False too."""


def over_classes(distribution: Distribution) -> distributions.Categorical | distributions.Bernoulli:
    """Return the distribution of a likelihood if it is over classes; an UndefinedError otherwise."""
    if not isinstance(distribution, distributions.Categorical | distributions.Bernoulli):
        raise UndefinedError(
            f"class probabilities exist for Categorical and Bernoulli likelihoods; this one gives "
            f"{type(distribution).__name__}. Use mean, variance or quantile."
        )
    return distribution


def class_probs(distribution: Distribution) -> Tensor:
    """Return averaged probabilities over all classes, (B, ..., K), of S distributions; two for Bernoulli."""
    return probs_of_draws(distribution).mean(0)


def probs_of_draws(distribution: Distribution) -> Tensor:
    """Return probabilities over all classes by each of S distributions, (S, B, ..., K); two for Bernoulli."""
    kind = over_classes(distribution)
    probs = torch.as_tensor(kind.probs)
    if not isinstance(kind, distributions.Bernoulli):
        return probs
    return torch.stack([torch.as_tensor(-kind.logits).sigmoid(), probs], dim=-1)


def moment(distribution: Distribution, name: Literal["mean", "variance"]) -> Tensor:
    """Return the mean or variance of each of S distributions, (S, B, ...).

    An UndefinedError if they are over classes, whose numbers are names; an UnknownError if torch has no such
    moment.
    """
    if isinstance(_inner(distribution), distributions.Categorical):
        raise UndefinedError(
            "classes have no mean or variance: their numbers are names. Use probs; entropy, expected_entropy and "
            "mutual_information are what variance, aleatoric and epistemic are of numbers."
        )
    try:
        return distribution.mean if name == "mean" else distribution.variance
    except NotImplementedError as error:
        raise UnknownError(
            f"{type(distribution).__name__} has no {name} in torch. Average what `sample` gives."
        ) from error


def check_ordered(distribution: Distribution) -> None:
    """Raise a TypeError unless targets are single numbers, so that quantiles and intervals exist."""
    kind = _inner(distribution)
    if isinstance(kind, distributions.Categorical | distributions.Bernoulli):
        raise TypeError("classes have no quantiles and no intervals. Use `probs`.")
    if kind.event_shape:
        raise TypeError(
            f"{type(kind).__name__} is over {tuple(kind.event_shape)} numbers together, which have no quantiles and no "
            f"intervals. Use `sample`, and the quantiles of each number."
        )


def _inner(distribution: Distribution) -> Distribution:
    """Return the distribution of one of several independent targets."""
    while isinstance(distribution, distributions.Independent):
        distribution = distribution.base_dist
    return distribution


def average_entropies(distribution: Distribution) -> tuple[Tensor, Tensor, Tensor]:
    """Return total and expected entropy and mutual information of S distributions over classes.

    Each is (B, ...), float64, in nats; all in one pass over the rows, a few at a time.
    """
    parameters, pairs = _parameters(distribution)
    by_rows = [entropies(pairs(rows.double())) for rows in parameters.split(rows_at_once(parameters), dim=1)]
    total, expected, mutual = (torch.cat(parts) for parts in zip(*by_rows, strict=True))
    if isinstance(distribution, DirichletCategorical):  # the probabilities of each draw are uncertain themselves
        within = DirichletCategorical(distribution.log_concentration.double()).mutual_information().mean(0)
        return total, expected - within, mutual + within
    return total, expected, mutual


def each_probs(distribution: Distribution) -> Tensor:
    """Return the probabilities of all classes under each of S distributions, (S, B, ..., K), float64; two if binary."""
    parameters, pairs = _parameters(distribution)
    return pairs(parameters.double())


def _parameters(distribution: Distribution) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return logits or probabilities of S distributions over classes, and what makes them probabilities."""
    classes = over_classes(distribution)
    by_logits, binary = "logits" in vars(classes), isinstance(classes, distributions.Bernoulli)
    given = torch.as_tensor(classes.logits if by_logits else classes.probs)
    return given, partial(_pairs, by_logits=by_logits, binary=binary)


def _pairs(given: Tensor, *, by_logits: bool, binary: bool) -> Tensor:
    """Return probabilities over all classes, two for Bernoulli.

    They come from logits where possible, because 1 − p and log p lose precision.
    """
    if binary:
        pairs = torch.stack([-given, given] if by_logits else [1 - given, given], dim=-1)
        return pairs.sigmoid() if by_logits else pairs
    return given.softmax(-1) if by_logits else given / given.sum(-1, keepdim=True)
