r"""Which rows to hand on, so that the risk of the others is promised: a threshold certified on held-out rows.

A row is accepted where its score, the expected cost of its decision, is below a threshold λ. Two promises are made, and
they are not the same:

    risk    P( E[loss | accepted] ≤ α ) ≥ 1 − δ     over sets of held-out rows; the loss of accepted rows alone
    rate    E[ loss · accepted ] ≤ β                on average over sets of held-out rows; among all rows

`torchbayes.decisions.thresholds` says how the threshold is found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from torchbayes.checks import as_numbers, check_kind, check_positive, optional, seen
from torchbayes.conformal.ranks import check_coverage
from torchbayes.decisions.costs import Costs
from torchbayes.decisions.decide import Decisions
from torchbayes.decisions.numbers import NUMBER_COSTS, NumberCost
from torchbayes.decisions.thresholds import Chosen, Scored, rate_threshold, risk_threshold
from torchbayes.display import Overview, shown
from torchbayes.native.process import undisturbed, undisturbed_methods
from torchbayes.posteriors.files import read_tensors, write_tensors

FILE = "abstention.safetensors"
"""The file of a rule in the directory of a run."""
_KIND = "abstention"


def _overview(rule: Abstention) -> Overview:
    kept = {"accepted": f"{rule.accepted:,} of {len(rule.scores_N):,}", "threshold": rule.threshold}
    if rule.confidence is None:
        return Overview("Abstention", {"rate": rule.limit, **kept})
    return Overview("Abstention", {"risk": rule.limit, "confidence": rule.confidence, **kept})


@undisturbed_methods
@shown(_overview)
@dataclass(frozen=True, eq=False)
class Abstention:
    """A rule that hands on rows whose expected cost is not below a threshold, and what it promises of the others.

    Attributes:
        losses_N: what the decisions on the held-out rows cost, from 0 to `bound`; kept as a float64 tensor.
        scores_N: their expected costs, or other scores of doubt; kept as a float64 tensor.
        limit: α, the risk of accepted rows, or β, the rate of accepted losses among all rows.
        confidence: 1 − δ, the probability that the risk is at most α; None where the rate is promised, on average.
        bound: the largest loss.
        cost: the costs by which rows were decided; None for losses of one's own.
        drawn: `draws` and `seed` of the functions that predicted, by name, where a command has drawn them.
    """

    losses_N: Any
    scores_N: Any
    limit: float
    confidence: float | None = 0.9
    bound: float = 1.0
    cost: Costs | NumberCost | None = None
    drawn: Mapping[str, int | None] | None = None

    def __post_init__(self) -> None:
        check_positive(limit=self.limit, bound=self.bound)
        optional(check_coverage, confidence=self.confidence)
        optional(check_kind, (Costs, NumberCost), "costs, such as decisions.Costs", cost=self.cost)
        optional(check_kind, Mapping, "a mapping from names to numbers", drawn=self.drawn)
        losses_N, scores_N = (as_numbers(name, getattr(self, name)) for name in ("losses_N", "scores_N"))
        for name, values_N in (("losses_N", losses_N), ("scores_N", scores_N)):
            if values_N.ndim != 1 or not len(values_N):
                raise ValueError(
                    f"`{name}` must have shape (N,), one number for each row; got {seen(getattr(self, name))}."
                )
            if not values_N.isfinite().all():
                raise ValueError(f"`{name}` holds NaN or infinite values: {int((~values_N.isfinite()).sum())}.")
            object.__setattr__(self, name, values_N)
        if len(losses_N) != len(scores_N):
            raise ValueError(
                f"`losses_N` and `scores_N` must be of the same rows; got {len(losses_N)} and {len(scores_N)}."
            )
        if losses_N.min() < 0 or losses_N.max() > self.bound:
            raise ValueError(
                f"`losses_N` must lie between 0 and `bound` {self.bound:g}; got {float(losses_N.min()):g} to "
                f"{float(losses_N.max()):g}."
            )
        if self.limit >= self.bound:
            raise ValueError(f"`limit` must be below the largest loss, {self.bound:g}; got {self.limit:g}.")
        _ = self._chosen  # refuses what cannot be promised

    @property
    def threshold(self) -> float:
        """Rows are accepted whose score is below this."""
        return self._chosen.value

    @property
    def accepted(self) -> int:
        """How many of the held-out rows are accepted."""
        return self._chosen.accepted

    @property
    def coverage(self) -> float:
        """Share of the held-out rows that are accepted."""
        return self.accepted / len(self.scores_N)

    @property
    def empirical(self) -> float:
        """Mean loss of the accepted held-out rows; with a rate, their losses over all rows."""
        return self._chosen.loss / (len(self.scores_N) if self.confidence is None else max(self.accepted, 1))

    @property
    def words(self) -> str:
        """What is promised, on how many rows it rests, and how many it accepts."""
        loss = "error rate" if self.is_binary else "mean cost"
        rows = f"{len(self.scores_N):,} held-out rows"
        if self.confidence is None:
            promise = (
                f"Accepted {'errors' if self.is_binary else 'costs'} are at most {self.limit:g} per row of all rows, "
                f"on average over sets of {rows}; this is no bound on the {loss} of accepted rows alone."
            )
        else:
            promise = (
                f"With probability {self.confidence:g} over sets of {rows}, the {loss} of accepted rows is at most "
                f"{self.limit:g}."
            )
        kept = f"{self.accepted:,} of them are accepted ({100 * self.coverage:.1f} %)"
        mean = self._chosen.loss / max(self.accepted, 1)
        return f"{promise} {kept}; their {loss} is {mean:.4g}. New rows must be like these."

    @property
    def is_binary(self) -> bool:
        """Whether every loss is 0 or the largest: by the costs where known, so that no loss chooses the test."""
        if self.cost is not None:
            return self.cost.is_binary
        return bool(((self.losses_N == 0) | (self.losses_N == self.bound)).all())

    def at(self, limit: float, *, confidence: float | None = None) -> Abstention:
        """Return the rule with another limit, by the same rows; only one rule of several keeps the promise.

        Args:
            limit: of the risk or the rate.
            confidence: of the risk; as it is if None.

        Returns:
            The rule.

        Raises:
            ValueError: if it cannot be promised.
        """
        return replace(self, limit=limit, confidence=self.confidence if confidence is None else confidence)

    def accepts(self, scores: Any) -> Tensor:
        """Return whether rows of these scores are accepted, bool.

        Args:
            scores: expected costs, or what `scores_N` are, any shape.

        Returns:
            In the shape of the scores.
        """
        return as_numbers("scores", scores) < self.threshold

    def apply(self, decisions: Decisions) -> Decisions:
        """Return decisions that abstain where a row is not accepted.

        Args:
            decisions: by the same costs, of predictions by the same functions.

        Returns:
            The decisions.

        Raises:
            ValueError: if the rule was certified for other costs.
        """
        check_kind(Decisions, "what `decide` returns", decisions=decisions)
        if not same_cost(self.cost, decisions.cost):
            raise ValueError(
                "this rule was certified for other costs than these decisions are made by. Certify one for them, on "
                "rows that were held out, or decide without a rule."
            )
        return replace(decisions, abstained=decisions.abstained | ~self.accepts(decisions.expected_cost))

    def save(self, path: str | Path) -> Path:
        """Write the rule to a safetensors file, atomically; `torchbayes.decisions.load` reads it.

        Args:
            path: where to write, such as `run/abstention.safetensors`.

        Returns:
            The path.
        """
        header: dict[str, Any] = {
            "kind": _KIND,
            "limit": self.limit,
            "confidence": self.confidence,
            "bound": self.bound,
            "drawn": self.drawn,
        }
        tensors = {"losses": self.losses_N, "scores": self.scores_N}
        if isinstance(self.cost, Costs):
            tensors["costs"] = self.cost.costs
            header["names"] = [[*map(str, names)] for names in (self.cost.actions, self.cost.classes)]
        elif self.cost is not None:
            header["cost"] = {"name": self.cost.name, **vars(self.cost)}
        return write_tensors(path, tensors, header)

    @cached_property
    def _chosen(self) -> Chosen:
        rows = Scored(self.scores_N.numpy(), self.losses_N.numpy() / self.bound, self.bound, binary=self.is_binary)
        return (
            rate_threshold(rows, self.limit)
            if self.confidence is None
            else risk_threshold(rows, self.limit, self.confidence)
        )


def same_cost(one: Any, other: Any) -> bool:
    """Return whether two costs are the same, names included."""
    if not isinstance(one, Costs) or not isinstance(other, Costs):
        return one == other
    named = [[*map(str, (*each.actions, *each.classes))] for each in (one, other)]
    return one.costs.shape == other.costs.shape and bool((one.costs == other.costs).all()) and named[0] == named[1]


@undisturbed
def load(path: str | Path) -> Abstention:
    """Read a rule that `Abstention.save` wrote.

    Args:
        path: the file.

    Returns:
        The rule.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is damaged, or holds no rule.
    """
    tensors, header = read_tensors(path)
    if header.get("kind") != _KIND:
        raise ValueError(f"{path} holds a {header.get('kind')!r}, not a rule of abstention. Read it by `tb.load`.")
    cost: Any = None
    if "costs" in tensors:
        actions, classes = header["names"]
        cost = Costs(tensors["costs"], tuple(actions), tuple(classes))
    elif "cost" in header:
        settings = dict(header["cost"])
        kind = NUMBER_COSTS.get(settings.pop("name"))
        if kind is None:
            raise ValueError(f"{path} names the cost {header['cost']['name']!r}, which this version does not have.")
        cost = kind(**settings)
    limit, confidence, bound = (header[name] for name in ("limit", "confidence", "bound"))
    losses_N, scores_N = tensors["losses"], tensors["scores"]
    return Abstention(losses_N, scores_N, limit, confidence, bound, cost, header.get("drawn"))
