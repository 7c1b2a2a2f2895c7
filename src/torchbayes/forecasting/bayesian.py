r"""Forecasts by a posterior over networks: one network gives all H steps at once.

A row has the last L values relative to the last of them, that last value, the covariates of the next H times, and the
place of the origin in day, week and year. Its targets are the differences of the next values from the seasonal naive
forecast,

    z_h = (y_{t+h} − y_{t+h−m⌈h/m⌉}) / scale,      m the season, 1 for none,

all of which a linear network can express, so that nothing is lost, and what repeats need not be learned. The predictive
distribution is that of `BayesianRegressor`, the average over the posterior, of each step by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from torchbayes.checks import as_seed, check_counts, optional
from torchbayes.forecasting.forecast import Fitted
from torchbayes.forecasting.series import Series, as_series, calendar
from torchbayes.forecasting.windows import check_length, cut
from torchbayes.methods.optimise.swag import SWAG
from torchbayes.native.process import undisturbed_methods
from torchbayes.sklearn.regression import BayesianRegressor


@dataclass(frozen=True, eq=False)
class Rows:
    """How windows become rows of numbers without units.

    Attributes:
        horizon: H.
        season: m.
        context: L.
        centre_C: mean of each channel.
        scale_C: its standard deviation.
    """

    horizon: int
    season: int
    context: int
    centre_C: np.ndarray
    scale_C: np.ndarray

    @classmethod
    def of(cls, data: Series, *, horizon: int, season: int | None, context: int | None) -> Rows:
        """Return the rows of a series; a ValueError if it is too short or constant."""
        season = season or data.season
        context = context or 2 * max(season, horizon)
        if context < season:
            raise ValueError(f"`context` must be at least the season, {season}; got {context}.")
        check_length(data, context, horizon + 1)
        scale_C = data.values_TC.std(0)
        if not scale_C[0] > 0:
            raise ValueError(f"all {len(data):,} values of `series` are the same, and there is nothing to learn.")
        return cls(horizon, season, context, data.values_TC.mean(0), np.where(scale_C > 0, scale_C, 1.0))

    def origins(self, data: Series) -> np.ndarray:
        """Return the origins of the rows to learn from."""
        return np.arange(self.context, len(data) - self.horizon + 1)

    def inputs(self, data: Series, origins_N: np.ndarray) -> np.ndarray:
        """Return the inputs of rows, float32 (N, D)."""
        contexts_NLC, known_NHK = cut(data, origins_N, self.context, self.horizon)
        scaled_NLC = (contexts_NLC - self.centre_C) / self.scale_C
        last_NC = scaled_NLC[:, -1:].copy()
        scaled_NLC = np.concatenate([scaled_NLC[:, :-1] - last_NC, last_NC], axis=1)
        parts = [scaled_NLC, known_NHK]
        if data.times is not None:
            parts.append(calendar(data.times[origins_N - 1]))
        return np.concatenate([part.reshape(len(origins_N), -1) for part in parts], axis=1).astype(np.float32)

    def naive(self, data: Series, origins_N: np.ndarray) -> np.ndarray:
        """Return the seasonal naive forecasts, (N, H)."""
        steps_H = np.arange(self.horizon) - self.season * (np.arange(self.horizon) // self.season + 1)
        return data.values_TC[origins_N[:, None] + steps_H, 0]

    def targets(self, data: Series, origins_N: np.ndarray) -> np.ndarray:
        """Return the targets of rows, float32 (N, H)."""
        values_NH = data.values_TC[origins_N[:, None] + np.arange(self.horizon), 0]
        return ((values_NH - self.naive(data, origins_N)) / self.scale_C[0]).astype(np.float32)

    def ends(self, pasts: Sequence[Series]) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs (N, D) and seasonal naive forecasts (N, H) at the ends of N series."""
        for past in pasts:
            check_length(past, self.context, 0)
        pieces = [past.between(len(past) - self.context, len(past), self.horizon) for past in pasts]
        end = np.array([self.context])
        rows, naive = ([each(piece, end) for piece in pieces] for each in (self.inputs, self.naive))
        return np.concatenate(rows), np.concatenate(naive)

    def in_units(self, quantiles_NHQ: np.ndarray, naive_NH: np.ndarray) -> np.ndarray:
        """Return quantiles of targets as those of values, which increase along Q."""
        return np.sort(quantiles_NHQ * self.scale_C[0] + naive_NH[..., None], axis=-1)


