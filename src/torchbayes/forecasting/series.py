"""Series as users have them: values in order of time, with times and with covariates that are known in advance."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from torchbayes.checks import as_numbers, seen
from torchbayes.display import Overview, shown
from torchbayes.forecasting.steps import code_of, season_of, usual_step, words_of
from torchbayes.native.process import undisturbed_methods

_NONE = pd.Timedelta(0)
_YEAR = 365.2425  # days


def _overview(series: Series) -> Overview:
    facts: dict[str, Any] = {"values": len(series), "channels": series.values_TC.shape[1]}
    if series.times is not None:
        facts |= {"first": str(series.times[0]), "last": str(series.times[-1]), "season": series.season}
    return Overview("Series", facts)


@shown(_overview)
@undisturbed_methods
@dataclass(frozen=True, eq=False)
class Series:
    """A series of T values, one channel of which is forecast; `Series.of` makes one.

    Attributes:
        values_TC: the channels; the first is forecast, the others help.
        covariates_UK: what is known in advance, such as holidays: row u belongs to the time u, and U ≥ T.
        times: when, evenly spaced: T dates; None where only the order is known.
        step: the spacing of the times: a Timedelta, or an offset of months, of business days, or of days in a time
            zone, whose lengths differ.
        season: steps after which it may repeat: 24 of hours, 7 of days, 5 of business days, 52 of weeks, 12 of months,
            4 of quarters; 1 where the times say none.
    """

    values_TC: np.ndarray
    covariates_UK: np.ndarray | None = None
    times: pd.DatetimeIndex | None = None
    step: Any = None
    season: int = 1

    @classmethod
    def of(cls, values: Any, covariates: Any = None, times: Any = None) -> Series:
        """Return a series of values with covariates, or with times that are not in an index.

        Args:
            values: in order of time, an array, a tensor or a list, (T,) or (T, C), of which the first channel is to be
                forecast; or a Series or DataFrame of pandas, whose index gives the times if it is one of dates.
            covariates: what is known in advance, (U,) or (U, K), U ≥ T; to forecast, U ≥ T + H.
            times: T dates, evenly spaced; None for those of the index.

        Returns:
            The series, which everything here takes in the place of values.

        Raises:
            TypeError: if values are no numbers, or times no dates.
            ValueError: if a value is missing or infinite, there are fewer than 2, or times are not evenly spaced.
        """
        if times is None and isinstance(getattr(values, "index", None), pd.DatetimeIndex | pd.PeriodIndex):
            times = values.index
        dates = None if times is None else _dates(times)
        values_TC = _columns("series", values, dates)
        if len(values_TC) < 2:
            raise ValueError(f"`series` must have at least 2 values; got {len(values_TC)}.")
        known = None if covariates is None else _columns("covariates", covariates, None)
        if known is not None and len(known) < len(values_TC):
            raise ValueError(
                f"`covariates` must have a row for each of the {len(values_TC):,} values, and for the times to "
                f"forecast; got {len(known):,}."
            )
        if dates is None:
            return cls(values_TC, known)
        if len(dates) != len(values_TC):
            raise ValueError(f"`times` must be as many as the {len(values_TC):,} values; got {len(dates):,}.")
        return cls(values_TC, known, dates, *_spacing(dates))

    def __len__(self) -> int:
        return len(self.values_TC)

    def between(self, first: int, last: int, ahead: int) -> Series:
        """Return the values from `first` until before `last`, and what is known then of the `ahead` times after."""
        known, times = self.covariates_UK, self.times
        return replace(
            self,
            values_TC=self.values_TC[first:last],
            covariates_UK=None if known is None else known[first : last + ahead],
            times=None if times is None else times[first:last],
        )

    def after(self, ahead: int) -> pd.DatetimeIndex | None:
        """Return the times of the next `ahead` values; None where times are not known."""
        if self.times is None:
            return None
        return pd.DatetimeIndex([self.times[-1] + self.step * k for k in range(1, ahead + 1)])


def as_series(series: Any) -> Series:
    """Return a series of values, or itself."""
    return series if isinstance(series, Series) else Series.of(series)


def _columns(name: str, values: Any, dates: pd.DatetimeIndex | None) -> np.ndarray:
    """Return values as float64 (T, C)."""
    given = values.to_numpy() if hasattr(values, "to_numpy") else values  # copied, as tensors cannot share all arrays
    numbers = as_numbers(name, given.copy() if isinstance(given, np.ndarray) else given).detach().cpu().numpy()
    if numbers.ndim not in {1, 2} or not numbers.size:
        raise ValueError(f"`{name}` must have shape (T,) or (T, C), and hold values; got {seen(numbers)}.")
    columns = np.array(numbers, dtype=np.float64).reshape(len(numbers), -1)
    wrong = ~np.isfinite(columns).all(1)
    if wrong.any():
        first = int(wrong.argmax())
        when = "" if dates is None or first >= len(dates) else f", {dates[first]}"
        raise ValueError(
            f"`{name}` is missing or infinite at {int(wrong.sum()):,} of {len(columns):,} times, first at place {first}"
            f"{when}. Fill them first, such as by `series.ffill()` of pandas, or --fill in the shell, which "
            f"use no later value."
        )
    return columns


def _dates(times: Any) -> pd.DatetimeIndex:
    if isinstance(times, pd.PeriodIndex):
        return times.to_timestamp()
    try:
        return pd.DatetimeIndex(times)
    except (TypeError, ValueError) as error:
        raise TypeError(f"`times` must be dates; got {seen(times)}. Leave them out where rows count steps.") from error


def _spacing(dates: pd.DatetimeIndex) -> tuple[Any, int]:
    """Return the step of dates and their usual season; a ValueError if they are not in order, or not evenly spaced."""
    if dates.hasnans:
        raise ValueError(f"`times` holds {int(dates.isna().sum())} missing dates. Leave those rows out or date them.")
    steps: Any = dates[1:] - dates[:-1]
    if not (steps > _NONE).all():
        first = int((steps <= _NONE).argmax())
        raise ValueError(
            f"`times` must increase; after {dates[first]} comes {dates[first + 1]}. Sort the rows by time, and keep "
            f"one of each time."
        )
    usual = usual_step(dates)
    odd = np.asarray(dates[:-1] + usual != dates[1:])
    if not odd.any():
        return usual, season_of(usual)
    code = code_of(usual, dates)
    in_pandas = f"`series.asfreq({code!r}).ffill()` of pandas, or " if code else ""
    raise ValueError(
        f"`times` must be evenly spaced; {int(odd.sum()):,} of {len(steps):,} steps are not the usual "
        f"{words_of(usual)}, the first after {dates[int(odd.argmax())]}. Fill the gaps, such as by "
        f"{in_pandas}--fill in the shell; or give the values without times, if each row is a step."
    )


def calendar(times: pd.DatetimeIndex) -> np.ndarray:
    """Return places on the circles of the day, the week and the year, as sines and cosines, (T, 6).

    A circle of which all times have one place gives columns that are constant, which a fit leaves out.
    """
    day = (times.hour * 3600 + times.minute * 60 + times.second).to_numpy() / 86_400
    week = (times.day_of_week.to_numpy() + day) / 7
    year = (times.day_of_year.to_numpy() - 1 + day) / _YEAR
    return np.stack([wave(2 * np.pi * turn) for turn in (day, week, year) for wave in (np.sin, np.cos)], axis=1)
