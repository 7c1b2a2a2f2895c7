r"""What predictions say of numbers: means, quantiles, probabilities, and means of any function, draw by draw.

Means of functions are sums over nodes of each draw's distribution, at the levels Φ(z) of evenly spaced z, with weights
φ(z): of smooth functions under normal noise they err by rounding, of functions with kinks by the square of the spacing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, distributions

from torchbayes.conformal.numbers import as_double
from torchbayes.data.base import Standardise
from torchbayes.model.likelihoods.quantiles import average_quantile, is_discrete
from torchbayes.predictive.mixture import Mixture

NODES = 1024  # of all draws together, at least
_FEWEST = 64  # of each draw
_WIDEST = 6.0  # standard deviations up to which nodes reach, beyond which 2e-9 of a normal distribution lies


def nodes_of(draws: int) -> int:
    """Return how many nodes each draw has."""
    return max(_FEWEST, -(-NODES // draws))


@dataclass(frozen=True)
class Outlook:
    """What a predictive says of numbers, in the units of the raw targets, float64.

    Attributes:
        mixture: the model average, in its own units and in float64.
        units: from raw to standardised targets; None where they are not standardised.
    """

    mixture: Mixture
    units: Standardise | None = None

    @classmethod
    def of(cls, mixture: Mixture, units: Standardise | None) -> Outlook:
        """Return the outlook of an average in any precision."""
        double = as_double(mixture)
        like = double.outputs_SBK
        return cls(double, None if units is None else Standardise(units.mean.to(like), units.scale.to(like)))

    @property
    def mean(self) -> Tensor:
        """Predicted means, (B, K')."""
        return self._raw(self.mixture.mean)

    @property
    def variance_S(self) -> Tensor:
        """Variance of the targets under each draw, (S, B, K')."""
        variance = self.mixture.distribution.variance
        return variance if self.units is None else variance * self.units.scale**2

    @property
    def mean_S(self) -> Tensor:
        """Means under each draw, (S, B, K')."""
        return self._raw(self.mixture.distribution.mean)

    def quantile(self, level: float) -> Tensor:
        """Return quantiles of the average, (B, K')."""
        try:
            return self._raw(self.mixture.quantile(level))
        except NotImplementedError:  # no distribution function: those of the nodes
            values_SQB, _ = self.nodes
            return values_SQB.flatten(0, 1).quantile(level, dim=0)

    def below_S(self, numbers: Tensor | float, *, strictly: bool = False) -> Tensor:
        """Return P(y ≤ number) under each draw, (S, B, K'); P(y < number) if `strictly`, which differs for counts."""
        try:
            places = self._standardised(torch.as_tensor(numbers).to(self.mixture.outputs_SBK))
            if strictly and is_discrete(self.mixture.distribution):
                places = places.ceil() - 1
            return self.mixture.distribution.cdf(places)
        except NotImplementedError:
            values_SQB, weights_Q = self.nodes
            below = values_SQB < numbers if strictly else values_SQB <= numbers
            return torch.einsum("sq...,q->s...", below.double(), weights_Q)

    @cached_property
    def nodes(self) -> tuple[Tensor, Tensor]:
        """Values (S, Q, B, K') of each draw's distribution, and their weights (Q,), which sum to 1."""
        distribution, count = self.mixture.distribution, nodes_of(self.mixture.draws)
        z_Q = torch.linspace(-_WIDEST, _WIDEST, count).to(self.mixture.outputs_SBK)
        weights_Q = (-(z_Q**2) / 2).softmax(0)
        places = z_Q.view(-1, *[1] * (len(distribution.batch_shape) - 1))
        if isinstance(distribution, distributions.Normal):
            values = distribution.loc.unsqueeze(1) + distribution.scale.unsqueeze(1) * places
            return self._raw(values), weights_Q
        try:
            levels_Q = torch.special.ndtr(z_Q)
            values_QR = average_quantile(self._apart().distribution, levels_Q)  # a row for each draw of each row
            values = values_QR.view(count, *distribution.batch_shape).transpose(0, 1)
        except NotImplementedError:
            drawn = self.mixture.sample(count * self.mixture.draws)
            values = drawn.view(count, *distribution.batch_shape).transpose(0, 1)
            weights_Q = torch.full_like(z_Q, 1 / count)
        return self._raw(values.double()), weights_Q

    def expected_S(self, cost: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the mean under each draw of a function of the targets, (S, B, K')."""
        values_SQB, weights_Q = self.nodes
        return torch.einsum("sq...,q->s...", cost(values_SQB), weights_Q)

    def _apart(self) -> Mixture:
        """Return the distributions of all draws as rows of one draw."""
        mixture, (draws, rows) = self.mixture, self.mixture.outputs_SBK.shape[:2]

        def flat(values: Tensor) -> Tensor:
            return values.expand(draws, rows, *values.shape[2:]).flatten(0, 1).unsqueeze(0)

        spread = mixture.function_variance
        return replace(
            mixture,
            outputs_SBK=flat(mixture.outputs_SBK),
            parameters={name: flat(value) for name, value in mixture.parameters.items()},
            function_variance=None if spread is None else flat(spread),
        )

    def _raw(self, values: Tensor) -> Tensor:
        return values if self.units is None else values * self.units.scale + self.units.mean

    def _standardised(self, values: Tensor) -> Tensor:
        return values if self.units is None else (values - self.units.mean) / self.units.scale
