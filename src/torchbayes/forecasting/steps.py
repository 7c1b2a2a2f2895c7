"""How far apart the times of a series are: a Timedelta, or an offset of pandas for steps of unequal length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from pandas.tseries.frequencies import to_offset

_MOST = 1500  # steps of a day from which no daily season is assumed
_DAY: Any = pd.Timedelta(days=1)
_NONE, _WEEK = 0 * _DAY, 7 * _DAY
# Offsets by the names of their units in a file.
_OFFSETS = {
    "months": lambda count: pd.DateOffset(months=count),
    "month ends": pd.offsets.MonthEnd,
    "days": lambda count: pd.DateOffset(days=count),
    "business days": pd.offsets.BusinessDay,
}
_WORDS = {"months": "month", "month ends": "month", "days": "day", "business days": "business day"}


def usual_step(dates: pd.DatetimeIndex) -> Any:
    """Return how far apart most of two or more dates in order are.

    That is an offset of months where all dates are the same day of their months, or the last. At the same time of the
    day it is one of business days where most are a day apart, and a weekend between them has none; and one of days in a
    time zone. Else it is a Timedelta.
    """
    years, months, days = (np.asarray(part) for part in (dates.year, dates.month, dates.day))
    apart = np.diff(years * 12 + months)
    ends = (days == np.asarray(dates.days_in_month)).all()
    if (apart > 0).all() and (ends or (days == days[0]).all()):
        return _OFFSETS["month ends" if ends else "months"](int(np.bincount(apart).argmax()))
    local = dates.tz_localize(None)
    usual = _mode(local)
    if usual % _DAY == _NONE and len(set(local - local.normalize())) == 1:
        weekdays, weeks = (np.asarray(local.day_of_week) < 5).all(), local.to_period("W")
        if usual == _DAY and weekdays and weeks[0] != weeks[-1]:
            return _OFFSETS["business days"](1)
        if dates.tz is not None:
            return _OFFSETS["days"](usual // _DAY)
    return _mode(dates)


def season_of(step: Any) -> int:
    """Return how many steps make a day, of days a week, of weeks or months a year; 1 if none is a whole number."""
    unit, count = entry_of(step)
    if unit in {"months", "month ends"}:
        return 12 // count if 12 % count == 0 else 1
    if unit == "business days":
        return 5
    length = count * _DAY if unit == "days" else step
    for whole, most in ((_DAY, _MOST), (_WEEK, 7)):
        steps = whole / length
        if 1 < steps <= most and steps == int(steps):
            return int(steps)
    return 52 if length == _WEEK else 1


def words_of(step: Any) -> str:
    """Return a step in words, such as "3 months"."""
    unit, count = _with_days(step)
    if unit not in _WORDS:
        return str(step)
    return _WORDS[unit] if count == 1 else f"{count} {_WORDS[unit]}s"


def code_of(step: Any, dates: pd.DatetimeIndex) -> str:
    """Return what pandas calls a step between these dates; empty if it has no name for it."""
    unit, count = _with_days(step)
    if unit == "months":
        return pd.offsets.MonthBegin(count).freqstr if dates.day.to_numpy()[0] == 1 else ""
    if unit == "days":
        return "D" if count == 1 else f"{count}D"
    return to_offset(step).freqstr


def entry_of(step: Any) -> tuple[str, int]:
    """Return a step as a unit and a number."""
    if isinstance(step, pd.Timedelta):
        return step.unit, step.value
    if isinstance(step, pd.offsets.MonthEnd):
        return "month ends", step.n
    if isinstance(step, pd.offsets.BusinessDay):
        return "business days", step.n
    ((unit, count),) = step.kwds.items()
    return unit, count


def step_of(unit: Any, count: int) -> Any:
    """Return the step that `entry_of` gave as a unit and a number."""
    return _OFFSETS[unit](count) if unit in _OFFSETS else pd.Timedelta(count).as_unit(unit)


def _with_days(step: Any) -> tuple[str, int]:
    """Return a step as `entry_of` does, but a Timedelta of whole days in days."""
    if isinstance(step, pd.Timedelta) and step % _DAY == _NONE:
        return "days", step // _DAY
    return entry_of(step)


def _mode(dates: pd.DatetimeIndex) -> Any:
    return pd.Series(dates[1:] - dates[:-1]).mode()[0]
