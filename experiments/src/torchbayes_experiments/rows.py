"""Tidy rows: every number of every seed with the names of what it belongs to, such as problem, method and metric.

What a seed leaves on disk are nested mappings, `set -> method -> metric -> number` or a list of numbers, one per split.
`tidy` names their levels once; tables, differences, dots and the parts of a verdict then ask by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np

Results = Sequence[Mapping[str, Any]]  # what the seeds left


class Rows:
    """Numbers with the levels that they belong to.

    Attributes:
        columns: an array for each level, for `seed`, and for the numbers themselves, `value`; one place per number.
    """

    def __init__(self, columns: Any) -> None:  # a DataFrame, or arrays by name
        self.columns = {name: np.asarray(columns[name]) for name in columns}

    @cached_property
    def frame(self) -> Any:  # whose indexing pandas does not annotate closely enough
        """The same as a DataFrame, one row per number."""
        import pandas as pd

        return pd.DataFrame(self.columns)

    def where(self, **levels: Any) -> Rows:
        """Return the rows with these levels: a value, or several as a list, tuple or set."""
        fits = np.ones(len(self.columns["value"]), dtype=bool)
        for name, value in levels.items():
            column = self.columns[name]
            several = isinstance(value, list | tuple | set)
            fits &= np.array([entry in value for entry in column.tolist()], bool) if several else column == value
        return _taken(self, fits)

    def at(self, levels: Sequence[str], values: Sequence[Any]) -> Rows:
        """Return the rows with these values of levels, in this order, as `where` does."""
        return self.where(**dict(zip(levels, values, strict=True)))

    def only(self, **levels: Sequence[Any]) -> Rows:
        """Return the rows with these names of levels, in the order of the names."""
        rows = self
        for level, names in levels.items():
            rows = rows.where(**{level: list(names)})
            order = {name: place for place, name in enumerate(names)}
            rows = _taken(rows, np.argsort([order[name] for name in rows.columns[level].tolist()], kind="stable"))
        return rows

    def names(self, level: str) -> list[Any]:
        """Return the values of a level, in the order in which they came."""
        return list(dict.fromkeys(self.columns[level].tolist()))

    def values(self, over: str = "seed", **levels: Any) -> np.ndarray:
        """Return a number for each value of the level `over`, the mean over all others; none where there is no row."""
        rows = self.where(**levels)
        groups, numbers = rows.columns[over], rows.columns["value"]
        return np.array([np.mean(numbers[groups == name]) for name in rows.names(over)])

    def less(self, level: str, first: Any, second: Any, over: str = "seed", **levels: Any) -> np.ndarray:
        """Return `values` of one name of a level minus those of another."""
        rows = self.where(**levels)
        return rows.at([level], [first]).values(over) - rows.at([level], [second]).values(over)

    def minus(self, level: str, pairs: Iterable[tuple[Any, Any]]) -> Rows:
        """Return the differences of pairs of names of a level where both have a number, under the name "A − B"."""
        import pandas as pd

        keys = [column for column in self.frame if column not in {level, "value"}]
        differences = []
        for first, second in pairs:
            one, other = (self.at([level], [name]).frame.drop(columns=level) for name in (first, second))
            both = one.merge(other, on=keys, suffixes=("", "_other"))
            value = both["value"] - both.pop("value_other")
            differences.append(both.assign(**{level: f"{first} − {second}", "value": value}))
        return Rows(pd.concat(differences))

    def combinations(self, *levels: str) -> list[tuple[Any, ...]]:
        """Return the combinations of levels that there are, in the order in which they came."""
        return list(dict.fromkeys(zip(*(self.columns[level].tolist() for level in levels), strict=True)))

    def apart(self, *levels: str, over: str = "seed") -> dict[Any, Any]:
        """Return nested mappings by levels, first to last, with an array of one number for each value of `over`."""
        if not levels:
            return self.values(over)  # type: ignore[return-value]
        return {name: self.at(levels[:1], [name]).apart(*levels[1:], over=over) for name in self.names(levels[0])}

    def stacked(self, lines: str, places: str, over: str = "seed") -> dict[Any, np.ndarray]:
        """Return the numbers of each name of `lines` for a picture: (P, R), by `places` and the level `over`."""
        return {line: np.stack(list(values.values())) for line, values in self.apart(lines, places, over=over).items()}


def _taken(rows: Rows, places: np.ndarray) -> Rows:
    return Rows({name: column[places] for name, column in rows.columns.items()})


def tidy(results: Iterable[Mapping[str, Any]], *levels: str, lists: Sequence[str] = ("split",)) -> Rows:
    """Return the numbers of several seeds as rows.

    Args:
        results: nested mappings of each seed. What is no number where the levels end, such as a text, is left out.
        levels: what the keys are, outermost first.
        lists: what the places of a list in the place of a number are, outermost first.
    """
    import pandas as pd

    records = [
        dict(zip((*levels, *lists), keys, strict=False)) | {"seed": seed, "value": float(number)}
        for seed, result in enumerate(results)
        for keys, number in _numbers(result, len(levels), len(lists))
    ]
    return Rows(pd.DataFrame(records, columns=list(dict.fromkeys(key for row in records for key in row))))


def _numbers(entry: Any, levels: int, lists: int, keys: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Real]]:
    """Yield each number of nested mappings and lists with its keys."""
    if isinstance(entry, Mapping) and levels:
        for key, value in entry.items():
            yield from _numbers(value, levels - 1, lists, (*keys, key))
    elif not levels and isinstance(entry, list | tuple | np.ndarray) and lists:
        for place, value in enumerate(entry):
            yield from _numbers(value, 0, lists - 1, (*keys, place))
    elif not levels and isinstance(entry, Real):
        yield keys, entry
