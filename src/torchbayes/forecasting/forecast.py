"""What a forecast is: quantiles of the next H values; and what all forecasters share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd

from torchbayes.checks import check_kind, seen
from torchbayes.conformal.ranks import check_coverage
from torchbayes.display import MOST_ROWS, Overview, shown
from torchbayes.forecasting.rows import Rows
from torchbayes.forecasting.series import Series, as_series
from torchbayes.forecasting.steps import words_of
from torchbayes.native.process import undisturbed_methods

_ROUNDING = 1e-9  # of levels
LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
"""Levels of the quantiles that a forecast has if nothing else is asked for."""


def _overview(forecast: QuantileForecast) -> Overview:
    frame = forecast.frame().reset_index()
    rows = [[str(first), *(f"{value:.5g}" for value in others)] for first, *others in frame.head(MOST_ROWS).to_numpy()]
    facts = {"horizon": len(forecast), "levels": forecast.levels_Q.tolist()}
    return Overview("QuantileForecast", facts, header=[*frame.columns], rows=rows, of=len(forecast))


@shown(_overview)
@undisturbed_methods
@dataclass(frozen=True, eq=False)
class QuantileForecast:
    """Quantiles of the next H values, of each by itself.

    Attributes:
        levels_Q: levels, increasing, in (0, 1).
        quantiles_HQ: in the units of the series; increasing along Q.
        times: of the values, H dates; None where the series has none.
    """

    levels_Q: np.ndarray
    quantiles_HQ: np.ndarray
    times: pd.DatetimeIndex | None = None

    def __post_init__(self) -> None:
        levels, quantiles = (np.asarray(each, dtype=np.float64) for each in (self.levels_Q, self.quantiles_HQ))
        if levels.ndim != 1 or not len(levels) or not (np.diff(levels, prepend=0.0, append=1.0) > 0).all():
            raise ValueError(f"`levels_Q` must increase, in (0, 1); got {seen(self.levels_Q)}.")
        if quantiles.ndim != 2 or quantiles.shape[1] != len(levels):
            raise ValueError(f"`quantiles_HQ` must have shape (H, {len(levels)}); got {seen(self.quantiles_HQ)}.")
        if not (np.diff(quantiles, axis=1) >= 0).all():
            raise ValueError("`quantiles_HQ` must increase along the levels and hold no NaN. Sort them by level.")
        object.__setattr__(self, "levels_Q", levels)
        object.__setattr__(self, "quantiles_HQ", quantiles)

    def __len__(self) -> int:
        return len(self.quantiles_HQ)

    def quantile(self, level: float) -> np.ndarray:
        """Return the quantiles at a level, (H,); between known levels on straight lines.

        Raises:
            ValueError: if the level lies beyond the known ones.
        """
        check_coverage(level=level)
        return between(level, self.levels_Q, self.quantiles_HQ)

    @property
    def median(self) -> np.ndarray:
        """The medians, (H,)."""
        return self.quantile(0.5)

    def interval(self, coverage: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of central intervals, (H,) each.

        Raises:
            ValueError: if `coverage` is not in (0, 1), or wider than the known levels.
        """
        check_coverage(coverage=coverage)
        return self.quantile((1 - coverage) / 2), self.quantile((1 + coverage) / 2)

    def frame(self) -> pd.DataFrame:
        """Return a row for each value, indexed by its time, or by 1 … H, with a column for each level."""
        index = pd.RangeIndex(1, len(self) + 1, name="step") if self.times is None else self.times.rename("time")
        return pd.DataFrame(self.quantiles_HQ, index=index, columns=[f"{level:g}" for level in self.levels_Q])


@runtime_checkable
class Forecaster(Protocol):
    """Settings of a way to forecast, which `backtest` takes; of your own as well.

    `fit` returns an object with `quantiles(pasts, levels)`: for N series, each up to an origin, the quantiles of the
    next H values, (N, H, Q).
    """

    @property
    def horizon(self) -> int:
        """H, how many values ahead."""
        ...

    def fit(self, series: Any) -> Any:
        """Learn from a series."""
        ...


