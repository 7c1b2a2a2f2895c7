"""Columns of dates: how they are written, and what numbers they become.

A date becomes the days since the first one of the training rows; and of its year and its places in the year, the week
and the day, those that differ between training rows. A periodic quantity is a point on a circle, (sin, cos), so that
December is next to January.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import product

import numpy as np

from torchbayes.checks import seen
from torchbayes.data.user.table import MARKS, missing, texts_of

ISO = "ISO 8601"
_DAYS = (
    "%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%d %b %Y",
    "%d %B %Y", "%d-%b-%Y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y", "%m/%d/%y", "%d/%m/%y", "%d.%m.%y", "%d-%b-%y",
)  # fmt: skip
_TIMES = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p")
_FORMS = (ISO, *map("".join, product(_DAYS, _TIMES)), "%Y-%m", "%Y/%m")
_SCREENED = 50  # texts that rule most forms out
_PER_DAY = 86_400.0
_YEAR = 365.2425  # days


def _of_day(date: datetime) -> float:
    return (date.hour * 3600 + date.minute * 60 + date.second) / _PER_DAY


_CIRCLES: dict[str, Callable[[datetime], float]] = {  # share of a turn
    "month": lambda date: (date.timetuple().tm_yday - 1 + _of_day(date)) / _YEAR,
    "weekday": lambda date: (date.weekday() + _of_day(date)) / 7,
    "time of day": _of_day,
}
_DIFFER: dict[str, Callable[[datetime], float]] = {
    "year": lambda date: date.year,
    "month": lambda date: date.month,
    "weekday": lambda date: date.weekday(),
    "time of day": _of_day,
}


def read_date(text: str, form: str) -> datetime | None:
    """Return the date of a text, in UTC if it names a zone; None unless of this `form`, `strptime`'s or `ISO`."""
    date = None
    with suppress(ValueError):
        date = datetime.fromisoformat(text) if form == ISO else datetime.strptime(text, form)
    return None if date is None else date if date.tzinfo is None else date.astimezone(UTC).replace(tzinfo=None)


def forms_of(texts: Sequence[str]) -> list[str]:
    """Return the forms in which all (different) texts are dates, the most usual first; digits alone are no dates."""
    if any((text.replace(".", "").replace("-", "").isdigit() and len(text) < 6) or text.isdigit() for text in texts):
        return []
    forms = list(_FORMS)
    for sample in (texts[:_SCREENED], texts):
        forms = [form for form in forms if all(read_date(text, form) is not None for text in sample)]
    return forms


@dataclass(frozen=True)
class Dates:
    """How one column of dates becomes numbers."""

    name: str
    form: str  # how its dates are written
    first: datetime  # of the training rows; days count from it
    fill: float  # days that replace a missing date: the median
    flag: bool  # whether a further column marks missing dates
    high: float  # days from the first to the last training date
    parts: tuple[str, ...]  # of year, month, weekday and time of day, those that differ
    other: str = ""  # another form in which all its dates could be read, some of them as other dates

    values = None  # it is no category
    low = 0.0

    @property
    def width(self) -> int:
        """How many columns of numbers it becomes."""
        return 1 + sum(2 if part in _CIRCLES else 1 for part in self.parts) + self.flag

    @property
    def told(self) -> str:
        """A phrase on how the column is used."""
        last = self.first.toordinal() + int(self.high)
        instead_of = f", read as {self.form} and not as {self.other}" if self.other else ""
        return (
            f"{self.name} ({self.first:%Y-%m-%d} to {datetime.fromordinal(last):%Y-%m-%d}{instead_of}; as "
            f"{', '.join(('elapsed days', *self.parts))})"
        )

    def write(self, held: np.ndarray, block: np.ndarray) -> list[str]:
        """Write values (rows,) into the zeros `block` (rows, width); return sentences on missing values.

        Raises ValueError if one is not written as the dates of the training rows are.
        """
        absent = missing(held) | np.array([value in MARKS for value in held.tolist()], dtype=bool)
        present = np.flatnonzero(~absent)
        texts = texts_of(held[present])
        date_of = {text: read_date(text, self.form) for text in dict.fromkeys(texts)}
        wrong = next((row for row, text in zip(present, texts, strict=True) if date_of[text] is None), None)
        if wrong is not None:
            example = f"{self.first:%Y-%m-%d}" if self.form == ISO else f"{self.first:{self.form}}"
            raise ValueError(
                f"the column {self.name!r} must hold dates such as {example}, as in the training rows; row {wrong + 1} "
                f"has {seen(held[wrong])}. Correct it or leave it empty."
            )
        rows = {text: self._numbers(date) for text, date in date_of.items() if date is not None}
        block[absent, 0] = self.fill
        if texts:
            block[present, : self.width - self.flag] = np.array([rows[text] for text in texts])
        if self.flag:
            block[:, -1] = absent
        elif absent.any():
            return [f"Missing dates of {self.name!r}, taken for the median: {absent.sum():,}."]
        return []

    def texts(self, days: np.ndarray) -> np.ndarray:
        """Return dates, in days from the first, as the table writes them, (B,)."""
        each = _PER_DAY if "time of day" not in self.parts else 1  # seconds to which is rounded
        dates = [self.first + timedelta(seconds=round(day * _PER_DAY / each) * each) for day in days.tolist()]
        texts = [date.isoformat(" ") if self.form == ISO else date.strftime(self.form) for date in dates]
        return np.array(texts, dtype=object)

    def _numbers(self, date: datetime) -> list[float]:
        numbers = [(date - self.first).total_seconds() / _PER_DAY]
        for part in self.parts:
            if part in _CIRCLES:
                angle = 2 * np.pi * _CIRCLES[part](date)
                numbers += [float(np.sin(angle)), float(np.cos(angle))]
            else:
                numbers.append(_DIFFER[part](date))
        return numbers


def fit_dates(name: str, texts: Sequence[str], *, flag: bool) -> Dates | None:
    """Return how a column of texts becomes numbers, if all are dates; else None. `flag`: some rows have none."""
    forms = forms_of(sorted(set(texts)))
    if not forms:
        return None
    dates = [date for text in texts if (date := read_date(text, forms[0])) is not None]
    first = min(dates)
    days = [(date - first).total_seconds() / _PER_DAY for date in dates]
    parts = tuple(part for part, of in _DIFFER.items() if len({of(date) for date in dates}) > 1)
    others = (
        form for form in forms[1:] if any(read_date(text, form) != read_date(text, forms[0]) for text in set(texts))
    )
    return Dates(name, forms[0], first, float(np.median(days)), flag, max(days), parts, next(others, ""))
