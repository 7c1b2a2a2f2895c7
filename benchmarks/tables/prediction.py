"""What a method predicts: a torch Distribution that the library scores, and its histogram as ScoringBench has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, distributions
from torch.distributions import Distribution

from torchbayes import Predictive, likelihoods

_TAIL = 1e-6  # probability beyond either end of a histogram, which its end bins get
_LEAST = 1e-6  # class probabilities are kept above this: forests say 0


@dataclass(frozen=True)
class Prediction:
    """The predictive distribution of the targets of B rows.

    The other attributes are those of a prediction of ScoringBench: the probability of each bin between quantiles of a
    row's own distribution, so that all rows have the same probabilities, and bins of their own.

    Attributes:
        distribution: batch shape (B,): of numbers, or a Categorical.
    """

    distribution: Distribution

    @property
    def mean(self) -> np.ndarray:
        """Means of numbers (B,)."""
        return self.distribution.mean.numpy()

    @cached_property
    def bin_edges(self) -> np.ndarray:
        """Ends of the bins (B, bins + 1)."""
        return self.predictive.quantile(torch.from_numpy(_LEVELS)).squeeze(-1).mT.numpy()

    @property
    def bin_midpoints(self) -> np.ndarray:
        """Middles of the bins (B, bins)."""
        return (self.bin_edges[:, 1:] + self.bin_edges[:, :-1]) / 2

    @property
    def probas(self) -> np.ndarray:
        """Probabilities of the bins (B, bins), which sum to 1."""
        masses = np.diff(_LEVELS)
        masses[[0, -1]] += _TAIL
        return np.tile(masses, (len(self.bin_edges), 1))

    @property
    def predictive(self) -> Predictive:
        """The same as a model average of the library, float64; the parts of an equal mixture are its draws."""
        given = self.distribution
        if isinstance(given, distributions.Categorical):
            probs = given.probs.double().clamp_min(_LEAST)
            return Predictive.from_probs(probs / probs.sum(-1, keepdim=True))
        parts = _parts(given)
        if parts is not None:
            return Predictive(torch.stack([parts.loc, parts.scale], -1).double(), likelihoods.Custom(_normal))
        rows = torch.zeros(1, len(given.mean), 1, dtype=torch.float64)
        return Predictive(rows, likelihoods.Custom(lambda outputs: _Column(given, outputs.shape)))


_HALF = np.array([_TAIL, 1e-5, 1e-4, 1e-3, *np.arange(1, 100) / 200])
_LEVELS = np.concatenate([_HALF, [0.5], 1 - _HALF[::-1]])


def _parts(given: Distribution) -> distributions.Normal | None:
    """Return normal parts of equal weight, batch shape (S, B); None where a distribution is no such mixture."""
    if isinstance(given, distributions.Normal):
        return given.expand((1, *given.batch_shape))
    if not isinstance(given, distributions.MixtureSameFamily):
        return None
    parts, weights_BS = given.component_distribution, given.mixture_distribution.probs
    if not isinstance(parts, distributions.Normal) or not torch.allclose(weights_BS, weights_BS.mean()):
        return None
    return distributions.Normal(parts.loc.mT, parts.scale.mT, validate_args=False)


def _normal(outputs: Tensor) -> Distribution:
    """Return normal distributions of the mean and the standard deviation that are the outputs."""
    mean, sd = outputs.chunk(2, dim=-1)
    return distributions.Normal(mean, sd, validate_args=False)


class _Column(Distribution):
    """A distribution of batch shape (B,) as one of batch shape (..., B, 1), as the average of one draw has it."""

    arg_constraints: ClassVar[Any] = {}  # pyright: ignore[reportIncompatibleMethodOverride]  # as torch's own

    def __init__(self, given: Distribution, shape: torch.Size) -> None:
        self._given = given
        super().__init__(shape, validate_args=False)

    @property
    def mean(self) -> Tensor:
        return self._given.mean.view(self.batch_shape)

    @property
    def variance(self) -> Tensor:
        return self._given.variance.view(self.batch_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        return self._each(self._given.log_prob, value)

    def cdf(self, value: Tensor) -> Tensor:
        return self._each(self._given.cdf, value)

    def _each(self, function: Callable[[Tensor], Tensor], value: Tensor) -> Tensor:
        shape = torch.broadcast_shapes(value.shape, self.batch_shape)
        return function(value.expand(shape).squeeze(-1)).unsqueeze(-1)
