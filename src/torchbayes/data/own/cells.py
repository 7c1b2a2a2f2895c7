"""Recognition of the texts in a table's columns: missing values, numbers, or numbers with units and separators."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

import numpy as np

from torchbayes.checks import seen
from torchbayes.data.own.table import Table, missing, texts_of

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
    raise ValueError(
        f"the column {name!r} has {_amount(cells.numbers, 'number')} and {_amount(cells.texts, 'text')}; the first is "
        f'{cells.first}. {do}, or take all for names, --data_settings.categorical "[{name}]", or leave the column out, '
        f'--data_settings.leave_out "[{name}]".'
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


def _amount(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
