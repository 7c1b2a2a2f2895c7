r"""Scores of numbers: how far a target is from what was predicted; the larger, the less typical.

    absolute       |y − μ|                           μ ± q
    normalised     |y − μ| / σ                       μ ± q σ,  σ the predictive standard deviation (Lei et al. 2018)
    pit            |2 F(y) − 1|                      [F⁻¹((1 − q)/2), F⁻¹((1 + q)/2)]
    cqr            max(l − y, y − u)                 [l − q, u + q],  l and u quantiles (Romano et al. 2019)
    density        −log p(y)                         {y: log p(y) ≥ −q}, one or several intervals

`pit` is the level of the smallest central interval that holds the target, so that the set is the central interval of
the level q, whatever the distribution, and the same for any monotone function of the targets. Targets that are counts
have the level of `torchbayes.metrics.central_level`. Of several numbers in a row, the score is the largest: the box of
their intervals holds all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from torchbayes.checks import as_numbers, check_kind, seen
from torchbayes.conformal.ranks import check_coverage
from torchbayes.conformal.regions import density_intervals, log_densities
from torchbayes.model.likelihoods.protocol import log_mean_exp
from torchbayes.predictive.classes import check_ordered
from torchbayes.predictive.intervals import central_interval, levels_reached
from torchbayes.predictive.mixture import Mixture, some_rows

_LEVELS = 1e-9, 1 - 1e-12  # of central intervals that can be inverted; wider ones hold all numbers


@dataclass(frozen=True)
class Forecast:
    """What any model, of this library or not, says of B rows of numbers: arrays or tensors, (B,) or (B, K').

    Attributes:
        mean: predicted means, or other values around which intervals lie.
        scale: a measure of uncertainty, above 0, such as a standard deviation; in any unit.
        low: lower ends of intervals, such as quantiles at level 0.05.
        high: their upper ends.
    """

    mean: Any = None
    scale: Any = None
    low: Any = None
    high: Any = None

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in ("mean", "scale", "low", "high")}
        given = {name: as_numbers(name, value) for name, value in values.items() if value is not None}
        if ("low" in given) != ("high" in given) or not given.keys() - {"scale"}:
            raise ValueError(f"a forecast needs `mean`, or `low` and `high`; got {', '.join(given) or 'none'}.")
        shape = next(iter(given.values())).shape
        for name, tensor in given.items():
            if tensor.ndim not in {1, 2} or not tensor.numel() or tensor.shape != shape:
                raise ValueError(
                    f"`{name}` must have shape (B,) or (B, K'), the same as all; got {seen(values[name])} beside "
                    f"{tuple(shape)}."
                )
            if not tensor.isfinite().all():
                raise ValueError(f"`{name}` holds NaN or infinite values: {int((~tensor.isfinite()).sum())}.")
            object.__setattr__(self, name, tensor)
        if "scale" in given and not (self.scale > 0).all():
            raise ValueError(f"`scale` must be above 0; the smallest is {float(self.scale.min()):g}.")
        if "low" in given and not (self.low <= self.high).all():
            raise ValueError(f"`low` is above `high` in {int((self.low > self.high).sum())} places. Swap them?")

    @property
    def values(self) -> Tensor:
        """The means, or the lower ends where there are none."""
        return self.low if self.mean is None else self.mean


Prediction = Mixture | Forecast
"""A `Predictive`, as `predict` gives it, or a `Forecast`."""


@runtime_checkable
class NumberScore(Protocol):
    """A score of numbers; a user's own has these two methods."""

    def scores(self, prediction: Any, targets: Tensor) -> Tensor:
        """Return the score of each target (B, K') or (B,), in its shape, or one for each row, (B,)."""
        ...

    def intervals(self, prediction: Any, thresholds_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ends of the intervals of the targets whose score is at most q, in the shape of the targets."""
        ...


@dataclass(frozen=True)
class Absolute:
    """|y − μ|: intervals of one width."""

    name: ClassVar = "absolute"

    def scores(self, prediction: Prediction, targets: Tensor) -> Tensor:
        """Return |y − μ|."""
        return (targets - mean_of(prediction)).abs()

    def intervals(self, prediction: Prediction, thresholds_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return μ ∓ q."""
        mean = mean_of(prediction)
        half = along(thresholds_B, mean)
        return mean - half, mean + half


@dataclass(frozen=True)
class Normalised:
    """|y − μ| / σ: intervals as wide as the prediction is uncertain."""

    name: ClassVar = "normalised"

    def scores(self, prediction: Prediction, targets: Tensor) -> Tensor:
        """Return |y − μ| / σ."""
        return (targets - mean_of(prediction)).abs() / scale_of(prediction)

    def intervals(self, prediction: Prediction, thresholds_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return μ ∓ q σ."""
        mean = mean_of(prediction)
        half = along(thresholds_B, mean) * scale_of(prediction)
        return mean - half, mean + half


@dataclass(frozen=True)
class PIT:
    """|2 F(y) − 1|, the level of the central interval that just holds the target."""

    name: ClassVar = "pit"

    def scores(self, prediction: Mixture, targets: Tensor) -> Tensor:
        """Return the level, in [0, 1]; 1 for targets where F is 0 or 1 to rounding."""
        predictive = distribution_of(prediction, "pit")
        check_ordered(predictive.distribution)
        return levels_reached(predictive, targets)

    def intervals(self, prediction: Mixture, thresholds_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return the central intervals of the level q; all numbers where it is 1 or more."""
        predictive = distribution_of(prediction, "pit")
        shape, like = predictive.distribution.batch_shape[1:], predictive.outputs_SBK
        low, high = like.new_full(shape, -torch.inf), like.new_full(shape, torch.inf)
        for level in thresholds_B[thresholds_B < _LEVELS[1]].unique().tolist():
            rows = (thresholds_B == level).nonzero()[:, 0]
            low[rows], high[rows] = central_interval(some_rows(predictive, rows), 1 - max(level, _LEVELS[0]))
        return low, high


@dataclass(frozen=True)
class CQR:
    """max(l − y, y − u): intervals of predicted quantiles, made wider or narrower by one number.

    Where q is so negative that the ends would cross, both are the middle.

    Attributes:
        level: probability between the two quantiles; of a `Forecast` these are `low` and `high`.
    """

    name: ClassVar = "cqr"
    level: float = 0.9

    def __post_init__(self) -> None:
        check_coverage(level=self.level)

    def scores(self, prediction: Prediction, targets: Tensor) -> Tensor:
        """Return max(l − y, y − u): negative inside."""
        low, high = self._ends(prediction)
        return torch.maximum(low - targets, targets - high)

    def intervals(self, prediction: Prediction, thresholds_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return l − q and u + q."""
        low, high = self._ends(prediction)
        extra = torch.maximum(along(thresholds_B, low), (low - high) / 2)
        return low - extra, high + extra

    def _ends(self, prediction: Any) -> tuple[Tensor, Tensor]:
        if not isinstance(prediction, Forecast):
            low, high = prediction.interval(self.level)
            return low.double(), high.double()
        if prediction.low is None:
            raise ValueError("the score 'cqr' needs `low` and `high` of a forecast. Give them, or use 'normalised'.")
        return prediction.low, prediction.high


@dataclass(frozen=True)
class Density:
    """−log p(y): the targets of highest density, in one or several intervals; of all numbers in a row together."""

    name: ClassVar = "density"

    def scores(self, prediction: Mixture, targets: Tensor) -> Tensor:
        """Return −log p(y) of each row, (B,), in nats."""
        each = log_densities(distribution_of(prediction, "density").distribution, targets)
        return -log_mean_exp(each.flatten(2).sum(-1) if each.ndim > 2 else each)

    def intervals(self, prediction: Mixture, thresholds_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return the least and the largest number in the set."""
        pairs = self.regions(prediction, thresholds_B)
        ends = torch.stack([torch.stack([each.min(), each.max()]) for each in pairs])
        return ends[:, :1], ends[:, 1:]

    def regions(self, prediction: Mixture, thresholds_B: Tensor) -> list[Tensor]:
        """Return the intervals of each row, (R, 2) from left to right; the mode alone where the set is empty."""
        return density_intervals(distribution_of(prediction, "density"), thresholds_B)


NUMBER_SCORES = {kind.name: kind for kind in (Absolute, Normalised, PIT, CQR, Density)}


def mean_of(prediction: Any) -> Tensor:
    """Return predicted means, float64."""
    if isinstance(prediction, Forecast) and prediction.mean is None:
        raise ValueError("this score needs `mean` of a forecast. Give it, or use 'cqr'.")
    return prediction.mean.double()


def scale_of(prediction: Any) -> Tensor:
    """Return predictive standard deviations, float64; a ValueError if one is missing, 0 or not finite."""
    if isinstance(prediction, Forecast):
        if prediction.scale is None:
            raise ValueError("the score 'normalised' needs `scale` of a forecast. Give it, or use 'absolute'.")
        return prediction.scale
    scale = prediction.variance.double().sqrt()
    if not ((scale > 0) & (scale < torch.inf)).all():
        raise ValueError(
            "the score 'normalised' needs predictive standard deviations that are finite and above 0; the largest "
            f"is {float(scale.max()):g}, the smallest {float(scale.min()):g}. Use 'pit' or 'absolute'."
        )
    return scale


def distribution_of(prediction: Any, name: str) -> Mixture:
    """Return a prediction that is a distribution, in float64; a TypeError if it is a forecast."""
    check_kind(Mixture, f"a Predictive, whose distribution the score {name!r} needs", prediction=prediction)
    return as_double(prediction)


def as_double(mixture: Mixture) -> Mixture:
    """Return the same average in float64, so that probabilities near 0 and 1 differ."""
    spread = mixture.function_variance
    return replace(
        mixture,
        outputs_SBK=mixture.outputs_SBK.double(),
        parameters={name: value.double() for name, value in mixture.parameters.items()},
        function_variance=None if spread is None else spread.double(),
    )


def along(thresholds_B: Tensor, like: Tensor) -> Tensor:
    """Return one number for each row, (B,), so that it broadcasts against (B, ...)."""
    return thresholds_B.to(like).view(-1, *[1] * (like.ndim - 1))


def numbers_like(targets: Any, shape: torch.Size) -> Tensor:
    """Return targets as float64 in the shape of the predictions, with or without an axis of one column."""
    values = as_numbers("targets", targets)
    flat = [size for size in (values.shape, shape)]
    plain = [each[:-1] if len(each) == 2 and each[-1] == 1 else each for each in flat]
    if plain[0] != plain[1]:
        raise ValueError(f"`targets` must have shape {tuple(shape)}, as predicted; got {seen(targets)}.")
    if not values.isfinite().all():
        raise ValueError(f"`targets` holds NaN or infinite values: {int((~values.isfinite()).sum())}. Leave them out.")
    return values.reshape(shape)
