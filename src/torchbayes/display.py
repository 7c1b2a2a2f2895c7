"""Displays of objects: one line at a prompt, a small table in a notebook."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from html import escape
from typing import Any, TypeVar

_Kind = TypeVar("_Kind", bound=Any)

_LONGEST = 120  # letters
MOST_ROWS = 10  # of a table in a notebook; more would fill the screen
_STYLE = "text-align:left;padding:2px 12px 2px 0"


@dataclass(frozen=True)
class Overview:
    """The content of a display, as plain values."""

    title: str  # class of the object, and a short detail
    facts: Mapping[str, Any] = field(default_factory=dict)  # in the order of reading
    header: Sequence[str] = ()  # names of the columns of a table
    rows: Sequence[Sequence[Any]] = ()
    of: int = 0  # number of rows, if `rows` holds only the first of them
    picture: Callable[[], bytes] | None = None  # draws a PNG for a notebook
    problems: Sequence[str] = ()  # known problems, one clause each


def shown(overview: Callable[[Any], Overview]) -> Callable[[_Kind], _Kind]:
    """Return a class decorator that displays an overview of an object instead of the tensors that it holds.

    A dataclass that inherits from such a class must not write a `__repr__` of its own.
    """

    def decorate(kind: _Kind) -> _Kind:
        kind.__repr__ = lambda self: as_line(overview(self))
        kind._repr_html_ = lambda self: as_html(overview(self))
        return kind

    return decorate


def shown_by(*names: str) -> Callable[[_Kind], _Kind]:
    """Return a class decorator that displays these attributes of an object."""
    return shown(lambda each: Overview(type(each).__name__, {name: getattr(each, name) for name in names}))


def as_line(overview: Overview) -> str:
    """Return an overview as one line: `Title(fact, fact, 2 problems)`."""
    facts = [f"{name}={as_text(value)}" for name, value in overview.facts.items()]
    count = len(overview.problems)
    problems = [f"{count} problem{'s' if count > 1 else ''}: see `.problems`"] if count else []
    return f"{overview.title}({', '.join(facts + problems)})"


def as_html(overview: Overview) -> str:
    """Return an overview as a fragment of HTML without scripts or styles of the page."""
    parts = [f"<strong>{escape(overview.title)}</strong>"]
    if overview.facts:
        parts.append(_table([(name, as_text(value)) for name, value in overview.facts.items()]))
    if overview.header:
        parts.append(_table(overview.rows[:MOST_ROWS], overview.header))
        count = max(overview.of, len(overview.rows))
        if count > MOST_ROWS:
            parts.append(f"<p>The first {MOST_ROWS} of {count:,}.</p>")
    if overview.picture:
        data = base64.b64encode(overview.picture()).decode()
        parts.append(f'<p><img alt="{escape(overview.title)}" src="data:image/png;base64,{data}"></p>')
    if overview.problems:
        items = "".join(f"<li>{escape(problem)}</li>" for problem in overview.problems)
        parts.append(f"<p>Known problems:</p><ul>{items}</ul>")
    return f"<div>{''.join(parts)}</div>"


def brief(value: Any) -> str:
    """Return an object in one line; of a dataclass only the settings that differ from their defaults."""
    text = repr(value)
    if is_dataclass(value) and hasattr(type(value).__repr__, "__wrapped__"):  # a `__repr__` by `dataclass` names all
        settings = [(f.name, getattr(value, f.name)) for f in fields(value) if f.repr and not _is_default(value, f)]
        text = f"{type(value).__name__}({', '.join(f'{name}={value!r}' for name, value in settings)})"
    return shortened(text)


def shortened(text: str) -> str:
    """Return a text in one line of bounded length."""
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _is_default(value: Any, setting: Field[Any]) -> bool:
    default = setting.default_factory() if setting.default_factory is not MISSING else setting.default
    return (getattr(value, setting.name) == default) is True  # comparing tensors gives a tensor


def as_text(value: Any) -> str:
    """Return a value as text: floats with four digits, whole numbers with separators."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def _table(rows: Sequence[Sequence[Any]], header: Sequence[str] = ()) -> str:
    """Return a table; without a header the first column names the rows."""
    head = "".join(f'<th style="{_STYLE}">{escape(name)}</th>' for name in header)
    lines = [f"<thead><tr>{head}</tr></thead>"] if header else []
    for row in rows:
        cells = [f'<td style="{_STYLE}">{escape(as_text(value))}</td>' for value in row]
        if not header:
            cells[0] = cells[0].replace("<td ", "<th ").replace("</td>", "</th>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table>{''.join(lines)}</table>"
