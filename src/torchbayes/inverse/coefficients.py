"""Unknown coefficients: a belief about a number on its own scale, and the weight without constraints that is inferred.

With the bijection T from the real numbers to the support of a torch Distribution p(k), the weight is z = T⁻¹(k), with

    log p(z) = log p(k) + log |dT/dz|,    k = T(z)

For a log-normal coefficient z = log k is normal.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, distributions, nn
from torch.distributions import Distribution, biject_to

from torchbayes.checks import seen
from torchbayes.model.priors import Normal, Prior, SampledPrior, Univariate
from torchbayes.model.priors.univariate import check_prior


@dataclass(frozen=True)
class Transformed(SampledPrior):
    """The prior of z = T⁻¹(k) for a coefficient k with a torch Distribution.

    Attributes:
        distribution: of k; univariate, over an interval or a half-line.
    """

    distribution: Distribution

    @property
    def transform(self) -> Any:
        """T."""
        return biject_to(self.distribution.support)

    def log_prob(self, weights: Tensor) -> Tensor:
        """Return log p(T(z)) + log |dT/dz|, elementwise."""
        values = self.transform(weights)
        return self.distribution.log_prob(values) + self.transform.log_abs_det_jacobian(weights, values)

    def sample(self, shape: tuple[int, ...], generator: Generator) -> Tensor:
        """Return independent draws of z, float64 on the CPU."""
        return self.transform.inv(Univariate(self.distribution).sample(shape, generator))


class Coefficient(NamedTuple):
    """An unknown number."""

    prior: Prior  # of the weight z
    transform: Callable[[Tensor], Tensor]  # k of z
    start: float  # z where fits start
    sd: float  # standard deviation of k before the data; infinite where it is not known
    positive: bool  # whether k is always above 0


def coefficient(name: str, belief: Any) -> Coefficient:
    """Return the coefficient of a prior of the library, or of a torch Distribution of the number itself.

    Raises TypeError if the belief is neither, ValueError if it is not of one number.
    """
    if not isinstance(belief, Distribution):
        if isinstance(belief, int | float):
            raise TypeError(
                f"`{name}` must be a prior or a torch Distribution; got {seen(belief)}. Write a known number into the "
                f"quantities instead."
            )
        check_prior(**{name: belief})
        return Coefficient(belief, _same, float(getattr(belief, "loc", 0.0)), getattr(belief, "std", math.inf), False)
    if belief.event_shape or belief.batch_shape.numel() != 1:
        raise ValueError(
            f"`{name}` must have the distribution of one number; got batch shape {tuple(belief.batch_shape)} and event "
            f"shape {tuple(belief.event_shape)}. Name each number of its own."
        )
    univariate = Univariate(belief)
    if univariate.everywhere:
        return Coefficient(univariate, _same, univariate.loc, univariate.std, False)
    if isinstance(belief, distributions.LogNormal):
        normal = Normal(float(belief.scale), float(belief.loc))
        return Coefficient(normal, torch.exp, normal.loc, univariate.std, True)
    unchecked = copy.copy(belief)
    unchecked._validate_args = False  # a value that is rounded to the edge of the support is no error
    prior = Transformed(unchecked)
    try:
        low, middle = prior.transform(torch.tensor([-1e9, 0.0]))
    except NotImplementedError:
        raise ValueError(f"`{name}` must be a real number; got {belief}, whose support is {belief.support}.") from None
    mean = torch.tensor(univariate.loc)
    support: Any = belief.support
    inside = bool(support.check(mean)) and bool(torch.isfinite(prior.transform.inv(mean)))
    start = float(prior.transform.inv(mean if inside else middle))
    return Coefficient(prior, prior.transform, start, univariate.std, float(low) >= 0)


class Numbers(nn.Module):
    """The weights of unknown numbers, by name, each of shape ()."""

    def __init__(self, beliefs: Mapping[str, Coefficient]) -> None:
        super().__init__()
        self.beliefs = dict(beliefs)
        for name in beliefs:
            self.register_parameter(name, nn.Parameter(torch.zeros(())))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set every number to the middle of what is believed of it."""
        for name, parameter in self.named_parameters():
            parameter.fill_(self.beliefs[name].start)

    def values(self) -> dict[str, Tensor]:
        """Return the numbers on their own scale, by name."""
        return {name: belief.transform(getattr(self, name)) for name, belief in self.beliefs.items()}


def _same(weights: Tensor) -> Tensor:
    return weights
