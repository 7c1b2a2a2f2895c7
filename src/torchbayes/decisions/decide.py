r"""decide: the action of least expected cost at each row, and what knowing more would be worth.

    a*(x) = argmin_a Σ_k c(a, k) p̄(k | x),    p̄ the average over S draws

The expected cost under each draw, Σ_k c(a*, k) p_s(k | x), says how far the weights leave it open. Two numbers bound
what information may cost: E c(a*, y) − E min_a c(a, y), that of the target itself; and that of unlimited data,
E c(a*, y) − (1/S) Σ_s min_a E_s c(a, y), after which the function is known and the noise remains (Raiffa and Schlaifer
1961).
Abstaining at a fixed cost is one more action (Chow 1970).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchbayes.calls import explained
from torchbayes.checks import check_kind, check_numbers, check_object, optional, seen
from torchbayes.data.base import Standardise
from torchbayes.decisions.costs import ABSTAIN, Costs, costs_of
from torchbayes.decisions.given import Given, given_of, probs_of
from torchbayes.decisions.numbers import FiniteCost, NumberCost, number_cost_of
from torchbayes.decisions.outlook import Outlook, nodes_of
from torchbayes.display import Overview, shown
from torchbayes.native.process import undisturbed, undisturbed_methods
from torchbayes.predictive.intervals import pieces_of

ERROR = "error"
"""The cost by which the decision is the most probable class."""
_AT_ONCE = 2**22  # numbers held for a block of rows


class _Block(NamedTuple):
    """Decisions of a block of rows."""

    action: Tensor
    by_draw_SB: Tensor
    informed_B: Tensor  # expected cost of who knows the target
    settled_B: Tensor | None  # of who knows the function


@undisturbed_methods
@shown(lambda each: Overview("Decisions", {"rows": len(each.action), **each.summary}))
@dataclass(frozen=True, eq=False)
class Decisions:
    """What to do at each of B rows. Of several numbers in a row each has its decision, and B stands for (B, K').

    Attributes:
        action: index of the action (B,), int64; or the number that is the action, float64, in raw units. Where the
            decision is to abstain, what it would be otherwise.
        abstained: whether to abstain, bool (B,).
        expected_cost: of the decision, (B,), float64, in the units of the cost: of the action that would be taken where
            a rule abstains.
        by_draw: the same under each draw, (S, B), whose spread is due to the weights.
        perfect_information: how much less it would be if the target were known, (B,), at least 0.
        unlimited_data: how much less if the function were known, but not the noise, (B,); None where actions are
            numbers.
        cost: the costs.
        actions: names of the actions; None where they are numbers.
    """

    action: Tensor
    abstained: Tensor
    expected_cost: Tensor
    by_draw: Tensor
    perfect_information: Tensor
    unlimited_data: Tensor | None
    cost: Costs | NumberCost
    actions: Sequence[Any] | None

    @property
    def labels(self) -> np.ndarray:
        """The decisions (B,) by name, "abstain" among them; or as numbers, NaN where it is to abstain."""
        if self.actions is None:
            return torch.where(self.abstained, torch.nan, self.action).numpy()
        names = [*map(str, self.actions), ABSTAIN]
        return np.array(names)[torch.where(self.abstained, len(self.actions), self.action).numpy()]

    @property
    def spread(self) -> Tensor:
        """Standard deviation of the expected cost over draws, (B,); 0 for one draw."""
        return self.by_draw.std(0, correction=0)

    @property
    def summary(self) -> dict[str, Any]:
        """Mean expected cost, share of rows on which to abstain, and of each action."""
        facts: dict[str, Any] = {"expected_cost": float(self.expected_cost.mean())}
        if self.abstained.any():
            facts[ABSTAIN] = float(self.abstained.double().mean())
        if self.actions is not None:
            taken = self.action[~self.abstained]
            for number, name in enumerate(self.actions):
                facts[str(name)] = int((taken == number).sum()) / self.action.numel()
        return facts


@undisturbed
@explained()
def decide(
    prediction: Any,
    inputs: Any = None,
    *,
    cost: Any = None,
    actions: Any = None,
    classes: Any = None,
    abstain: float | None = None,
    rule: Any = None,
    targets: Standardise | None = None,
) -> Decisions:
    """Return the action of least expected cost at each row.

    Args:
        prediction: a `Predictive`; class probabilities (B, K), or (S, B, K) of S draws; or, with `inputs`, a posterior
            or what else `predict` takes, or an estimator of scikit-learn.
        inputs: rows, of a posterior or an estimator.
        cost: of classes: `Costs`, a mapping action -> class -> cost, a data frame (actions × classes), an array (A, K),
            or (B, A, K) with a table for each row; "error" for 1 where the class is wrong. Of numbers: "squared",
            "absolute", an object such as `decisions.Linear`, or a function (action, y) -> cost. None for that of the
            rule.
        actions: names of the rows of an array; or the actions that a function takes.
        classes: names of the predicted classes in their order, such as `data.classes`, where predictions have none; the
            columns of an array are in the same order.
        abstain: cost of abstaining, in the same units, where that is allowed at all.
        rule: an `Abstention`, which abstains where the expected cost is not below its threshold.
        targets: from raw to standardised targets, such as `data.target_standardise`; costs are of raw numbers.

    Returns:
        The decisions.

    Raises:
        TypeError: if costs are not of what is predicted, or predictions are none.
        ValueError: if shapes or names do not fit, or a number is not finite.
    """
    optional(check_numbers, abstain=abstain)
    optional(check_kind, Standardise, "a Standardise, such as data.target_standardise", targets=targets)
    optional(check_object, ("apply", "threshold"), "what decisions.abstain returns", rule=rule)
    given = given_of(prediction, inputs, targets=targets)
    if cost is None:
        cost = getattr(rule, "cost", None)
        classes = cost.classes if classes is None and isinstance(cost, Costs) else classes
    if cost is None:
        raise TypeError("`cost` must say what decisions cost; got None. 'error' takes the most probable class.")
    settled = settled_cost(given.named(classes), cost, actions=actions, classes=classes)
    decisions = _decisions(given, settled, math.inf if abstain is None else float(abstain))
    return decisions if rule is None else rule.apply(decisions)


def settled_cost(given: Given, cost: Any, *, actions: Any = None, classes: Any = None) -> Costs | NumberCost:
    """Return the cost of what is predicted; a TypeError or a ValueError if it does not fit that."""
    if not given.over_classes:
        if isinstance(cost, Costs):
            raise TypeError("`cost` is of classes, and the predictions are numbers. Use decisions.Linear and the like.")
        return number_cost_of(cost, actions)
    count = probs_of(given.predictive).shape[-1]
    if isinstance(cost, NumberCost) or callable(cost) or (isinstance(cost, str) and cost != ERROR):
        raise TypeError(
            f"`cost` of classes must be a table of actions and classes, or 'error'; got {seen(cost)}. Name each cost: "
            f"{{'treat': {{'ill': 1, 'well': 5}}, …}}."
        )
    if isinstance(cost, str):
        return Costs.errors(range(count) if len(given.classes) != count else given.classes).for_classes(
            given.classes, count
        )
    table = costs_of(cost, actions, classes).for_classes(given.classes, count)
    rows = given.predictive.outputs_SBK.shape[1]
    if table.costs.ndim == 3 and len(table.costs) != rows:
        raise ValueError(f"`cost` must have a table for each of the {rows} rows; got shape {tuple(table.costs.shape)}.")
    return table


def _decisions(given: Given, cost: Costs | NumberCost, cap: float) -> Decisions:
    of_classes = isinstance(cost, Costs)
    blocks = [*(_of_classes(given, cost, cap) if of_classes else _of_numbers(given, cost, cap))]
    action, informed = (torch.cat([getattr(block, name) for block in blocks]) for name in ("action", "informed_B"))
    by_draw = torch.cat([block.by_draw_SB for block in blocks], dim=1)
    known = [block.settled_B for block in blocks if block.settled_B is not None]
    expected = by_draw.mean(0)
    abstained = expected > cap
    expected = expected.clamp_max(cap)
    return Decisions(
        action,
        abstained,
        expected,
        torch.where(abstained, cap, by_draw),
        (expected - informed).clamp_min(0),
        (expected - torch.cat(known)).clamp_min(0) if known else None,
        cost,
        cost.actions,
    )


def _of_classes(given: Given, costs: Any, cap: float) -> Iterator[_Block]:
    size, start = max(costs.costs.shape[-2:]), 0
    for piece in pieces_of(given.predictive, given.predictive.draws * size, _AT_ONCE):
        probs_SBK = probs_of(piece)
        rows = probs_SBK.shape[1]
        table = costs.rows(start, start + rows).costs
        start += rows
        table_SBA = torch.einsum("sbk,ak->sba" if table.ndim == 2 else "sbk,bak->sba", probs_SBK, table)
        action_B = table_SBA.mean(0).argmin(-1)
        least = table.amin(-2).clamp_max(cap)  # of each class
        yield _Block(
            action_B,
            _taken(table_SBA, action_B),
            (probs_SBK.mean(0) * least).sum(-1),
            table_SBA.amin(-1).clamp_max(cap).mean(0),
        )


def _of_numbers(given: Given, cost: Any, cap: float) -> Iterator[_Block]:
    predictive = given.predictive
    for piece in pieces_of(predictive, predictive.draws * nodes_of(predictive.draws), _AT_ONCE):
        outlook = Outlook.of(piece, given.units)
        if isinstance(cost, FiniteCost):
            table_SBA = cost.table_S(outlook)
            action = table_SBA.mean(0).argmin(-1)
            informed = cost.least_S(outlook, cap).mean(0)
            parts = (action, _taken(table_SBA, action), informed, table_SBA.amin(-1).clamp_max(cap).mean(0))
        else:
            action = cost.best(outlook)
            by_draw = cost.expected_S(outlook, action)
            parts = (action, by_draw, torch.zeros_like(action).clamp_max(cap), None)
        yield _Block(*(_flat(values, axis) for values, axis in zip(parts, (1, 2, 1, 1), strict=True)))


def _taken(table_SBA: Tensor, action: Tensor) -> Tensor:
    """Return the entries of the actions, (S, B, ...)."""
    return table_SBA.gather(-1, action.expand(table_SBA.shape[:-1]).unsqueeze(-1))[..., 0]


def _flat(values: Tensor | None, axis: int) -> Any:
    """Return values without an axis K' of length 1, which stands at `axis`, on the CPU."""
    if values is None:
        return None
    single = values.ndim > axis and values.shape[axis] == 1
    return (values.squeeze(axis) if single else values).cpu()
