"""One table for the terminal, for Markdown and for the HTML report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from torchbayes.checks import check_kind, check_text, seen, whole

if TYPE_CHECKING:
    import rich.table

Number = float | np.floating | np.integer
Entry = str | Number | tuple[Number, Number] | None
"""A cell: text, a number, a number with its error, or nothing."""


@dataclass(frozen=True)
class Cell:
    """A cell as it is shown."""

    text: str
    best: bool  # best of its column
    number: bool  # set like a number
    value: float = math.nan  # without its error; NaN for text

    @property
    def is_long(self) -> bool:
        """Whether its text takes several lines."""
        return len(self.text) > 60

    @property
    def sorts_by(self) -> str:
        """The number that a page sorts by, as JavaScript writes it; empty where there is none."""
        return "" if math.isnan(self.value) else repr(self.value).replace("inf", "Infinity")


@dataclass(frozen=True)
class Table:
    """Rows of names and numbers, in which the best value of a column is marked.

    Values that read the same once rounded share the mark, and so do the rows of `ties`; NaN and empty cells are never
    marked. Where all values of a column read the same, none is marked.

    Args:
        columns: Names of the columns.
        rows: One entry per column: text, number, (number, error) or None.
        caption: What the table shows and how to read it.
        better: column -> "low" or "high" for columns with a best value.
        formats: column -> format specification of its numbers; ".3f" by default, integers as they are.
        ties: column -> rows, from 0, that are marked like its best value because the difference may be chance.
        title: What the table is about, in a few words; shown where a page folds it.
        beside: Number of last rows that are there for comparison, and never marked.

    Raises:
        ValueError: A row has another length, or `better`, `formats` or `ties` names no column.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Entry]]
    caption: str = ""
    better: Mapping[str, Literal["low", "high"]] = field(default_factory=dict)
    formats: Mapping[str, str] = field(default_factory=dict)
    ties: Mapping[str, Sequence[int]] = field(default_factory=dict)
    title: str = ""
    beside: int = 0

    def __post_init__(self) -> None:
        columns = self.columns
        if (
            isinstance(columns, str)
            or not isinstance(columns, Sequence)
            or not all(isinstance(c, str) for c in columns)
        ):
            raise TypeError(f"`columns` must be names; got {seen(columns)}.")
        check_kind((list, tuple), "a sequence of rows", rows=self.rows)
        check_text(caption=self.caption, title=self.title)
        if whole("beside", self.beside, least=0) > len(self.rows):
            raise ValueError(f"`beside` must be at most the {len(self.rows)} rows; got {self.beside}.")
        check_kind(Mapping, "a mapping from columns", better=self.better, formats=self.formats, ties=self.ties)
        for row in self.rows:
            if not isinstance(row, list | tuple) or len(row) != len(columns):
                raise ValueError(
                    f"Every row of `rows` needs {len(columns)} entries, one for each of `columns`; got {seen(row)}."
                )
            if wrong := [entry for entry in row if not _is_entry(entry)]:
                raise TypeError(f"`rows` must hold texts, numbers, (number, error) or None; got {seen(wrong[0])}.")
        if strange := {*self.better, *self.formats, *self.ties} - set(self.columns):
            raise ValueError(
                f"`better`, `formats` and `ties` must name columns, {', '.join(columns)}; got "
                f"{', '.join(sorted(strange))}."
            )
        if wrong := set(self.better.values()) - {"low", "high"}:
            raise ValueError(f"`better` must be 'low' or 'high'; got {', '.join(map(repr, wrong))}.")
        if wrong := [rows for rows in self.ties.values() if not _are_rows(rows, len(self.rows))]:
            raise ValueError(f"`ties` must hold rows from 0 to {len(self.rows) - 1}; got {seen(wrong[0])}.")
        for spec in self.formats.values():
            if not any(_formats(number, spec) for number in (0.5, 1)):
                raise ValueError(f"`formats` must be such as '.3f' or ',d'; got {seen(spec)}.")

    @cached_property
    def cells(self) -> list[list[Cell]]:
        """Cells, row by row, rounded and marked."""
        columns = [self._column(name, [row[i] for row in self.rows]) for i, name in enumerate(self.columns)]
        return [list(row) for row in zip(*columns, strict=True)]

    @property
    def numeric(self) -> list[bool]:
        """Whether each column holds numbers: no text, and at least one number."""
        return [
            any(row[i] is not None for row in self.rows) and not any(isinstance(row[i], str) for row in self.rows)
            for i in range(len(self.columns))
        ]

    @property
    def broad(self) -> bool:
        """Whether it needs the width of a page: more than four columns, or rows of more than a hundred characters."""
        return len(self.columns) > 4 or any(sum(len(cell.text) for cell in row) > 100 for row in self.cells)

    def headers(self) -> list[str]:
        """Return the column names, with an arrow where a direction is better.

        Returns:
            One text per column.
        """
        arrows = {"low": " ↓", "high": " ↑"}
        return [name + arrows.get(self.better.get(name, ""), "") for name in self.columns]

    def markdown(self) -> str:
        """Return the table as Markdown, numbers right-aligned and the best in bold.

        Returns:
            Lines ending in a newline, the caption last.
        """
        rules = ["---:" if number else "---" for number in self.numeric]
        lines = [list(map(_markdown, self.headers())), rules]
        lines += [[f"**{_markdown(c.text)}**" if c.best else _markdown(c.text) for c in row] for row in self.cells]
        text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        return text + (f"\n{_markdown(self.caption)}\n" if self.caption else "")

    def rich(self) -> rich.table.Table:
        """Return the table for the terminal.

        Returns:
            A `rich.table.Table`; print it with `rich.print` or a console.
        """
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        caption = Text(self.caption, style="dim") if self.caption else None
        table = RichTable(box=box.SIMPLE_HEAD, caption=caption, caption_justify="left", pad_edge=False)
        for header, number in zip(self.headers(), self.numeric, strict=True):
            table.add_column(Text(header), justify="right" if number else "left", no_wrap=number)
        for row in self.cells:
            table.add_row(*(Text(cell.text, style="bold green" if cell.best else "") for cell in row))
        return table

    def _column(self, name: str, entries: Sequence[Entry]) -> list[Cell]:
        texts = [_text(entry, self.formats.get(name)) for entry in entries]
        values = [_value(entry) for entry in entries]
        ranked = len(texts) - self.beside
        pairs = zip(map(_main, texts[:ranked]), values[:ranked], strict=True)
        value_of = {text: value for text, value in pairs if not math.isnan(value)}
        best: str | None = None
        if name in self.better and len(value_of) > 1:
            choose = min if self.better[name] == "low" else max
            best = choose(value_of, key=value_of.__getitem__)
        tied = self.ties.get(name, ())
        marked = [
            best is not None and row < ranked and (_main(t) == best or row in tied) for row, t in enumerate(texts)
        ]
        return [
            Cell(text, marked[row], not isinstance(entry, str), value)
            for row, (text, entry, value) in enumerate(zip(texts, entries, values, strict=True))
        ]


