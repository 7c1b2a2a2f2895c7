r"""Costs of deciding on a number, or by one; y the true number, a the action.

    Linear      u (y − a)⁺ + o (a − y)⁺        a = the quantile at u/(u + o): the newsvendor; the median if u = o
    Squared     (y − a)²                       a = the mean
    Within      1 where |y − a| > w, else 0    a = the median
    Exceeds     a miss, or a false alarm       act where p(y > t) ≥ alarm/(alarm + miss)
    Grid        c(a, y), any function          the least expected cost of the actions that are listed

Means and quantiles are those of the average over draws. Expectations of other functions are sums over K nodes of each
draw's distribution, at the levels Φ(z) of evenly spaced z, which for smooth costs under normal noise err by 1e-12.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, distributions

from torchbayes.checks import check_flags, check_function, check_numbers, check_positive, plain, seen
from torchbayes.conformal.numbers import as_double
from torchbayes.data.base import Standardise
from torchbayes.decisions.costs import names_of
from torchbayes.model.likelihoods.quantiles import average_quantile
from torchbayes.predictive.mixture import Mixture

NODES = 1024  # of all draws together, at least
_FEWEST = 64  # of each draw
_WIDEST = 6.0  # standard deviations up to which nodes reach, beyond which 2e-9 of a normal distribution lies


def nodes_of(draws: int) -> int:
    """Return how many nodes each draw has."""
    return max(_FEWEST, -(-NODES // draws))


@dataclass(frozen=True)
class Outlook:
    """What a predictive says of numbers, in the units of the raw targets, float64.

    Attributes:
        mixture: the model average, in its own units and in float64.
        units: from raw to standardised targets; None where they are not standardised.
    """

    mixture: Mixture
    units: Standardise | None = None

    @classmethod
    def of(cls, mixture: Mixture, units: Standardise | None) -> Outlook:
        """Return the outlook of an average in any precision."""
        double = as_double(mixture)
        like = double.outputs_SBK
        return cls(double, None if units is None else Standardise(units.mean.to(like), units.scale.to(like)))

    @property
    def mean(self) -> Tensor:
        """Predicted means, (B, K')."""
        return self._raw(self.mixture.mean)

    @property
    def variance_S(self) -> Tensor:
        """Variance of the targets under each draw, (S, B, K')."""
        variance = self.mixture.distribution.variance
        return variance if self.units is None else variance * self.units.scale**2

    @property
    def mean_S(self) -> Tensor:
        """Means under each draw, (S, B, K')."""
        return self._raw(self.mixture.distribution.mean)

    def quantile(self, level: float) -> Tensor:
        """Return quantiles of the average, (B, K')."""
        try:
            return self._raw(self.mixture.quantile(level))
        except NotImplementedError:  # no distribution function: those of the nodes
            values_SQB, _ = self.nodes
            return values_SQB.flatten(0, 1).quantile(level, dim=0)

    def below_S(self, numbers: Tensor | float) -> Tensor:
        """Return P(y ≤ number) under each draw, (S, B, K')."""
        try:
            return self.mixture.distribution.cdf(
                self._standardised(torch.as_tensor(numbers).to(self.mixture.outputs_SBK))
            )
        except NotImplementedError:
            values_SQB, weights_Q = self.nodes
            return torch.einsum("sq...,q->s...", (values_SQB <= numbers).double(), weights_Q)

    @cached_property
    def nodes(self) -> tuple[Tensor, Tensor]:
        """Values (S, Q, B, K') of each draw's distribution, and their weights (Q,), which sum to 1."""
        distribution, count = self.mixture.distribution, nodes_of(self.mixture.draws)
        z_Q = torch.linspace(-_WIDEST, _WIDEST, count).to(self.mixture.outputs_SBK)
        weights_Q = (-(z_Q**2) / 2).softmax(0)
        places = z_Q.view(-1, *[1] * (len(distribution.batch_shape) - 1))
        if isinstance(distribution, distributions.Normal):
            values = distribution.loc.unsqueeze(1) + distribution.scale.unsqueeze(1) * places
            return self._raw(values), weights_Q
        try:
            levels_Q = torch.special.ndtr(z_Q)
            values_QR = average_quantile(self._apart().distribution, levels_Q)  # a row for each draw of each row
            values = values_QR.view(count, *distribution.batch_shape).transpose(0, 1)
        except NotImplementedError:
            drawn = self.mixture.sample(count * self.mixture.draws)
            values = drawn.view(count, *distribution.batch_shape).transpose(0, 1)
            weights_Q = torch.full_like(z_Q, 1 / count)
        return self._raw(values.double()), weights_Q

    def expected_S(self, cost: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the mean under each draw of a function of the targets, (S, B, K')."""
        values_SQB, weights_Q = self.nodes
        return torch.einsum("sq...,q->s...", cost(values_SQB), weights_Q)

    def _apart(self) -> Mixture:
        """Return the distributions of all draws as rows of one draw."""
        mixture, (draws, rows) = self.mixture, self.mixture.outputs_SBK.shape[:2]

        def flat(values: Tensor) -> Tensor:
            return values.expand(draws, rows, *values.shape[2:]).flatten(0, 1).unsqueeze(0)

        spread = mixture.function_variance
        return replace(
            mixture,
            outputs_SBK=flat(mixture.outputs_SBK),
            parameters={name: flat(value) for name, value in mixture.parameters.items()},
            function_variance=None if spread is None else flat(spread),
        )

    def _raw(self, values: Tensor) -> Tensor:
        return values if self.units is None else values * self.units.scale + self.units.mean

    def _standardised(self, values: Tensor) -> Tensor:
        return values if self.units is None else (values - self.units.mean) / self.units.scale


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

    @abstractmethod
    def of(self, action: Tensor, targets: Tensor) -> Tensor:
        """Return the cost of actions, numbers or their indices, at true numbers that broadcast against them."""


class FreeCost(NumberCost):
    """A cost whose action is any number."""

    @abstractmethod
    def best(self, outlook: Outlook) -> Tensor:
        """Return the action at each number, (B, K')."""

    def expected_S(self, outlook: Outlook, action: Tensor) -> Tensor:
        """Return the expected cost of actions (B, K') under each draw, (S, B, K')."""
        return outlook.expected_S(lambda values: self.of(action, values))


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

    def of(self, action: Tensor, targets: Tensor) -> Tensor:
        """Return the cost."""
        return ((targets - action).abs() > self.tolerance).double()

    def best(self, outlook: Outlook) -> Tensor:
        """Return the median."""
        return outlook.quantile(0.5)

    def expected_S(self, outlook: Outlook, action: Tensor) -> Tensor:
        """Return the probability outside."""
        inside = outlook.below_S(action + self.tolerance) - outlook.below_S(action - self.tolerance)
        return (1 - inside).clamp(0, 1)


class FiniteCost(NumberCost):
    """A cost of a few actions."""

    @abstractmethod
    def table_S(self, outlook: Outlook) -> Tensor:
        """Return the expected cost of each action under each draw, (S, B, K', A)."""

    @abstractmethod
    def least_S(self, outlook: Outlook, cap: float) -> Tensor:
        """Return the mean under each draw of the least cost, at most `cap`, if the number were known, (S, B, K')."""

    def best_of(self, table: Tensor) -> Tensor:
        """Return the index of the action of least expected cost (..., A), the first of tied ones."""
        return table.argmin(-1)


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
        """To wait, or to act."""
        return "wait", "act"

    @property
    def bound(self) -> float:
        """The larger of the two costs."""
        return max(self.miss, self.alarm)

    def of(self, action: Tensor, targets: Tensor) -> Tensor:
        """Return the cost of waiting (0) or acting (1)."""
        happens = (targets > self.threshold) != self.below
        zero = torch.zeros((), dtype=torch.float64)
        return torch.where(
            happens, torch.where(action == 0, self.miss, zero), torch.where(action == 1, self.alarm, zero)
        )

    def table_S(self, outlook: Outlook) -> Tensor:
        """Return the expected costs of waiting and acting."""
        below_S = outlook.below_S(self.threshold)
        happens_S = below_S if self.below else 1 - below_S
        return torch.stack([self.miss * happens_S, self.alarm * (1 - happens_S)], dim=-1)

    def best_of(self, table: Tensor) -> Tensor:
        """Return 1, to act, where that does not cost more."""
        wait, act = table.unbind(-1)
        return (act <= wait).long()

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
