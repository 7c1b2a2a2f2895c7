r"""Regression: the scale of the noise, by one factor that held-out rows choose.

The predictive is an average over drawn functions, p(y) = (1/S) Σ_s p((y − f_s) / (c σ_s)) / (c σ_s), with c > 0 that
minimises the mean negative log density of held-out targets. For one normal function c² is the mean of
((y − f) / σ)². What the functions disagree about stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, distributions
from torch.distributions import Distribution

from torchbayes.assess.places import NO_ROW
from torchbayes.calibration.calibrator import Calibrator
from torchbayes.checks import check_kind, check_positive, plain
from torchbayes.model.likelihoods import Likelihood, Weighted
from torchbayes.model.likelihoods.protocol import NONE, Parameters, scored
from torchbayes.model.likelihoods.shapes import aligned, per_datum
from torchbayes.predictive.average import Predictive

_BOUNDS = (math.log(1e-3), math.log(1e3))
_GRID = 61


@dataclass(frozen=True)
class Widened(Likelihood):
    """A likelihood of numbers, normal, Student's t or Laplace, whose scale is multiplied by a factor.

    Attributes:
        base: the likelihood.
        factor: c.
    """

    base: Likelihood
    factor: float

    def distribution(self, outputs: Tensor, parameters: Parameters = NONE) -> Distribution:
        """Return the distribution of the base at a scale c times as large."""
        return _widened(self.base.distribution(outputs, parameters), self.factor)

    def log_prob(self, outputs: Tensor, targets: Tensor, parameters: Parameters = NONE) -> Tensor:
        """Return its log density, summed over every axis after B."""
        distribution = self.distribution(outputs, parameters)
        targets = aligned(targets, distribution, outputs.ndim)
        return per_datum(distribution.log_prob(targets), targets, len(distribution.event_shape))

    def check(self, outputs: Tensor, targets: Any) -> None:
        """Check targets as the base does."""
        self.base.check(outputs, targets)


@dataclass(frozen=True)
class NoiseScaling(Calibrator):
    """A factor of the noise's scale in a regression.

    Attributes:
        factor: c; above 1 makes the noise larger than the model has it.
    """

    factor: float

    def __post_init__(self) -> None:
        plain(self)
        check_positive(factor=self.factor)

    def __call__(self, predictive: Predictive) -> Predictive:
        """Return the predictive with noise c times as large, of the same functions.

        Args:
            predictive: predictive of a regression.

        Raises:
            TypeError: if it is none, or its likelihood is not normal, Student's t or Laplace.
        """
        check_kind(Predictive, "a Predictive", predictive=predictive)
        widened = replace(predictive, likelihood=_of(predictive.likelihood, self.factor))
        _ = widened.distribution  # a likelihood whose noise has no scale is refused here
        return widened


def noise_of(pairs: Sequence[tuple[Predictive, Any]]) -> NoiseScaling:
    """Return the factor under which targets have the largest mean log density."""
    from scipy.optimize import minimize_scalar  # slow to import

    def loss(log_factor: float) -> float:
        return mean_loss(pairs, NoiseScaling(math.exp(log_factor)))

    grid = torch.linspace(*_BOUNDS, _GRID).tolist()
    best = min(range(_GRID), key=lambda place: loss(grid[place]))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, _GRID - 1)]
    optimum = minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-8})
    return NoiseScaling(math.exp(optimum.x))


def mean_loss(pairs: Sequence[tuple[Predictive, Any]], calibrator: Calibrator | None = None) -> float:
    """Return the mean negative log density of targets, in nats, calibrated or not; a ValueError if no row counts."""
    total = count = 0.0
    for predictive, targets in pairs:
        each_B = (calibrator(predictive) if calibrator else predictive).log_prob(targets).double()
        weights_B = scored(predictive.likelihood, predictive.outputs_SBK[0], targets).row_weights
        weights_B = torch.ones_like(each_B) if weights_B is None else weights_B.double()
        total -= float(torch.where(weights_B == 0, 0.0, weights_B * each_B).sum())
        count += float(weights_B.sum())
    if not count:
        raise ValueError(NO_ROW)
    return total / count


def _of(likelihood: Likelihood, factor: float) -> Likelihood:
    if isinstance(likelihood, Weighted):
        return Weighted(_of(likelihood.base, factor))
    if isinstance(likelihood, Widened):
        return Widened(likelihood.base, likelihood.factor * factor)
    return Widened(likelihood, factor)


_LOCATED = (distributions.Normal, distributions.Laplace)  # given by a location and a scale


def _widened(distribution: Distribution, factor: float) -> Distribution:
    if isinstance(distribution, _LOCATED):
        kind = type(distribution)
        return kind(distribution.loc, factor * distribution.scale, validate_args=False)
    if isinstance(distribution, distributions.StudentT):
        return type(distribution)(distribution.df, distribution.loc, factor * distribution.scale)
    raise TypeError(
        f"the noise of {type(distribution).__name__} has no scale of its own to be multiplied. Use a Gaussian or "
        f"StudentT likelihood."
    )
