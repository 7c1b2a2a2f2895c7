r"""backtest: forecasts from many origins of a series, each made with the values before it alone.

MASE       mean |y − median| / mean |y_t − y_{t−m}| over the first training part (Hyndman and Koehler 2006)
pinball    mean over levels of max(τ (y − q_τ), (τ − 1)(y − q_τ)), in the same units; twice it tends to the CRPS
coverage   share of values inside the central interval, and its mean width, in the units of the series
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from torchbayes.calls import explained
from torchbayes.checks import check_counts, check_kind, check_object, optional, seen
from torchbayes.conformal.ranks import check_coverage
from torchbayes.display import Overview, shown
from torchbayes.forecasting.adaptive import AdaptiveIntervals
from torchbayes.forecasting.forecast import LEVELS, QuantileForecast, check_levels
from torchbayes.forecasting.rules import Rule
from torchbayes.forecasting.series import Series, as_series
from torchbayes.native.process import undisturbed, undisturbed_methods

_SHARE = 5  # the last of so many parts is forecast


def _overview(result: Backtest) -> Overview:
    table = result.table()
    facts = {"origins": len(result.origins_N), "horizon": result.targets_NH.shape[1]}
    rows = [(name, *(f"{value:.4g}" for value in row)) for name, row in zip(table.index, table.to_numpy(), strict=True)]
    return Overview("Backtest", facts, header=("forecaster", *table.columns), rows=rows, problems=result.problems)


@shown(_overview)
@undisturbed_methods
@dataclass(frozen=True, eq=False)
class Backtest:
    """Forecasts from N origins beside what came.

    Attributes:
        origins_N: how many values lie before each forecast.
        targets_NH: what came.
        levels_Q: levels of the quantiles.
        quantiles: forecaster -> (N, H, Q).
        lows: forecaster -> lower ends of the intervals, (N, H); those that adapt too, by the name with a plus sign.
        highs: likewise, upper ends.
        coverage: of the intervals, as asked for.
        scale: the mean error of the seasonal naive forecast within the first training part, by the longest season of
            the forecasters.
        adaptive: name with a plus sign -> the intervals that adapt, as they stand at the end of the series, for the
            forecasts that come next.
        problems: known problems of posteriors, one clause each.
    """

    origins_N: np.ndarray
    targets_NH: np.ndarray
    levels_Q: np.ndarray
    quantiles: Mapping[str, np.ndarray]
    lows: Mapping[str, np.ndarray]
    highs: Mapping[str, np.ndarray]
    coverage: float
    scale: float
    adaptive: Mapping[str, AdaptiveIntervals]
    problems: tuple[str, ...] = ()

    def table(self) -> pd.DataFrame:
        """Return a row for each forecaster: MASE, scaled pinball loss, coverage, and width of the intervals.

        Intervals that adapt have coverage and width alone; the width is the mean over those that are finite.
        """
        return pd.DataFrame({name: self.by_horizon(name).mean() for name in self.lows}).T.rename_axis("forecaster")

    def by_horizon(self, name: str) -> pd.DataFrame:
        """Return the same of one forecaster, a row for each step 1 … H.

        Raises:
            KeyError: if there is no such forecaster.
        """
        if name not in self.lows:
            raise KeyError(f"there is no forecaster {name!r}; there are {', '.join(self.lows)}.")
        low_NH, high_NH = self.lows[name], self.highs[name]
        inside_NH = (low_NH <= self.targets_NH) & (self.targets_NH <= high_NH)
        width_NH = np.where(np.isfinite(high_NH - low_NH), high_NH - low_NH, np.nan)
        columns = {"MASE": np.full(len(inside_NH[0]), np.nan), "pinball": np.full(len(inside_NH[0]), np.nan)}
        if name in self.quantiles:
            off_NHQ = self.targets_NH[..., None] - self.quantiles[name]
            pinball = np.maximum(self.levels_Q * off_NHQ, (self.levels_Q - 1) * off_NHQ)
            middle = off_NHQ[..., int(np.flatnonzero(self.levels_Q == 0.5)[0])]
            columns = {"MASE": np.abs(middle).mean(0) / self.scale, "pinball": pinball.mean((0, 2)) / self.scale}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of steps none of whose intervals is finite
            columns |= {"coverage": inside_NH.mean(0), "width": np.nanmean(width_NH, axis=0)}
        columns["infinite"] = np.isnan(width_NH).mean(0)
        return pd.DataFrame(columns, index=pd.RangeIndex(1, len(inside_NH[0]) + 1, name="step"))


@undisturbed
@explained()
def backtest(
    series: Any,
    forecasters: Mapping[str, Any],
    *,
    start: int | None = None,
    stride: int = 1,
    refit: int | None = None,
    window: int | None = None,
    coverage: float = 0.9,
    adapt: Mapping[str, Rule] | None = None,
) -> Backtest:
    """Forecast from a rolling origin, with what is known there alone, and score what came.

    Args:
        series: values in order of time, as `BayesianForecaster.fit` takes them.
        forecasters: name -> forecaster, all of one horizon.
        start: the first origin, the number of values before it; the last fifth of the series is forecast if None.
        stride: steps from one origin to the next.
        refit: steps after which forecasters learn anew, at the next origin; None for once, at the first.
        window: how many of the last values they learn from; all if None.
        coverage: of the intervals, in (0, 1).
        adapt: name -> rule, such as {"PID": PID()}, of intervals that adapt as values come in; each forecaster is
            listed with each of them too.

    Returns:
        The forecasts, with a table of scores.

    Raises:
        TypeError: if a forecaster or a rule is none.
        ValueError: if the series has no room for an origin, forecasters differ in their horizon, a value is missing, or
            times are not evenly spaced.
    """
    check_counts(stride=stride)
    optional(check_counts, start=start, refit=refit, window=window)
    check_coverage(coverage=coverage)
    horizon = _horizon(forecasters)
    optional(check_kind, Mapping, "a mapping from names to rules", adapt=adapt)
    data = as_series(series)
    start = max(len(data) - max(len(data) // _SHARE, horizon), 1) if start is None else start
    if start + horizon > len(data):
        raise ValueError(
            f"`start` must leave the {horizon} values of a forecast; got {start:,} of {len(data):,} values. Lower it."
        )
    if window is not None and window > start:
        raise ValueError(f"`window` must be at most `start`, {start:,}; got {window:,}.")
    ends = [(1 - coverage) / 2, (1 + coverage) / 2]
    levels = check_levels([*LEVELS, *(round(end, 12) for end in ends)])
    origins_N = np.arange(start, len(data) - horizon + 1, stride)
    quantiles, problems = {}, dict[str, None]()
    for name, forecaster in forecasters.items():
        parts = []
        for first, last in _blocks(origins_N, refit):
            fitted = forecaster.fit(
                data.between(max(0, origins_N[first] - (window or len(data))), origins_N[first], horizon)
            )
            pasts = [data.between(0, origin, horizon) for origin in origins_N[first:last]]
            parts.append(_checked(name, fitted.quantiles(pasts, levels), (last - first, horizon, len(levels))))
            problems |= dict.fromkeys(f"{name}: {problem}" for problem in getattr(fitted, "problems", ()))
        quantiles[name] = np.concatenate(parts)
    lows = {name: each[..., levels.index(round(ends[0], 12))] for name, each in quantiles.items()}
    highs = {name: each[..., levels.index(round(ends[1], 12))] for name, each in quantiles.items()}
    adaptive = {}
    for name, each in quantiles.items():
        for label, rule in (adapt or {}).items():
            key = f"{name} + {label}"
            adaptive[key] = AdaptiveIntervals(horizon, coverage=coverage, rule=rule)
            lows[key], highs[key] = _adapted(adaptive[key], data, origins_N, np.array(levels), each)
    targets_NH = data.values_TC[origins_N[:, None] + np.arange(horizon), 0]
    scale = _naive_error(data, start, forecasters.values())
    return Backtest(
        origins_N, targets_NH, np.array(levels), quantiles, lows, highs, coverage, scale, adaptive, tuple(problems)
    )


def _horizon(forecasters: Any) -> int:
    """Return the horizon of forecasters, checked to be the same."""
    check_kind(Mapping, 'a mapping such as {"SWAG": BayesianForecaster(24)}', forecasters=forecasters)
    if not forecasters:
        raise ValueError("`forecasters` is empty. Give at least one.")
    for name, forecaster in forecasters.items():
        check_object(("fit", "horizon"), "BayesianForecaster(24)", **{f"forecasters[{name!r}]": forecaster})
    horizons = {name: forecaster.horizon for name, forecaster in forecasters.items()}
    if len(set(horizons.values())) > 1:
        raise ValueError(f"`forecasters` must have one horizon; got {horizons}.")
    return next(iter(horizons.values()))


def _blocks(origins_N: np.ndarray, refit: int | None) -> list[tuple[int, int]]:
    """Return from which origin until before which a fit is used."""
    starts = [0]
    for place, origin in enumerate(origins_N):
        if refit is not None and origin - origins_N[starts[-1]] >= refit:
            starts.append(place)
    return list(zip(starts, [*starts[1:], len(origins_N)], strict=True))


def _checked(name: str, quantiles: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return quantiles of a forecaster, float64."""
    values = np.asarray(quantiles, dtype=np.float64)
    if values.shape != shape or not np.isfinite(values).all():
        raise ValueError(
            f"the quantiles of {name!r} must be finite, of shape (N, H, Q) = {shape}; got {seen(values)}, with "
            f"{int((~np.isfinite(values)).sum())} that are not finite."
        )
    return values


def _adapted(
    adapted: AdaptiveIntervals, data: Series, origins_N: np.ndarray, levels_Q: np.ndarray, quantiles_NHQ: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of intervals that adapt, (N, H) each; values come in between origins."""
    ends, now = [], int(origins_N[0])
    for origin, each in zip(origins_N, quantiles_NHQ, strict=True):
        for value in data.values_TC[now:origin, 0]:
            adapted.observe(float(value))
        now = int(origin)
        ends.append(adapted.intervals(QuantileForecast(levels_Q, each)))
    for value in data.values_TC[now:, 0]:
        adapted.observe(float(value))
    low_NH, high_NH = (np.stack(each) for each in zip(*ends, strict=True))
    return low_NH, high_NH


def _naive_error(data: Series, start: int, forecasters: Iterable[Any]) -> float:
    """Return mean |y_t − y_{t−m}| before the first origin, m the longest season of the forecasters."""
    season = max(getattr(forecaster, "season", None) or data.season for forecaster in forecasters)
    values = data.values_TC[:start, 0]
    season = season if season < len(values) else 1
    error = float(np.abs(values[season:] - values[:-season]).mean())
    return error or 1.0
