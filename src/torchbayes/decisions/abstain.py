"""abstain: a rule of abstention for the decisions of a posterior, by rows that were held out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from torchbayes.calls import explained
from torchbayes.checks import check_kind, check_positive, optional, seen
from torchbayes.conformal.ranks import check_coverage
from torchbayes.conformal.rows import predicted_rows
from torchbayes.data.base import Standardise
from torchbayes.decisions.abstention import Abstention
from torchbayes.decisions.costs import Costs
from torchbayes.decisions.decide import ERROR, decide
from torchbayes.decisions.given import Given, given_of
from torchbayes.decisions.numbers import NumberCost
from torchbayes.native.process import undisturbed
from torchbayes.posteriors.problems import note


@undisturbed
@explained()
def abstain(
    posterior: Any,
    data: Any,
    *,
    risk: float | None = None,
    rate: float | None = None,
    confidence: float = 0.9,
    cost: Any = ERROR,
    classes: Any = None,
    targets: Standardise | None = None,
) -> Abstention:
    """Certify on held-out rows which rows to decide on, so that a risk is promised for them.

    Args:
        posterior: a posterior, functions drawn from one, a `Linearised` one, a `Predictive` already made, or an
            estimator of scikit-learn.
        data: rows that neither the fit nor any choice has seen: (inputs, targets), a Dataset, a DataLoader or an
            iterable of batches; the targets alone for a `Predictive`; a pair (X, y) for an estimator.
        risk: promise that the mean loss of accepted rows is at most this, with probability `confidence`.
        rate: promise instead that losses of accepted rows, over all rows, are at most this, on average.
        confidence: probability of the first promise over sets of held-out rows, in (0, 1).
        cost: as of `decide`, at least 0 and bounded: "error" for classes, a table of costs, or of numbers
            `decisions.Within` or `decisions.Exceeds`.
        classes: as of `decide`.
        targets: as of `decide`.

    Returns:
        The rule; `decide(rule=…)` applies it to predictions by the same functions.

    Raises:
        TypeError: if targets or costs do not fit the predictions.
        ValueError: if rows are too few, and how many are needed; if losses are too high for any threshold; if rows have
            weights; or if an estimator was fitted to these rows.
    """
    optional(check_kind, Standardise, "a Standardise, such as data.target_standardise", targets=targets)
    limit, confidence_or_none = _promise(risk, rate, confidence)
    losses, scores, settled = [], [], None
    for given, observed in _given_rows(posterior, data, targets=targets):
        decisions = decide(given.named(classes), cost=cost if settled is None else settled, classes=classes)
        settled = checked_cost(decisions.cost)
        known, weights_B = given.judged(observed)
        if decisions.expected_cost.ndim > 1:
            raise TypeError("rows with several numbers each have several decisions; a rule is of one. Take one column.")
        kept_B = weights_B > 0
        if not (weights_B[kept_B] == 1).all():
            raise ValueError("held-out rows must count once each; these have weights. Give each row once.")
        losses.append(settled.of(decisions.action, known.reshape(len(weights_B)))[kept_B])
        scores.append(decisions.expected_cost[kept_B])
    if settled is None or not sum(map(len, losses)):
        raise ValueError("the data are empty: there are no rows to certify on.")
    if limit >= settled.bound:
        name = "rate" if risk is None else "risk"
        raise ValueError(f"`{name}` must be below the largest loss, {settled.bound:g}; got {limit:g}.")
    rule = Abstention(torch.cat(losses), torch.cat(scores), limit, confidence_or_none, settled.bound, settled)
    if copies := _copies(rule):
        note(
            f"{copies:,} of {len(rule.scores_N):,} held-out rows have score and loss of another one. If they are "
            f"copies, give each once: the promise is that of as many independent rows."
        )
    return rule


def _copies(rule: Abstention) -> int:
    """Return how many rows seem to be copies of others; 0 if they are few.

    Copies have one score and one loss. Rows that have few different inputs have one score and losses that differ.
    Scores of next to nothing say nothing.
    """
    doubtful = rule.scores_N > _CERTAIN * rule.bound
    scores, losses = rule.scores_N[doubtful].float(), rule.losses_N[doubtful]
    different, place = scores.unique(return_inverse=True)
    copies = len(scores) - len(different)
    least, largest = (
        losses.new_zeros(len(different)).scatter_reduce(0, place, losses, how, include_self=False)
        for how in ("amin", "amax")
    )
    return copies if copies > _FEW * len(rule.scores_N) and bool((least == largest).all()) else 0


_CERTAIN, _FEW = 1e-6, 0.05  # scores, and shares of the rows, up to which copies are not looked for


def _promise(risk: float | None, rate: float | None, confidence: float) -> tuple[float, float | None]:
    """Return the limit, and the confidence of a risk."""
    optional(check_positive, risk=risk, rate=rate)
    check_coverage(confidence=confidence)
    if (risk is None) == (rate is None):
        raise ValueError(
            "say which is promised: `risk`, the mean loss of accepted rows, with a confidence; or `rate`, the losses "
            f"of accepted rows over all rows, on average; got risk={risk} and rate={rate}."
        )
    return (float(risk), confidence) if risk is not None else (float(rate or 0), None)


def _given_rows(posterior: Any, data: Any, *, targets: Standardise | None) -> Iterator[tuple[Given, Any]]:
    """Yield predictions and targets, batch by batch."""
    if not (hasattr(posterior, "classes_") or hasattr(posterior, "target_units_")):
        for predictive, observed in predicted_rows(posterior, data, seed=0):
            yield given_of(predictive, targets=targets), observed
        return
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise TypeError(f"`data` must be the pair (X, y) of held-out rows; got {seen(data)}.")
    X, y = data
    if hasattr(posterior, "check_held_out"):
        posterior.check_held_out(X)
    yield given_of(posterior, X), y


def check_held_out(known: Tensor, inputs: Tensor) -> None:
    """Raise a ValueError if more rows have the inputs of rows of the fit than new rows would have by chance.

    A new row has those of another row with about the probability with which a row of the fit has those of another one:
    almost never where inputs are real numbers, often where they are a few categories.
    """
    from scipy.stats import binom

    rows = [row.tobytes() for row in known.cpu().numpy()]
    counts = Counter(rows)
    repeated = sum(row.tobytes() in counts for row in inputs.cpu().numpy())
    by_chance = (sum(counts[row] > 1 for row in rows) + 1) / (len(rows) + 1)
    if binom.sf(repeated - 1, len(inputs), by_chance) < _CHANCE:
        raise ValueError(
            f"{repeated:,} of {len(inputs):,} rows have the inputs of rows of the fit, on which any model errs less "
            f"than on new ones; {by_chance * len(inputs):.0f} would be chance. Certify on rows that were held out."
        )


_CHANCE = 1e-4  # of so many repeated rows or more among new ones


def checked_cost(cost: Costs | NumberCost) -> Costs | NumberCost:
    """Return costs whose expectation can be promised: a ValueError unless they are at least 0 and bounded."""
    if isinstance(cost, Costs):
        if cost.costs.ndim == 3:
            raise ValueError("a rule is for one table of costs; got one for each row.")
        if cost.costs.min() < 0 or not cost.bound:
            raise ValueError(
                f"costs of a rule must be at least 0, and some above it; in {seen(cost.costs)} the smallest is "
                f"{float(cost.costs.min()):g}, the largest {cost.bound:g}. Add a constant to all."
            )
    elif cost.bound == math.inf:
        raise ValueError(
            f"a promise needs costs with a bound, and {cost!r} has none. Use decisions.Within, 1 where a prediction is "
            f"off by more than a tolerance."
        )
    return cost
