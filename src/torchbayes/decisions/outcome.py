"""What decisions cost on rows with targets, beside simpler rules, and one that knows the targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from torchbayes.conformal.rows import predicted_rows
from torchbayes.data.base import Standardise
from torchbayes.decisions.abstention import Abstention
from torchbayes.decisions.costs import Costs
from torchbayes.decisions.decide import Decisions, decide
from torchbayes.decisions.given import Given, given_of, probs_of
from torchbayes.decisions.numbers import FiniteCost, NumberCost
from torchbayes.metrics._checks import weighted_mean

_CONSTANTS = 201  # quantiles of known targets that are tried as the only action


@dataclass(frozen=True)
class Outcome:
    """Realised costs of N rows, (N,), float64; (N, K') of several numbers in a row.

    Attributes:
        cost: the costs.
        loss: what the decisions cost, of the action that would be taken where a rule abstains.
        expected: what they were expected to cost.
        abstained: whether a rule abstains.
        others: what other rules cost, by name; the last one knows the targets.
        weights: how often each row counts, (N,).
    """

    cost: Costs | NumberCost
    loss: Tensor
    expected: Tensor
    abstained: Tensor
    others: Mapping[str, Tensor]
    weights: Tensor

    def mean(self, values: Tensor) -> float:
        """Return the mean over rows."""
        each = values.double().flatten(1).mean(1) if values.ndim > 1 else values
        return float(weighted_mean(each, self.weights))


def outcome_of(
    posterior: Any,
    data: Any,
    cost: Any = None,
    *,
    rule: Abstention | None = None,
    classes: Any = None,
    targets: Standardise | None = None,
    known: Tensor | None = None,
) -> Outcome:
    """Return what decisions on rows with targets cost.

    Args:
        posterior: as of `abstain`, but no estimator.
        data: rows with targets.
        cost: as of `decide`; None for that of the rule.
        rule: an `Abstention`.
        classes: as of `decide`.
        targets: as of `decide`.
        known: raw targets of the fit, by which the best number for all rows is chosen; None for that of these rows.

    Returns:
        The costs.

    Raises:
        ValueError: if there are no rows, or the rule was certified for other costs.
    """
    parts = []
    for predictive, observed in predicted_rows(posterior, data, seed=0):
        given = given_of(predictive, targets=targets).named(classes)
        decisions = decide(given, cost=cost, rule=rule)
        truth, weights_B = given.judged(observed)
        truth = truth.reshape(decisions.action.shape)
        parts.append((decisions, truth, weights_B, _certain(given, decisions)))
    if not parts:
        raise ValueError("the data are empty: there are no rows to decide on.")
    made: list[Decisions] = [block[0] for block in parts]
    truth, weights, certain = (torch.cat([block[place] for block in parts]) for place in (1, 2, 3))
    settled: Any = made[0].cost
    others = {"as if the prediction were certain": settled.of(certain, truth), **_constant(settled, truth, known)}
    return Outcome(
        settled,
        settled.of(torch.cat([each.action for each in made]), truth),
        torch.cat([each.expected_cost for each in made]),
        torch.cat([each.abstained for each in made]),
        {**others, "with the targets known": _least(settled, truth)},
        weights,
    )


def _certain(given: Given, decisions: Decisions) -> Tensor:
    """Return the actions if the most probable class, or the mean, were the target."""
    cost: Any = decisions.cost
    if isinstance(cost, Costs):
        return cost.costs[:, probs_of(given.predictive).mean(0).argmax(-1)].argmin(0)
    mean = given.mean.reshape(decisions.action.shape)
    return _table(cost, mean).argmin(-1) if isinstance(cost, FiniteCost) else mean


def _table(cost: FiniteCost, truth: Tensor) -> Tensor:
    """Return the cost of each action at true numbers, (..., A)."""
    numbers = range(len(cost.actions or ()))
    return torch.stack([cost.of(torch.full(truth.shape, number), truth) for number in numbers], dim=-1)


def _constant(cost: Costs | NumberCost, truth: Tensor, known: Tensor | None) -> dict[str, Tensor]:
    """Return the costs of each action for all rows, or of the best number for all."""
    if cost.actions is not None:
        columns = cost.costs[:, truth].T if isinstance(cost, Costs) else _table(cast(FiniteCost, cost), truth)
        return {f"always {name}": column for name, column in zip(cost.actions, columns.unbind(-1), strict=True)}
    known = (truth if known is None else known).double().reshape(-1)
    levels = torch.linspace(0, 1, _CONSTANTS, dtype=torch.float64)
    tried = torch.cat([known.quantile(levels), known.mean().view(1)])
    best = tried[torch.stack([cost.of(number, known).mean() for number in tried]).argmin()]
    return {f"always {float(best):.4g}": cost.of(best, truth)}


def _least(cost: Costs | NumberCost, truth: Tensor) -> Tensor:
    """Return the least cost at the true targets."""
    if isinstance(cost, Costs):
        return cost.costs.amin(0)[truth]
    return _table(cost, truth).amin(-1) if isinstance(cost, FiniteCost) else cost.of(truth, truth)
