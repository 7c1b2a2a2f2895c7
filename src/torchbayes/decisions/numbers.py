r"""Costs of deciding on a number, or by one; y the true number, a the action.

    Linear      u (y − a)⁺ + o (a − y)⁺        a = the quantile at u/(u + o): the newsvendor; the median if u = o
    Squared     (y − a)²                       a = the mean
    Within      1 where |y − a| > w, else 0    a = the median
    Exceeds     a miss, or a false alarm       act where p(y > t) ≥ alarm/(alarm + miss)
    Grid        c(a, y), any function          the least expected cost of the actions that are listed

Means and quantiles are those of the average over draws. `torchbayes.decisions.outlook` has other expectations.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from torchbayes.checks import check_flags, check_function, check_numbers, check_positive, plain, seen
from torchbayes.decisions.costs import names_of
from torchbayes.decisions.outlook import Outlook


class NumberCost(ABC):
    """A cost of an action and a number; `torchbayes.decide` takes it.

    Attributes:
        name: by which files and the shell call it.
    """

    name: ClassVar[str] = ""

    @property
    def actions(self) -> tuple[Any, ...] | None:
        """Names of the actions; None where the action is a number."""
        return None

    @property
    def bound(self) -> float:
        """The largest cost; infinite where there is none."""
        return math.inf

    @property
    def is_binary(self) -> bool:
        """Whether every cost is 0 or the largest."""
        return False

    @abstractmethod
    def of(self, action: Tensor, targets: Tensor) -> Tensor:
        """Return the cost of actions, numbers or their indices, at true numbers that broadcast against them."""


class FreeCost(NumberCost):
    """A cost whose action is any number."""

    @abstractmethod
    def best(self, outlook: Outlook) -> Tensor:
        """Return the action at each number, (B, K')."""

    @abstractmethod
    def expected_S(self, outlook: Outlook, action: Tensor) -> Tensor:
        """Return the expected cost of actions (B, K') under each draw, (S, B, K')."""


@dataclass(frozen=True)
class Linear(FreeCost):
    """u (y − a)⁺ + o (a − y)⁺, the cost of the newsvendor; the absolute error if both are 1.

    Attributes:
        under: u, the cost of each unit that the action is too low, above 0.
        over: o, the cost of each unit that it is too high, above 0.
    """

    name = "linear"
    under: float = 1.0
    over: float = 1.0

    def __post_init__(self) -> None:
        plain(self)
        check_positive(under=self.under, over=self.over)

    def of(self, action: Tensor, targets: Tensor) -> Tensor:
        """Return the cost."""
        return self.under * (targets - action).clamp_min(0) + self.over * (action - targets).clamp_min(0)

    def best(self, outlook: Outlook) -> Tensor:
        """Return the quantile at u/(u + o)."""
        return outlook.quantile(self.under / (self.under + self.over))

    def expected_S(self, outlook: Outlook, action: Tensor) -> Tensor:
        """Return the mean cost over nodes."""
        return outlook.expected_S(lambda values: self.of(action, values))


@dataclass(frozen=True)
class Squared(FreeCost):
    """(y − a)²: the action is the mean, its expected cost the predictive variance."""

    name = "squared"

    def of(self, action: Tensor, targets: Tensor) -> Tensor:
        """Return the cost."""
        return (targets - action) ** 2

    def best(self, outlook: Outlook) -> Tensor:
        """Return the mean."""
        return outlook.mean

    def expected_S(self, outlook: Outlook, action: Tensor) -> Tensor:
        """Return the variance under each draw and the squared distance of its mean."""
        return outlook.variance_S + (outlook.mean_S - action) ** 2


@dataclass(frozen=True)
class Within(FreeCost):
    """1 where the number is further from the action than a tolerance, else 0; the action is the median.

    Attributes:
        tolerance: the largest distance that counts as right, in the units of the targets.
    """

    name = "within"
    tolerance: float = 1.0

    def __post_init__(self) -> None:
        plain(self)
        check_positive(tolerance=self.tolerance)

    @property
    def bound(self) -> float:
        """1."""
        return 1.0

    @property
    def is_binary(self) -> bool:
        """True."""
        return True

    def of(self, action: Tensor, targets: Tensor) -> Tensor:
        """Return the cost."""
        return ((targets - action).abs() > self.tolerance).double()

    def best(self, outlook: Outlook) -> Tensor:
        """Return the median."""
        return outlook.quantile(0.5)

    def expected_S(self, outlook: Outlook, action: Tensor) -> Tensor:
        """Return the probability outside."""
        inside = outlook.below_S(action + self.tolerance) - outlook.below_S(action - self.tolerance, strictly=True)
        return (1 - inside).clamp(0, 1)


class FiniteCost(NumberCost):
    """A cost of a few actions."""

    @abstractmethod
    def table_S(self, outlook: Outlook) -> Tensor:
        """Return the expected cost of each action under each draw, (S, B, K', A)."""

    @abstractmethod
    def least_S(self, outlook: Outlook, cap: float) -> Tensor:
        """Return the mean under each draw of the least cost, at most `cap`, if the number were known, (S, B, K')."""


@dataclass(frozen=True)
class Exceeds(FiniteCost):
    """Act if the number exceeds a threshold: a miss costs `miss`, a false alarm `alarm`, anything else nothing.

    To act where p(y > t) ≥ q, take `alarm` q and `miss` 1 − q.

    Attributes:
        threshold: t, in the units of the targets.
        miss: cost of waiting where the number exceeds it, above 0.
        alarm: cost of acting where it does not, above 0.
        below: act if the number is at most t instead.
    """

    name = "exceeds"
    threshold: float = 0.0
    miss: float = 1.0
    alarm: float = 1.0
    below: bool = False

    def __post_init__(self) -> None:
        plain(self)
        check_numbers(threshold=self.threshold)
        check_positive(miss=self.miss, alarm=self.alarm)
        check_flags(below=self.below)

    @property
    def actions(self) -> tuple[str, str]:
        """To act, which is the first of tied ones, or to wait."""
        return "act", "wait"

    @property
    def bound(self) -> float:
        """The larger of the two costs."""
        return max(self.miss, self.alarm)

    @property
    def is_binary(self) -> bool:
        """Whether both costs are the same."""
        return self.miss == self.alarm

    def of(self, action: Tensor, targets: Tensor) -> Tensor:
        """Return the cost of acting (0) or waiting (1)."""
        happens, acts = (targets > self.threshold) != self.below, action == 0
        return self.alarm * (~happens & acts).double() + self.miss * (happens & ~acts).double()

    def table_S(self, outlook: Outlook) -> Tensor:
        """Return the expected costs of acting and waiting."""
        below_S = outlook.below_S(self.threshold)
        happens_S = below_S if self.below else 1 - below_S
        return torch.stack([self.alarm * (1 - happens_S), self.miss * happens_S], dim=-1)

    def least_S(self, outlook: Outlook, cap: float) -> Tensor:
        """Return 0: who knows the number pays nothing."""
        return torch.zeros_like(outlook.below_S(self.threshold)).clamp_max(cap)


@dataclass(frozen=True)
class Grid(FiniteCost):
    """Any cost of the actions that are listed.

    Attributes:
        function: (action, y) -> costs in the shape of the array y, float64, in the units of the targets.
        values: the actions, numbers or texts, as the function takes them.
    """

    name = "grid"
    function: Callable[[Any, np.ndarray], Any]
    values: Sequence[Any]

    def __post_init__(self) -> None:
        check_function("a function of an action and numbers", function=self.function)
        values = names_of("actions", self.values)
        if not values:
            raise ValueError("`actions` must list at least one action of the cost; got none.")
        object.__setattr__(self, "values", values)

    @property
    def actions(self) -> tuple[Any, ...]:
        """The actions."""
        return tuple(self.values)

    def of(self, action: Tensor, targets: Tensor) -> Tensor:
        """Return the cost of the actions of these indices."""
        each = torch.stack([self._at(value, targets) for value in self.values], dim=-1)
        return each.gather(-1, action.unsqueeze(-1))[..., 0]

    def table_S(self, outlook: Outlook) -> Tensor:
        """Return the expected cost of each action."""
        columns = [outlook.expected_S(lambda y, value=value: self._at(value, y)) for value in self.values]
        return torch.stack(columns, dim=-1)

    def least_S(self, outlook: Outlook, cap: float) -> Tensor:
        """Return the mean of the least cost."""

        def least(y: Tensor) -> Tensor:
            costs = self._at(self.values[0], y)
            for value in self.values[1:]:
                costs = torch.minimum(costs, self._at(value, y))
            return costs.clamp_max(cap)

        return outlook.expected_S(least)

    def _at(self, value: Any, y: Tensor) -> Tensor:
        costs = torch.as_tensor(np.asarray(self.function(value, y.cpu().numpy()))).to(y.device)
        if costs.shape != y.shape or costs.is_complex() or not costs.isfinite().all():
            raise ValueError(
                f"`cost` must give a finite number for each of the numbers {tuple(y.shape)}; for the action {value!r} "
                f"it gave {seen(costs)}{'' if costs.isfinite().all() else ', of which some are NaN or infinite'}."
            )
        return costs.double()


NUMBER_COSTS: dict[str, Any] = {kind.name: kind for kind in (Linear, Squared, Within, Exceeds)}
"""Costs that files and the shell may name."""


def number_cost_of(cost: Any, actions: Any = None) -> NumberCost:
    """Return a cost of numbers: an object, "squared", "absolute", or a function with its actions."""
    if isinstance(cost, NumberCost):
        return cost
    words = {"squared": Squared(), "absolute": Linear(1.0, 1.0)}
    if isinstance(cost, str) and cost in words:
        return words[cost]
    if callable(cost) and not isinstance(cost, type):
        if actions is None:
            raise ValueError(
                "a function as `cost` needs `actions`, the list of those to choose from, such as range(100)."
            )
        return Grid(cost, actions)
    raise TypeError(
        f"`cost` of numbers must be 'squared', 'absolute', an object such as decisions.Linear(under=3, over=1), or a "
        f"function (action, y) -> cost; got {seen(cost)}."
    )
