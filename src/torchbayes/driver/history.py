"""The log of a run in memory: as columns, so that a million lines take no more memory than their numbers."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor


class History:
    """Lines of a log, each with a step and, by name, one number per member or a text.

    A number that a line does not hold, or that was lost with its line, is NaN.
    """

    def __init__(self, records: Iterable[Mapping[str, Any]] = ()) -> None:
        """Start from the lines of the run that is resumed, if any."""
        self._steps, self._columns = array("q"), dict[str, array]()
        self._texts: list[tuple[int, str, str]] = []
        self._members = 0
        for record in records:
            self.add(record)

    def add(self, record: Mapping[str, Any]) -> None:
        """Add a line: `step`, lists with a number for each member, texts; other entries are ignored."""
        lists = {name: entry for name, entry in record.items() if isinstance(entry, list)}
        self._members = max([self._members, *(len(entry) for entry in lists.values())])
        for name in lists:
            if name not in self._columns:
                self._columns[name] = array("d", [math.nan] * (len(self._steps) * self._members))
        for name, column in self._columns.items():
            column.extend(lists.get(name) or [math.nan] * self._members)
        self._texts += [(record["step"], name, entry) for name, entry in record.items() if isinstance(entry, str)]
        self._steps.append(record["step"])

    def columns(self, after: int = 0) -> dict[str, Tensor]:
        """Return the numbers of the lines after a step, by name, each float64 (M, lines)."""
        if not self._members:
            return {}
        steps = torch.tensor(self._steps)
        found = {name: torch.tensor(column, dtype=torch.float64) for name, column in self._columns.items()}
        return {name: column.view(-1, self._members)[steps > after].T for name, column in found.items()}

    def first(self, name: str, after: int = 0) -> str:
        """Return the first text of a name after a step; empty if there is none."""
        return next((text for step, key, text in self._texts if key == name and step > after), "")
