"""The times of a table's rows, as `forecast` reads them: dates, months, quarters, or numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import numpy as np

from torchbayes.cli.terminal import say

if TYPE_CHECKING:
    import pandas as pd

_QUARTER = r"\d{4}-?Q[1-4]"


@dataclass(frozen=True)
class Steps:
    """Times that are evenly spaced numbers, such as years."""

    name: str
    last: int | float
    step: int | float

    @classmethod
    def of(cls, name: str, times: pd.Index) -> Steps | None:
        """Return the steps of times; None of dates. A ValueError unless numbers are evenly spaced and increase."""
        if times.dtype.kind not in "biuf":
            return None
        numbers = times.to_numpy()
        steps, rounding = np.diff(numbers.astype(float)), 4 * np.spacing(float(np.abs(numbers).max()))
        if not (len(steps) and steps[0] > 0 and np.allclose(steps, steps[0], rtol=1e-6, atol=rounding)):
            raise ValueError(f"the column {name!r} must hold dates, or numbers that are evenly spaced.")
        step = numbers[1] - numbers[0] if numbers.dtype.kind in "iu" else (numbers[-1] - numbers[0]) / len(steps)
        return cls(name, numbers[-1].item(), step.item())

    def after(self, count: int) -> pd.Index:
        """Return the next numbers."""
        import pandas as pd

        numbers = [self.last + self.step * k for k in range(1, count + 1)]
        each = [float(f"{number:.12g}") if isinstance(number, float) else number for number in numbers]
        return pd.Index(each, name="time", dtype=object)  # which is written as it is, and not in the digits of values


def times_of(name: str, times: np.ndarray, zone: str | None) -> Any:
    """Return the index of times: dates, or numbers. A ValueError if they are neither, or do not fit the zone."""
    import pandas as pd

    from torchbayes.data.user.dates import ISO, forms_of, read_date
    from torchbayes.data.user.table import texts_of

    if times.dtype.kind != "O":
        return pd.Index(times)
    texts = texts_of(times)
    forms = forms_of(list(dict.fromkeys(texts)))
    if all(re.fullmatch(_QUARTER, text) for text in texts):
        return pd.PeriodIndex(texts, freq="Q").to_timestamp()
    if not forms:
        raise ValueError(
            f"the column {name!r} must hold dates of one form that is known, such as 2026-01-31, 2026-01-31 13:00, "
            f"2026-01 or 2026Q1."
        )
    dates = pd.DatetimeIndex([read_date(text, forms[0]) for text in texts])
    offsets: set[Any] = {datetime.fromisoformat(text).utcoffset() for text in texts} if forms[0] == ISO else {None}
    if len(offsets) > 1 and None in offsets:
        raise ValueError(f"the column {name!r} must hold times that all have an offset from UTC, or none; some have.")
    if offsets != {None}:
        dates = dates.tz_localize("UTC")
    if zone is not None:
        return _in_zone(name, dates, zone)
    if len(offsets) == 1:
        return dates if dates.tz is None else dates.tz_convert(timezone(*offsets))
    say(
        f"The times of {name!r} have several offsets from UTC, as where a clock changes, and are taken in UTC. Say the "
        f"zone to keep the hour of the day: --zone Europe/Vienna."
    )
    return dates


def _in_zone(name: str, dates: pd.DatetimeIndex, zone: str) -> pd.DatetimeIndex:
    try:
        return dates.tz_localize(zone, ambiguous="infer") if dates.tz is None else dates.tz_convert(zone)
    except Exception as error:  # those of pandas have no common class
        raise ValueError(f"`--zone` {zone!r} is not known, or does not have the times of {name!r}: {error}.") from None


def filled(frame: Any) -> Any:
    """Return a frame whose gaps and missing values are the value before them, and say how many."""
    import pandas as pd

    from torchbayes.forecasting.steps import usual_step

    dates = frame.index
    if isinstance(dates, pd.DatetimeIndex) and len(frame) > 2 and dates.is_monotonic_increasing and dates.is_unique:
        every = pd.date_range(dates[0], dates[-1], freq=usual_step(dates))
        if dates.isin(every).all():  # uneven times are refused later
            frame = frame.reindex(every)
    lacking = int(frame.isna().any(axis=1).sum())
    say(f"Filled with the value before: {lacking:,} of {len(frame):,} times.")
    return frame.ffill()