@dataclass(frozen=True, eq=False)
class Fitted:
    """A forecaster that has learned from a series.

    Attributes:
        series: of the fit.
        rows: horizon and season; and how windows become rows, if it learned from these.
    """

    series: Series
    rows: Rows

    @property
    def horizon(self) -> int:
        """H, how many values ahead."""
        return self.rows.horizon

    @abstractmethod
    def quantiles(self, pasts: Sequence[Series], levels: Sequence[float]) -> np.ndarray:
        """Return the quantiles of the values after each of N series, (N, H, Q), which increase along Q."""

    def forecast(self, series: Any = None, *, levels: Sequence[float] = LEVELS) -> QuantileForecast:
        """Return quantiles of the H values after a series.

        Args:
            series: the values so far, as `fit` takes them; those of the fit if None.
            levels: of the quantiles, in (0, 1).

        Raises:
            TypeError: if values are no numbers.
            ValueError: if the series is too short or not like that of the fit, a value is missing, or times are not
                evenly spaced.
        """
        levels = check_levels(levels)
        past = like(self.series, self.series if series is None else as_series(series), self.horizon)
        return QuantileForecast(np.array(levels), self.quantiles([past], levels)[0], past.after(self.horizon))


def check_levels(levels: Any) -> list[float]:
    """Return levels in order, without repetition; a ValueError if one is not in (0, 1)."""
    check_kind((list, tuple, np.ndarray), "a list of levels, such as (0.05, 0.5, 0.95)", levels=levels)
    for level in levels:
        check_coverage(levels=level)
    if not len(levels):
        raise ValueError("`levels` is empty. Give at least one, such as 0.5.")
    return sorted({float(level) for level in levels})


def like(fitted: Series, past: Series, horizon: int) -> Series:
    """Return a series with the step of that of the fit, by which few times may be spaced without showing it.

    A ValueError unless it has the channels and covariates of that of the fit, known far enough ahead.
    """
    for name, now, before in (
        ("channels", past.values_TC, fitted.values_TC),
        ("covariates", past.covariates_UK, fitted.covariates_UK),
    ):
        widths = [0 if each is None else each.shape[1] for each in (now, before)]
        if widths[0] != widths[1]:
            raise ValueError(f"`series` must have {widths[1]} {name}, as that of the fit; got {widths[0]}.")
    if past.covariates_UK is not None and len(past.covariates_UK) < len(past) + horizon:
        raise ValueError(
            f"`covariates` must be known for the {len(past):,} times and the {horizon} to forecast; got "
            f"{len(past.covariates_UK):,} rows."
        )
    if (past.times is None) != (fitted.times is None):
        raise ValueError("`times` must be given to the forecast if, and only if, the fit had them.")
    if past.times is None:
        return past
    if np.asarray(past.times[:-1] + fitted.step != past.times[1:]).any():
        raise ValueError(
            f"the step of `times` must be that of the fit ({words_of(fitted.step)}); got {words_of(past.step)}."
        )
    return replace(past, step=fitted.step)


def between(level: float, levels_Q: Any, quantiles: np.ndarray) -> np.ndarray:
    """Return quantiles (...,) at a level, on straight lines between known ones (..., Q); a ValueError beyond them."""
    known = np.asarray(levels_Q)
    if not known[0] - _ROUNDING <= level <= known[-1] + _ROUNDING:
        raise ValueError(
            f"quantiles are known at levels from {known[0]:g} to {known[-1]:g}; got {level:g}. Ask for more `levels`."
        )
    above = int(np.clip(np.searchsorted(known, level), 1, max(len(known) - 1, 1)))
    if len(known) == 1:
        return quantiles[..., 0]
    share = np.clip((level - known[above - 1]) / (known[above] - known[above - 1]), 0, 1)
    return quantiles[..., above - 1] * (1 - share) + quantiles[..., above] * share