def _formats(number: float, spec: Any) -> bool:
    try:
        format(number, spec)
    except (TypeError, ValueError):
        return False
    return True


def _are_rows(marked: Any, count: int) -> bool:
    return isinstance(marked, list | tuple) and all(isinstance(row, int) and 0 <= row < count for row in marked)


def _is_entry(entry: Any) -> bool:
    parts = entry if isinstance(entry, tuple) else (entry,)
    numbers = all(isinstance(number, float | int | np.floating | np.integer) for number in parts)
    return entry is None or isinstance(entry, str) or (numbers and 1 <= len(parts) <= 2)


def _value(entry: Entry) -> float:
    """Return the number to compare, without its error; NaN for anything else."""
    number = entry[0] if isinstance(entry, tuple) else entry
    return math.nan if number is None or isinstance(number, str) else float(number)


def _main(text: str) -> str:
    return text.partition(" ± ")[0]


def _text(entry: Entry, spec: str | None) -> str:
    if entry is None:
        return "–"
    if isinstance(entry, str):
        return entry
    if isinstance(entry, tuple):
        return " ± ".join(_text(number, spec) for number in entry)
    if math.isnan(entry):
        return "NaN"
    text = format(entry, spec or ("d" if isinstance(entry, Integral) else ".3f"))
    return text.replace("-", "−").replace("%", " %")


def _markdown(text: str) -> str:
    for sign, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("*", "\\*"), ("_", "\\_")):
        text = text.replace(sign, safe)
    return " ".join(text.split())