@undisturbed_methods
@dataclass(frozen=True)
class BayesianForecaster:
    """Forecasts by a posterior over the weights of a network.

    Attributes:
        horizon: H, how many values ahead.
        season: m, after how many values the series may repeat; what its times say if None, such as 24 of hours; 1 for
            no season.
        context: L, how many values a forecast looks back, at least a season; twice the larger of season and horizon
            if None.
        network: as of `BayesianRegressor`: "mlp", a module from (B, D) to (B, K), or a function (D, K) -> module.
        method: how to infer, such as `torchbayes.SWAG(members=5)`.
        likelihood: "heteroscedastic": normal noise of its own at each step, which depends on the inputs; another name,
            such as "student_t", or a likelihood, of targets that are standardised.
        prior: of the weights; that of `Model` if None.
        seed: seed of the fit.
    """

    horizon: int
    season: int | None = None
    context: int | None = None
    network: Any = "mlp"
    method: Any = field(default_factory=lambda: SWAG(members=5))
    likelihood: Any = "heteroscedastic"
    prior: Any = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_counts(horizon=self.horizon)
        optional(check_counts, season=self.season, context=self.context)
        as_seed(self.seed)

    def fit(self, series: Any, *, covariates: Any = None, times: Any = None) -> FittedBayesian:
        """Infer the posterior from all windows of a series.

        Args:
            series: values in order of time, (T,) or (T, C), of which the first channel is forecast; or a Series or
                DataFrame of pandas, with dates as index.
            covariates: what is known in advance, (U,) or (U, K), U ≥ T.
            times: T dates; None for those of the index.

        Raises:
            TypeError: if values are no numbers, or the method or the network is none.
            ValueError: if a value is missing, times are not evenly spaced, or the series is too short or constant.
        """
        data = as_series(series, covariates, times)
        rows = Rows.of(data, horizon=self.horizon, season=self.season, context=self.context)
        origins_N = rows.origins(data)
        regressor = BayesianRegressor(
            self.network, method=self.method, likelihood=self.likelihood, prior=self.prior, random_state=self.seed
        )
        targets_NH = rows.targets(data, origins_N)
        regressor.fit(rows.inputs(data, origins_N), targets_NH if self.horizon > 1 else targets_NH[:, 0])
        return FittedBayesian(data, rows, regressor)


@undisturbed_methods
@dataclass(frozen=True, eq=False)
class FittedBayesian(Fitted):
    """What `BayesianForecaster.fit` returns.

    Attributes:
        series: of the fit.
        rows: how windows become rows.
        regressor: the fitted `BayesianRegressor` of the rows, whose `posterior_` is the posterior.
    """

    series: Series
    rows: Rows
    regressor: BayesianRegressor

    @property
    def horizon(self) -> int:  # type: ignore[override]
        """H, how many values ahead."""
        return self.rows.horizon

    @property
    def problems(self) -> tuple[str, ...]:
        """Known problems of the posterior, one clause each."""
        return self.regressor.posterior_.problems

    def quantiles(self, pasts: Sequence[Series], levels: Sequence[float]) -> np.ndarray:
        """Return the quantiles of the values after each of N series, (N, H, Q)."""
        inputs_ND, naive_NH = self.rows.ends(pasts)
        quantiles = self.regressor.predict_quantile(inputs_ND, list(levels))
        return self.rows.in_units(quantiles.reshape(len(pasts), self.horizon, -1), naive_NH)
