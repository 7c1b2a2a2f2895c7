"""What the texts in a column of a table look like: missing values, numbers, or numbers with units and separators."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

import numpy as np

from torchbayes.checks import seen
from torchbayes.data.own.table import Table, missing, texts_of

MANY = 20  # different values beyond which numbers are no names, and texts no classes

_PLAIN = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?inf(?:inity)?", re.ASCII)
_WRITTEN = re.compile(  # a sign, a currency, digits with separators, a unit
    r"[+-]?(?:[A-Z]{3}|[$€£¥₹])? ?[+-]?"
    r"(?:\d+(?:[.,]\d+)?|\.\d+|\d{1,3}([,.' ])\d{3}(?:\1\d{3})*(?:[.,]\d+)?)(?:[eE][+-]?\d+)?"
    r" ?(?:[A-Za-zµ°%‰$€£¥₹][^\d\s]{0,6}\d?)?"
)
_PLAINLY = "as plain numbers, such as 1234.56"


class Cells(NamedTuple):
    """What the cells of a column are that have a value.

    Attributes:
        rows: how many there are.
        values: different ones.
        numbers: cells that are plain numbers.
        scale: different numbers among them.
        texts: the other cells.
        first: of these, with the number of its row and the name of its table, in words.
        written: whether all look like numbers, some with units or separators.
    """

    rows: int
    values: int
    numbers: int
    scale: int
    texts: int
    first: str
    written: bool


def look_at(name: str, tables: Sequence[Table]) -> Cells | None:
    """Return what the cells of a column are, over several tables; None where no table has texts in it."""
    columns = [table.columns[name] for table in tables]
    if all(column.dtype.kind != "O" for column in columns):
        return None
    counts = Counter(text for column in columns for text in texts_of(column[~missing(column)]))
    plain = {text for text in counts if _PLAIN.fullmatch(text)}
    numbers = sum(counts[text] for text in plain)
    first = next((said for table in tables if (said := _first(table, name, plain))), "")
    written = look_like_numbers(counts)
    return Cells(counts.total(), len(counts), numbers, len(plain), counts.total() - numbers, first, written)


def look_like_numbers(texts: Collection[str]) -> bool:
    """Return whether all texts look like numbers, of which some have units or separators."""
    return all(map(_WRITTEN.fullmatch, texts)) and not all(map(_PLAIN.fullmatch, texts))


def check_target(name: str, tables: Sequence[Table], task: Literal["classification", "regression"] | None) -> None:
    """Check that texts in the target are classes, not numbers of which some or all are no plain ones.

    Args:
        name: of the target.
        tables: that have it.
        task: what the user says the target is.

    Raises:
        ValueError: if they are numbers.
    """
    found = None if task == "classification" else look_at(name, tables)
    if found is None:
        return
    or_classes = "If its values are classes: --data_settings.task classification."
    if found.texts and found.scale > (0 if task == "regression" else MANY):
        do = f"Write them {_PLAINLY}" if found.written else "Correct such cells"
        raise ValueError(
            f"the target {name!r} has {_amount(found.numbers, 'number')} and {_amount(found.texts, 'text')}; the first "
            f"is {found.first}. {do}, or empty them: rows without a target are left out. {or_classes}"
        )
    if task is None and found.values > MANY and (found.written or found.values > found.rows / 2):
        raise ValueError(
            f"the target {name!r} has {found.values:,} different texts in {found.rows:,} rows, and classes repeat; the "
            f"first is {found.first}. Write numbers plainly, such as 1234.56. {or_classes}"
        )


def check_input(name: str, tables: Sequence[Table]) -> None:
    """Check that a column does not hold numbers and a few texts, which would make it one of texts.

    Args:
        name: of the column.
        tables: of which it is an input.

    Raises:
        ValueError: if at least half of it are numbers, with many different values, and others are texts.
    """
    found = look_at(name, [table for table in tables if name in table.columns])
    if found is None or not found.texts or found.scale <= MANY or 2 * found.numbers < found.rows:
        return
    do = f"Write them {_PLAINLY}" if found.written else "Correct or empty such cells"
    raise ValueError(
        f"the column {name!r} has {_amount(found.numbers, 'number')} and {_amount(found.texts, 'text')}; the first is "
        f'{found.first}. {do}, or take all for names, --data_settings.categorical "[{name}]", or leave the column out, '
        f'--data_settings.leave_out "[{name}]".'
    )


def far(name: str, numbers: np.ndarray) -> list[str]:
    """Return a sentence on numbers that are far from all others, where there are such.

    Args:
        name: of their column.
        numbers: (N,), finite.

    Returns:
        One sentence, or none.
    """
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
    """Return the first text that is no plain number, and its place, in words; nothing where there is none."""
    column = table.columns[name]
    rows = np.flatnonzero(~missing(column))
    text, row = next(((t, i) for t, i in zip(texts_of(column[rows]), rows, strict=True) if t not in plain), ("", -1))
    return "" if row < 0 else f"{seen(text)} in row {row + 1} of {table.name or 'the table'} (names not counted)"


def _amount(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
