"""The numbers that stand for an experiment: a few lines of one of its tables, beside what is published."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchbayes.report import Table

Number = tuple[float, float | None]  # a number and its error, which is that of the table or of the paper


@dataclass(frozen=True)
class Line:
    """One measured number, beside a published one.

    Attributes:
        name: what was measured, such as a method or a data set.
        value: the number.
        error: its standard error, if it was measured more than once.
        published: the published number, if there is one.
        published_error: its error, as published.
    """

    name: str
    value: float
    error: float | None = None
    published: float | None = None
    published_error: float | None = None


@dataclass(frozen=True)
class Headline:
    """Which numbers of the tables stand for the experiment: those in some columns and some rows of one table.

    Attributes:
        label: what the numbers are, with their unit.
        columns: the columns that have them, of the first table that has these.
        table: a column, or words of the caption, that this table must have.
        where: text that a row must have in its cells, such as the name of a data set.
        index: columns that make the name of a row, without the text of `where`; those of text before the numbers if
            empty.
        rows: names of rows, in the order in which they are shown; all if empty.
        published: the column of published numbers, or name of a line -> number, or (number, error).
        source: what the published numbers are of, if that is not the same problem.
    """

    label: str
    columns: tuple[str, ...]
    table: str = ""
    where: tuple[str, ...] = ()
    index: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    published: str | Mapping[str, Any] = ""
    source: str = "published"

    def lines(self, tables: Sequence[Table]) -> list[Line]:
        """Return the lines in the tables of an experiment.

        A line is named after its row, and after its column where there are several.

        Raises:
            ValueError: if no table has them.
        """
        for table in tables:
            if self.fits(table) and (lines := list(self._lines_of(table))):
                return lines
        rows = ", ".join((*self.where, *self.rows)) or "numbers"
        raise ValueError(
            f"no table has {', '.join(self.columns)} of {rows}; there are {[[*t.columns] for t in tables]}."
        )

    def fits(self, table: Table) -> bool:
        """Return whether a table has the columns."""
        column = self.published if isinstance(self.published, str) else ""
        wanted = {*self.columns, column} - {""}
        return wanted <= set(table.columns) and (self.table in table.columns or self.table in table.caption)

    def _lines_of(self, table: Table) -> Iterator[Line]:
        every = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        chosen = [row for row in every if set(self.where) <= {str(cell) for cell in row.values()}]
        named = {self._name(row): row for row in chosen}
        for name in self.rows or named:
            row = named.get(name, {})
            for column in self.columns:
                if row.get(column) is not None:
                    parts = [name] * bool(name) + [column] * (len(self.columns) > 1 or not name)
                    yield self._line(", ".join(parts), _number(row[column]), row)

    def _line(self, name: str, measured: Number, row: Mapping[str, Any]) -> Line:
        if isinstance(self.published, str):
            other = row[self.published] if self.published else None
        else:
            other = self.published.get(name)
        return Line(name, *measured, *(_number(other) if other is not None else (None, None)))

    def _name(self, row: Mapping[str, Any]) -> str:
        before = [*row][: min([*row].index(column) for column in self.columns)]
        index = self.index or [column for column in before if isinstance(row[column], str)]
        return ", ".join(str(row[column]) for column in index if row[column] not in self.where)


def _number(cell: Any) -> Number:
    return (float(cell[0]), float(cell[1])) if isinstance(cell, tuple) else (float(cell), None)
