"""What each action costs in each class: a table whose rows and columns have names."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchbayes.checks import as_file, as_numbers, nearest, seen
from torchbayes.data.user.table import separator_of
from torchbayes.native.process import undisturbed_methods

ABSTAIN = "abstain"
"""The decision where a row is handed on."""
_LARGEST = 2**22  # bytes of a file of costs
_ROWS_ARE = "action", "class"  # first cell of a file


@undisturbed_methods
@dataclass(frozen=True, eq=False)
class Costs:
    """Costs c(a, k) of action a where class k is true, in any units; a gain is a negative cost.

    Attributes:
        costs: tensor or array (A, K), or (B, A, K) with a table for each row of the predictions; finite.
        actions: names of the A actions; if empty, those of the classes where there are as many, else numbers from 0.
        classes: names of the K classes; if empty, columns are in the order of the predictions. A square table that is
            not symmetric needs both names, because nothing else says which axis is which.
    """

    costs: Any
    actions: Sequence[Any] = ()
    classes: Sequence[Any] = ()

    def __post_init__(self) -> None:
        costs = as_numbers("costs", self.costs)
        if costs.ndim not in {2, 3} or not costs.numel():
            raise ValueError(
                f"`costs` must have shape (A, K), a row for each action and a column for each class, or (B, A, K); got "
                f"{seen(self.costs)}."
            )
        if not costs.isfinite().all():
            raise ValueError(
                f"`costs` holds NaN or infinite values: {int((~costs.isfinite()).sum())} of {costs.numel()}. Forbid an "
                f"action by a large finite cost."
            )
        actions, classes = names_of("actions", self.actions), names_of("classes", self.classes)
        rows, columns = costs.shape[-2:]
        for axis, names, size in (("actions", actions, rows), ("classes", classes, columns)):
            if names and len(names) != size:
                raise ValueError(f"`{axis}` must name the {size} {axis} of `costs` {tuple(costs.shape)}; got {names}.")
        if rows == columns and not (actions and classes) and not torch.equal(costs, costs.mT):
            raise ValueError(
                f"`costs` of shape {tuple(costs.shape)} could be actions × classes or classes × actions. Name "
                f"`actions` (rows) and `classes` (columns)."
            )
        object.__setattr__(self, "costs", costs)
        object.__setattr__(self, "actions", actions)
        object.__setattr__(self, "classes", classes)
        if ABSTAIN in map(str, actions):
            raise ValueError(
                f"no action may be called {ABSTAIN!r}, which is the decision to hand a row on; its cost is `abstain`. "
                f"Rename it, or the class of this name."
            )

    @classmethod
    def errors(cls, classes: Iterable[Any]) -> Costs:
        """Return costs of 1 for any wrong class and 0 for the right one: the decision is the most probable class.

        Args:
            classes: their names.

        Returns:
            The costs.
        """
        names = names_of("classes", classes)
        return cls(1 - torch.eye(len(names), dtype=torch.float64), names, names)

    @classmethod
    def read(cls, path: str | Path) -> Costs:
        """Read a CSV file of costs: names in its first row and its first column; semicolons and decimal commas will do.

        Args:
            path: the file. Its first cell says what the rows are: "action" or "class".

        Returns:
            The costs.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if it is no such table.
        """
        (head, *lines), mark = _cells(path)
        kind = head[0].strip().lower()
        if kind not in _ROWS_ARE:
            raise ValueError(
                f"the first cell of {path} must be `action` or `class`, which says what the rows are; got {kind!r}."
            )
        if not lines or any(len(line) != len(head) for line in lines):
            raise ValueError(f"{path} must have {len(head)} cells in each of its rows, and a row besides the first.")
        try:
            table = torch.tensor([[_number(cell, mark) for cell in line[1:]] for line in lines], dtype=torch.float64)
        except ValueError as error:
            raise ValueError(f"{path} must hold numbers beside its names ({error}).") from None
        rows, columns = [line[0].strip() for line in lines], [cell.strip() for cell in head[1:]]
        try:
            return (
                cls(table, tuple(rows), tuple(columns))
                if kind == "action"
                else cls(table.T, tuple(columns), tuple(rows))
            )
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @property
    def bound(self) -> float:
        """The largest cost."""
        return float(self.costs.max())

    @property
    def is_binary(self) -> bool:
        """Whether every cost is 0 or the largest."""
        return bool(((self.costs == 0) | (self.costs == self.costs.max())).all())

    def for_classes(self, known: Sequence[Any], count: int) -> Costs:
        """Return the same costs with names of all actions and classes, these in the order of `count` predicted ones.

        Args:
            known: names of the predicted classes; empty where they have none.
            count: how many there are.

        Returns:
            The costs.

        Raises:
            ValueError: if their number or their names are others.
        """
        rows, columns = self.costs.shape[-2:]
        if known and len(known) != count:
            raise ValueError(f"`classes` must name the {count} predicted classes; got {tuple(known)}.")
        if columns != count:
            advice = "Transpose it." if rows == count else "Its shape is (actions, classes)."
            raise ValueError(f"`cost` must have a column for each of the {count} classes; it has {columns}. {advice}")
        names = tuple(known) or tuple(range(count))
        actions = self.actions or ((self.classes or names) if rows == columns else tuple(range(rows)))
        return Costs(self.costs[..., self._order(names)], actions, names)

    def _order(self, names: Sequence[Any]) -> list[int]:
        """Return the column of each predicted class."""
        if not self.classes:
            return [*range(len(names))]
        places = {str(name): place for place, name in enumerate(self.classes)}
        missing = [name for name in map(str, names) if name not in places]
        if not missing:
            return [places[name] for name in map(str, names)]
        if tuple(names) == tuple(range(len(names))):
            raise ValueError(
                f"`cost` has the classes {', '.join(places)}, and the predictions have no names. Give `classes`, the "
                f"names in the order of the predictions, such as data.classes."
            )
        turned = {*map(str, self.actions)} == {*map(str, names)}
        advice = "Its actions have the names of the classes: transpose it." if turned else nearest(missing[0], places)
        raise ValueError(f"`cost` has no class {missing[0]!r}, which the predictions have. {advice}")

    def of(self, action_B: Tensor, labels_B: Tensor) -> Tensor:
        """Return the cost of each action (B,) in the true class of its row, (B,), float64."""
        table = self.costs if self.costs.ndim == 3 else self.costs.expand(len(action_B), -1, -1)
        return table[torch.arange(len(action_B)), action_B, labels_B]

    def rows(self, start: int, stop: int) -> Costs:
        """Return the costs of some rows of the predictions."""
        return self if self.costs.ndim == 2 else Costs(self.costs[start:stop], self.actions, self.classes)


def costs_of(cost: Any, actions: Any = None, classes: Any = None) -> Costs:
    """Return costs that were given as such, as a mapping action -> class -> cost, a data frame, or an array."""
    is_frame = hasattr(cost, "to_numpy") and hasattr(cost, "index") and hasattr(cost, "columns")
    if actions is not None and (is_frame or isinstance(cost, Costs | Mapping)):
        raise ValueError(f"`actions` names the rows of an array; these costs have names; got {seen(actions)}.")
    if isinstance(cost, Costs):
        return cost
    if isinstance(cost, Mapping):
        return _of_mapping(cost)
    if is_frame:
        numbers = as_numbers("cost", np.array(cost.to_numpy()))
        return Costs(numbers, tuple(cost.index.tolist()), tuple(cost.columns.tolist()))
    return Costs(as_numbers("cost", cost), () if actions is None else actions, () if classes is None else classes)


def _of_mapping(cost: Mapping[Any, Any]) -> Costs:
    if not cost or not all(isinstance(row, Mapping) and row for row in cost.values()):
        raise TypeError(f"`cost` must be a mapping action -> class -> cost; got {seen(cost)}.")
    actions, classes = tuple(cost), tuple(next(iter(cost.values())))
    for action, row in cost.items():
        if {*row} != {*classes}:
            raise ValueError(
                f"`cost` must have the same classes for each action; {action!r} has {', '.join(map(str, row))}, the "
                f"first one {', '.join(map(str, classes))}."
            )
    return Costs(as_numbers("cost", [[row[name] for name in classes] for row in cost.values()]), actions, classes)


def names_of(axis: str, names: Any) -> tuple[Any, ...]:
    """Return names as a tuple of Python's own values; an error if two are equal in writing."""
    if isinstance(names, str) or not hasattr(names, "__iter__"):
        raise TypeError(f"`{axis}` must be names, such as ('treat', 'wait'); got {seen(names)}.")
    plain = tuple(names.tolist() if hasattr(names, "tolist") else names)
    written = [*map(str, plain)]
    twice = next((name for name in written if written.count(name) > 1), None)
    if twice is not None or "" in written:
        raise ValueError(f"`{axis}` must be different names, none of them empty; got {plain}.")
    return plain


def _number(cell: str, mark: str) -> float:
    """Return the number of a cell, which may have a decimal comma where commas do not separate."""
    return float(cell if mark == "," else cell.replace(",", "."))


def _cells(path: str | Path) -> tuple[list[list[str]], str]:
    """Return the cells of a CSV file, without empty lines, and what separates them."""
    file = as_file(path)
    if file.stat().st_size > _LARGEST:
        raise ValueError(f"{path} is no table of costs: it has {file.stat().st_size:,} bytes, more than {_LARGEST:,}.")
    try:
        text = file.read_bytes().decode("utf-8-sig")
        mark = separator_of(text)[0] if text.strip() else ","
        rows = [row for row in csv.reader(io.StringIO(text), delimiter=mark) if any(row)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is no CSV file in UTF-8 ({error}).") from None
    if not rows:
        raise ValueError(f"{path} is empty. Its first row is `action,CLASS,CLASS,…`, then a row for each action.")
    return rows, mark
