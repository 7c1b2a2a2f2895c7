"""Other ways to forecast, to compare with: seasonal naive, exponential smoothing, boosted trees."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtri

from torchbayes.checks import as_seed, check_counts, optional
from torchbayes.display import shown_by
from torchbayes.forecasting.forecast import LEVELS, Fitted, between, check_levels
from torchbayes.forecasting.rows import Rows
from torchbayes.forecasting.series import Series, as_series
from torchbayes.forecasting.windows import check_length
from torchbayes.native.process import undisturbed_methods


@undisturbed_methods
@dataclass(frozen=True)
class SeasonalNaive:
    """The value a season ago, y_{t+h−m⌈h/m⌉}, and the quantiles of how far that was off at each step h so far.

    Attributes:
        horizon: H, how many values ahead.
        season: m; what the times say if None, 1 for the last value.
    """

    horizon: int
    season: int | None = None

    def __post_init__(self) -> None:
        check_counts(horizon=self.horizon)
        optional(check_counts, season=self.season)

    def fit(self, series: Any) -> FittedNaive:
        """Learn the errors of a series.

        Args:
            series: as `BayesianForecaster.fit` takes it.

        Returns:
            What it has learned, with `forecast` and `quantiles`.

        Raises:
            ValueError: as `BayesianForecaster.fit` does.
        """
        data = as_series(series)
        season = self.season or data.season
        check_length(data, season, self.horizon)
        rows = Rows(self.horizon, season, season, np.zeros(1), np.ones(1))
        return FittedNaive(data, rows, rows.targets(data, rows.origins(data)).astype(np.float64))


@shown_by("horizon")
@undisturbed_methods
@dataclass(frozen=True, eq=False)
class FittedNaive(Fitted):
    """What `SeasonalNaive.fit` returns.

    Attributes:
        series: of the fit.
        rows: how windows become rows.
        errors_NH: of the series of the fit.
    """

    errors_NH: np.ndarray

    def quantiles(self, pasts: Sequence[Series], levels: Sequence[float]) -> np.ndarray:
        """Return the quantiles of the values after each of N series, (N, H, Q)."""
        quantiles_HQ = np.quantile(self.errors_NH, list(levels), axis=0).T
        return quantiles_HQ + self.rows.ends(pasts)[1][..., None]


@undisturbed_methods
@dataclass(frozen=True)
class ETS:
    """Exponential smoothing with additive errors, trend and season by maximum likelihood, of `statsmodels`.

    Its quantiles are those of the normal predictive distribution with the parameters that were found. It uses neither
    other channels nor covariates.

    Attributes:
        horizon: H, how many values ahead.
        season: m; what the times say if None, 1 for no season.
        damped: whether the trend is damped.
    """

    horizon: int
    season: int | None = None
    damped: bool = True

    def __post_init__(self) -> None:
        check_counts(horizon=self.horizon)
        optional(check_counts, season=self.season)

    def fit(self, series: Any) -> FittedETS:
        """Find the parameters of a series.

        Args:
            series: as `BayesianForecaster.fit` takes it.

        Returns:
            What it has learned, with `forecast` and `quantiles`.

        Raises:
            ImportError: if `statsmodels` is not installed.
            ValueError: if the series has fewer than 10 values and two seasons.
        """
        data = as_series(series)
        season = self.season or data.season
        check_length(data, 2 * season, max(10, self.horizon))
        rows = Rows(self.horizon, season, season, np.zeros(1), np.ones(1))
        fitted = FittedETS(data, rows, self.damped, np.zeros(0))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of searches that end at a bound, which is no fault here
            results = fitted.model(data).fit(disp=False)
        return replace(fitted, params=np.asarray(results.params))


@shown_by("horizon")
@undisturbed_methods
@dataclass(frozen=True, eq=False)
class FittedETS(Fitted):
    """What `ETS.fit` returns.

    Attributes:
        series: of the fit.
        rows: horizon and season.
        damped: whether the trend is damped.
        params: of the model, as `statsmodels` has them.
    """

    damped: bool
    params: np.ndarray

    def model(self, data: Series) -> Any:
        """Return the model of a series, as `statsmodels` has it."""
        try:
            from statsmodels.tsa.exponential_smoothing.ets import ETSModel
        except ImportError as error:
            raise ImportError("ETS needs the package statsmodels. Run: pip install torchbayes[forecasting].") from error
        seasonal: dict[str, Any] = (
            {"seasonal": "add", "seasonal_periods": self.rows.season} if self.rows.season > 1 else {}
        )
        return ETSModel(
            pd.Series(data.values_TC[:, 0]),
            error="add",
            trend="add",
            damped_trend=self.damped,
            initialization_method="heuristic",
            **seasonal,
        )

    def quantiles(self, pasts: Sequence[Series], levels: Sequence[float]) -> np.ndarray:
        """Return the quantiles of the values after each of N series, (N, H, Q)."""
        parts = []
        for past in pasts:
            smoothed = self.model(past).smooth(self.params)
            ahead = smoothed.get_prediction(start=len(past), end=len(past) + self.horizon - 1)
            scale_H = np.sqrt(np.asarray(ahead.forecast_variance))
            parts.append(np.asarray(ahead.predicted_mean)[:, None] + scale_H[:, None] * ndtri(np.array(levels)))
        return np.stack(parts)


@undisturbed_methods
@dataclass(frozen=True)
class BoostedTrees:
    """Boosted trees of scikit-learn by the pinball loss, a model for each level, with the step h as a column.

    The rows are those of `BayesianForecaster`, each once for every step; of more than `most`, so many are taken.

    Attributes:
        horizon: H, how many values ahead.
        season: m; what the times say if None.
        context: L; twice the larger of season and horizon if None.
        levels: the levels that are learned; others lie between them on straight lines, and none beyond.
        most: most rows.
        seed: seed of the trees.
    """

    horizon: int
    season: int | None = None
    context: int | None = None
    levels: tuple[float, ...] = LEVELS
    most: int = 50_000
    seed: int = 0

    def __post_init__(self) -> None:
        check_counts(horizon=self.horizon, most=self.most)
        optional(check_counts, season=self.season, context=self.context)
        object.__setattr__(self, "levels", tuple(check_levels(self.levels)))
        as_seed(self.seed)

    def fit(self, series: Any) -> FittedTrees:
        """Learn from all windows of a series.

        Args:
            series: as `BayesianForecaster.fit` takes it.

        Returns:
            What it has learned, with `forecast` and `quantiles`.

        Raises:
            ValueError: as `BayesianForecaster.fit` does.
        """
        from sklearn.ensemble import HistGradientBoostingRegressor

        data = as_series(series)
        rows = Rows.of(data, horizon=self.horizon, season=self.season, context=self.context)
        origins_N = rows.origins(data)
        taken = _spread(len(origins_N) * self.horizon, self.most)
        inputs = with_steps(rows.inputs(data, origins_N), self.horizon)[taken]
        targets = rows.targets(data, origins_N).reshape(-1)[taken]
        trees = [
            HistGradientBoostingRegressor(loss="quantile", quantile=level, random_state=self.seed % 2**32)
            for level in self.levels
        ]
        return FittedTrees(data, rows, self.levels, [each.fit(inputs, targets) for each in trees])


@shown_by("horizon")
@undisturbed_methods
@dataclass(frozen=True, eq=False)
class FittedTrees(Fitted):
    """What `BoostedTrees.fit` returns.

    Attributes:
        series: of the fit.
        rows: how windows become rows.
        levels: the levels that were learned.
        trees: a model for each.
    """

    levels: tuple[float, ...]
    trees: Sequence[Any]

    def quantiles(self, pasts: Sequence[Series], levels: Sequence[float]) -> np.ndarray:
        """Return the quantiles of the values after each of N series, (N, H, Q).

        Raises:
            ValueError: if a level lies beyond those that were learned.
        """
        inputs_ND, naive_NH = self.rows.ends(pasts)
        steps = with_steps(inputs_ND, self.horizon)
        learned = np.sort(np.stack([each.predict(steps) for each in self.trees], axis=-1), axis=-1)
        wanted = np.stack([between(level, self.levels, learned) for level in levels], axis=-1)
        return self.rows.in_units(wanted.reshape(len(pasts), self.horizon, -1), naive_NH)


def _spread(count: int, most: int) -> np.ndarray:
    """Return at most `most` of `count` places, in order, in no rhythm that could be that of a season."""
    if count <= most:
        return np.arange(count)
    turn = (math.sqrt(5) - 1) / 2  # multiples of the golden ratio fill the circle evenly
    return np.unique((np.arange(most) * turn % 1 * count).astype(np.int64))


def with_steps(inputs_ND: np.ndarray, horizon: int) -> np.ndarray:
    """Return each row once for every step, (N H, D + 1), the step last."""
    steps = np.tile(np.arange(1, horizon + 1, dtype=np.float32), len(inputs_ND))
    return np.column_stack([np.repeat(inputs_ND, horizon, axis=0), steps])
