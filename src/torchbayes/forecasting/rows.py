r"""Rows without units: what a forecaster that learns from windows takes in, and what it predicts.

A row has the last L values relative to the last of them, that last value, the covariates of the next H times, and the
place of the origin in day, week and year. Its targets are the differences of the next values from the seasonal naive
forecast,

    z_h = (y_{t+h} − y_{t+h−m⌈h/m⌉}) / scale,      m the season, 1 for none,

all of which a linear function of the row can express, so that nothing is lost, and what repeats need not be learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchbayes.checks import check_scale
from torchbayes.forecasting.series import Series, calendar
from torchbayes.forecasting.windows import check_length, cut


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
        with np.errstate(over="ignore", invalid="ignore"):  # which the check of the scale says
            scale_C = data.values_TC.std(0)
        if (data.values_TC[:, 0] == data.values_TC[0, 0]).all():
            raise ValueError(f"all {len(data):,} values of `series` are the same, and there is nothing to learn.")
        check_scale(**{"standard deviation of `series`": float(scale_C[0])})
        return cls(horizon, season, context, data.values_TC.mean(0), np.where(scale_C > 0, scale_C, 1.0))

    def origins(self, data: Series) -> np.ndarray:
        """Return the origins of the rows to learn from."""
        return np.arange(self.context, len(data) - self.horizon + 1)

    def inputs(self, data: Series, origins_N: np.ndarray) -> np.ndarray:
        """Return the inputs of rows, float32 (N, D)."""
        contexts_NLC, known_NHK = cut(data, origins_N, self.context, horizon=self.horizon)
        scaled_NLC = (contexts_NLC - self.centre_C) / self.scale_C
        last_NC = scaled_NLC[:, -1:].copy()
        scaled_NLC = np.concatenate([scaled_NLC[:, :-1] - last_NC, last_NC], axis=1)
        parts = [scaled_NLC, known_NHK]
        if data.times is not None:
            parts.append(calendar(data.times[origins_N - 1]))
        return np.concatenate([array.reshape(len(origins_N), -1) for array in parts], axis=1).astype(np.float32)

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
