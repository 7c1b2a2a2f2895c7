"""How the columns of a table become numbers, by rules that are fitted to the training rows and can be stated.

Before that their texts are recognised: missing values, numbers, or numbers with units and separators.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from torchbayes.checks import check_memory, seen
from torchbayes.data.user.dates import Dates, fit_dates
from torchbayes.data.user.rows import Encoded, as_number, shortened
from torchbayes.data.user.table import MARKS, Table, missing, texts_of

MANY = 20  # with more different values, numbers are not names and texts not classes

_PLAIN = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?inf(?:inity)?", re.ASCII)
_WRITTEN = re.compile(  # a sign, a currency, digits with separators, a unit
    r"[+-]?(?:[A-Z]{3}|[$€£¥₹])? ?[+-]?"
    r"(?:\d+(?:[.,]\d+)?|\.\d+|\d{1,3}([,.' ])\d{3}(?:\1\d{3})*(?:[.,]\d+)?)(?:[eE][+-]?\d+)?"
    r" ?(?:[A-Za-zµ°%‰$€£¥₹][^\d\s]{0,6}\d?)?"
)
_PLAINLY = "as plain numbers, such as 1234.56"


class Cells(NamedTuple):
    """Counts of the cells of a column that have a value."""

    rows: int  # cells
    values: int  # different values
    numbers: int  # cells that are plain numbers
    scale: int  # different numbers among them
    texts: int  # the other cells
    first: str  # the first of these, with its row and table, in words
    written: bool  # whether all look like numbers, some with units or separators


def look_at(name: str, tables: Sequence[Table]) -> Cells | None:
    """Count the cells of a column over several tables; None where no table has texts in it."""
    columns = [table.columns[name] for table in tables]
    if all(column.dtype.kind != "O" for column in columns):
        return None
    counts = Counter(text for column in columns for text in texts_of(column[~missing(column)]))
    plain = {text for text in counts if _PLAIN.fullmatch(text)}
    numbers = sum(counts[text] for text in plain)
    first_text = next((said for table in tables if (said := _first(table, name, plain))), "")
    written = look_like_numbers(counts)
    return Cells(counts.total(), len(counts), numbers, len(plain), counts.total() - numbers, first_text, written)


def look_like_numbers(texts: Collection[str]) -> bool:
    """Return whether all texts look like numbers, of which some have units or separators."""
    return all(map(_WRITTEN.fullmatch, texts)) and not all(map(_PLAIN.fullmatch, texts))


def check_target(name: str, tables: Sequence[Table], task: Literal["classification", "regression"] | None) -> None:
    """Raise ValueError if texts in the target are numbers with stray texts or units, and not classes."""
    cells = None if task == "classification" else look_at(name, tables)
    if cells is None:
        return
    or_classes = "If its values are classes: --data_settings.task classification."
    if cells.texts and cells.scale > (0 if task == "regression" else MANY):
        advice = f"Write them {_PLAINLY}" if cells.written else "Correct such cells"
        raise ValueError(
            f"the target {name!r} has {_amount(cells.numbers, 'number')} and {_amount(cells.texts, 'text')}; the first "
            f"is {cells.first}. {advice}, or empty them: rows without a target are left out. {or_classes}"
        )
    if task is None and cells.values > MANY and (cells.written or cells.values > cells.rows / 2):
        raise ValueError(
            f"the target {name!r} has {cells.values:,} different texts in {cells.rows:,} rows, and classes repeat; the "
            f"first is {cells.first}. Write numbers plainly, such as 1234.56. {or_classes}"
        )


def check_input(name: str, tables: Sequence[Table]) -> None:
    """Raise ValueError if at least half of a column are numbers of many values, and the rest texts.

    Such a column would become one of texts.
    """
    cells = look_at(name, [table for table in tables if name in table.columns])
    if cells is None or not cells.texts or cells.scale <= MANY or 2 * cells.numbers < cells.rows:
        return
    do = f"Write them {_PLAINLY}" if cells.written else "Correct or empty such cells"
    listed = f'"[{name if name.isidentifier() else repr(name)}]"'
    raise ValueError(
        f"the column {name!r} has {_amount(cells.numbers, 'number')} and {_amount(cells.texts, 'text')}; the first is "
        f"{cells.first}. {do}, or take all for names, --data_settings.categorical {listed}, or leave the column out, "
        f"--data_settings.leave_out {listed}."
    )


def far(name: str, numbers: np.ndarray) -> list[str]:
    """Return a sentence on finite numbers (N,) that are far from all others: over 1000 interquartile ranges."""
    low, middle, high = np.percentile(numbers, [25, 50, 75])
    distance = abs(numbers - middle)
    count = int((distance > 1000 * (high - low)).sum())
    if high == low or not count:
        return []
    return [
        f"Far from all others in {name!r}: {_amount(count, 'number')}, up to {numbers[distance.argmax()]:.6g} where "
        f"the median is {middle:.6g}. Standardised, the others are nearly the same: correct or empty such cells."
    ]


def _first(table: Table, name: str, plain: Collection[str]) -> str:
    """Return the first text that is no plain number, and its place, in words; empty if there is none."""
    column = table.columns[name]
    rows = np.flatnonzero(~missing(column))
    text, row = next(((t, i) for t, i in zip(texts_of(column[rows]), rows, strict=True) if t not in plain), ("", -1))
    return "" if row < 0 else f"{seen(text)} in row {row + 1} of {table.name or 'the table'} (names not counted)"


def _amount(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


MOST_VALUES = 50  # values of a one-hot column of texts; also at most half as many as rows

_LARGEST = 1e100  # squares of larger numbers overflow, and of numbers below its inverse are 0


def check_size(subject: str, numbers: np.ndarray) -> None:
    """Raise ValueError if the numbers of `subject` are so large or small that they have no standard deviation."""
    size = abs(numbers).max()
    if size > _LARGEST or 0 < size < 1 / _LARGEST:
        raise ValueError(f"{subject} has numbers up to {size:.3g}. Use another unit or its log.")


_FLAGS = {"True": 1.0, "False": 0.0}


@dataclass(frozen=True)
class Column:
    """How one column of a table becomes numbers."""

    name: str
    values: tuple[str, ...] | None = None  # sorted values of a category; None for a number
    fill: float = 0.0  # replaces a missing number
    flag: bool = False  # whether a further column marks missing numbers
    low: float = 0.0  # smallest training value
    high: float = 0.0  # largest training value

    @property
    def width(self) -> int:
        """How many columns of numbers it becomes."""
        return 1 + self.flag if self.values is None else len(self.values)

    def write(self, held: np.ndarray, block: np.ndarray) -> list[str]:
        """Write values (rows,) into the zeros `block` (rows, width); return sentences on values new to training."""
        return self._write_number(held, block) if self.values is None else self._write_category(held, block)

    def _write_number(self, held: np.ndarray, block: np.ndarray) -> list[str]:
        absent = missing(held)
        if held.dtype.kind == "O":
            absent |= np.array([value in MARKS for value in held], dtype=bool)
        if held.dtype.kind == "O" and (self.low, self.high) == (0.0, 1.0):  # flags of which some are missing are texts
            held = np.array([_FLAGS.get(value, value) for value in held.tolist()], dtype=object)
        numbers = _numbers(self.name, held, absent)
        block[:, 0] = np.where(absent, self.fill, numbers)
        if self.flag:
            block[:, 1] = absent
        elif absent.any():
            return [
                f"Missing values of {self.name!r} that are taken for the median, {self.fill:.6g}: {absent.sum():,}."
            ]
        return []

    def _write_category(self, held: np.ndarray, block: np.ndarray) -> list[str]:
        index_of = {value: i for i, value in enumerate(self.values or ())}
        present = np.flatnonzero(~missing(held))
        texts = texts_of(held[present])
        indices = np.array([index_of.get(text, -1) for text in texts], dtype=np.int64)
        block[present[indices >= 0], indices[indices >= 0]] = 1.0
        unknown = sorted(set(texts) - index_of.keys())
        if not unknown:
            return []
        return [
            f"Rows with a value of {self.name!r} that no training row has ({shortened(unknown, 3)}), taken as none of "
            f"its values: {(indices < 0).sum():,}."
        ]


@dataclass(frozen=True)
class Columns:
    """How a table becomes numbers."""

    columns: tuple[Column | Dates, ...]
    where: str  # the table they were fitted to, for messages

    @property
    def width(self) -> int:
        """How many columns of numbers they become."""
        return sum(column.width for column in self.columns)

    def __call__(self, table: Table) -> Encoded:
        """Return a table, which may have more columns, as numbers (rows, features), with sentences on unseen values.

        Raises ValueError if a column is absent, or holds texts in the place of numbers.
        """
        absent = [repr(column.name) for column in self.columns if column.name not in table.columns]
        if absent:
            raise ValueError(
                f"the table has no column {shortened(absent)}, which {self.where} has. Its columns are "
                f"{shortened(table.names)}."
            )
        check_memory(8 * len(table) * self.width, "the numbers of the table", rows=len(table))
        values = np.zeros((len(table), self.width))
        unseen, start, outside = [], 0, np.zeros(len(table), dtype=bool)
        for column in self.columns:
            block = values[:, start : start + column.width]
            start += column.width
            unseen += column.write(table.columns[column.name], block)
            if column.values is None:
                outside |= (block[:, 0] < column.low) | (block[:, 0] > column.high)
        notes = list(unseen)
        if outside.any():
            notes.append(f"Rows outside the range of the training rows in some column: {outside.sum():,}.")
        return Encoded(values, tuple(notes), tuple(unseen))


def fit_columns(
    table: Table, where: str, *, left: dict[str, str], categorical: Sequence[str]
) -> tuple[Columns, tuple[str, ...]]:
    """Return how a table of training rows becomes numbers, and sentences that describe it.

    `left` maps columns that are no inputs to the reason, if that is to be told. `categorical` columns are categories
    whatever they hold. Raises ValueError if no column is left.
    """
    columns, outliers, reasons, absent = [], [], {name: why for name, why in left.items() if why}, {}
    for name, values in table.columns.items():
        if name in left:
            continue
        column = _column(name, values, category=name in categorical)
        if isinstance(column, str):
            reasons[name] = column
            continue
        columns.append(column)
        if isinstance(column, Column) and column.values is None:
            outliers += far(name, values[~missing(values)].astype(np.float64))
        if count := int(missing(values).sum()):
            absent[name] = count
    if not columns:
        told = "; ".join(f"{name} ({why})" for name, why in reasons.items())
        raise ValueError(f"no column of {where} can be an input: {told or 'it has only the target'}. Add columns.")
    return Columns(tuple(columns), where), (*_told(columns, reasons, absent), *outliers)


def _column(name: str, values: np.ndarray, *, category: bool) -> Column | Dates | str:
    """Return how a column becomes numbers, or why it is left out."""
    absent = missing(values)
    present = values[~absent]
    if not len(present):
        return "empty"
    texts = sorted(set(texts_of(present))) if present.dtype.kind == "O" or category else []
    if not absent.any() and (len(texts) == 1 or (not texts and (present == present[0]).all())):
        return f"the same in every row, {present[0]}"
    if texts and not category and (dates := fit_dates(name, texts_of(present), flag=bool(absent.any()))) is not None:
        return dates
    if texts and (category or len(texts) <= min(MOST_VALUES, len(present) / 2)):
        return Column(name, tuple(texts))
    plain = {text for text in texts if _PLAIN.fullmatch(text)}
    if len(plain) < len(texts):  # else all texts are numbers, and become such
        count = sum(text in plain for text in texts_of(present))
        if len(plain) > MANY and 2 * count >= len(present):
            stray = next(text for text in texts_of(present) if text not in plain)
            raise ValueError(
                f"the column {name!r} has {_amount(count, 'number')} and {_amount(len(present) - count, 'text')}, such "
                f"as {seen(stray)}. Correct or empty such cells, or leave the column out."
            )
        like = ", which look like numbers with units or separators: write them plainly"
        return f"{len(texts):,} different texts{like * look_like_numbers(texts)}"
    numbers = present.astype(np.float64)
    if np.isinf(numbers).any():
        raise ValueError(f"the column {name!r} must be finite; it has infinite values. Remove those rows.")
    check_size(f"the column {name!r}", numbers)
    return Column(
        name, None, float(np.median(numbers)), bool(absent.any()), low=float(numbers.min()), high=float(numbers.max())
    )


def _numbers(name: str, held: np.ndarray, absent: np.ndarray) -> np.ndarray:
    """Return a column of numbers, which may come as texts."""
    numbers = np.array([*map(as_number, held)]) if held.dtype.kind == "O" else held.astype(np.float64)
    wrong = np.flatnonzero(~absent & ~np.isfinite(numbers))
    if len(wrong):
        raise ValueError(
            f"the column {name!r} must hold finite numbers, as in the training rows; row {wrong[0] + 1} has "
            f"{seen(held[wrong[0]])}. Correct it or leave it empty."
        )
    return numbers


def _told(columns: Sequence[Column | Dates], reasons: dict[str, str], absent: dict[str, int]) -> list[str]:
    """Return sentences on how each column is used."""
    numbers = [column.name for column in columns if isinstance(column, Column) and column.values is None]
    dates = [column.told for column in columns if isinstance(column, Dates)]
    texts = [f"{column.name} ({len(column.values)})" for column in columns if column.values is not None]
    width = sum(column.width for column in columns)
    kinds = [f"{_count(numbers, 'number')} ({shortened(numbers)})"] if numbers else []
    kinds += [f"{_count(dates, 'column of dates', 'columns of dates')}: {'; '.join(dates)}"] if dates else []
    if texts:
        kinds += [f"{_count(texts, 'category', 'categories')}, each with a column for each value ({shortened(texts)})"]
    in_all = "" if width == len(numbers) else f"; {width} column{'' if width == 1 else 's'} in all"
    sentences = [f"Inputs: {' and '.join(kinds)}{in_all}, standardised."]
    if absent:
        counts = [f"{name} ({count:,})" for name, count in absent.items()]
        sentences.append(
            f"Missing in training rows: {shortened(counts)}. A number or date becomes the median, and a column says "
            f"where; a category is none of its values."
        )
    if reasons:
        sentences.append(f"Left out: {'; '.join(f'{name} ({why})' for name, why in reasons.items())}.")
    return sentences


def _count(names: Sequence[str], one: str, many: str = "numbers") -> str:
    return f"{len(names)} {one if len(names) == 1 else many}"
