r"""Below which score rows are accepted, so that a promise is kept.

The risk of accepted rows, E[loss | score < λ], is not monotone in λ, so that conformal risk control does not apply.
Thresholds are tested from the strictest on, each at level δ, until one fails ("Learn then test", Angelopoulos et al.
2021): λ_j is the (k_j + 1)-th smallest score, and the rows below it, which are independent given λ_j, test that the
risk is above α. The risk must rise through α once as λ does, as it does for any score that ranks losses. The sequence
begins where enough rows are accepted that a few losses do not end it; these counts depend on no target.

The rate E[loss · (score < λ)] is monotone, and λ is that of conformal risk control (`torchbayes.decisions.bounds`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from torchbayes.decisions.bounds import error_p_value, fewest_rows, loss_p_value
from torchbayes.randomness.seeds import Purpose, generator

_STEPS = 50  # thresholds of a sequence
_START = 3, 10  # it begins at so many times the fewest rows, or this part of all, whichever is more


class Chosen(NamedTuple):
    """A threshold."""

    value: float
    accepted: int  # rows below it
    loss: float  # sum of their losses, in units of the cost


@dataclass(frozen=True, eq=False)
class Scored:
    """Held-out rows: their scores (N,), and their losses (N,), in units of the largest one, `unit`."""

    scores_N: np.ndarray
    losses_N: np.ndarray
    unit: float
    binary: bool  # whether losses are 0 or 1

    @cached_property
    def order_N(self) -> np.ndarray:
        """Rows by their scores."""
        return self.scores_N.argsort(kind="stable")

    @cached_property
    def tops_N(self) -> np.ndarray:
        """Thresholds (N + 1,): each score, and infinity."""
        return np.append(self.scores_N[self.order_N], np.inf)

    @cached_property
    def below_N(self) -> np.ndarray:
        """How many rows are below each threshold: fewer than stand before it where scores are equal."""
        return np.searchsorted(self.tops_N, self.tops_N, side="left")

    @cached_property
    def sums_N(self) -> np.ndarray:
        """Sums of the losses of the rows below each threshold."""
        return np.append(0.0, self.losses_N[self.order_N].cumsum())[self.below_N]

    def chosen(self, place: int) -> Chosen:
        """Return a threshold."""
        return Chosen(float(self.tops_N[place]), int(self.below_N[place]), float(self.sums_N[place] * self.unit))

    def check_enough(self, needed: int, promise: str) -> None:
        """Raise a ValueError if rows are fewer than are needed."""
        rows = len(self.scores_N)
        if rows < needed:
            raise ValueError(
                f"{rows:,} held-out rows are too few to promise {promise}: at least {needed:,} are needed, even "
                f"without a loss, and more in practice. Hold out more rows, or promise less."
            )


def rate_threshold(rows: Scored, limit: float) -> Chosen:
    """Return the largest λ with (Σ_i L_i(λ) + 1)/(n + 1) ≤ β; a ValueError if rows are too few."""
    count, share = len(rows.scores_N), limit / rows.unit
    rows.check_enough(fewest_rows(share, None), f"a rate of {limit:g}")
    return rows.chosen(int(np.flatnonzero(rows.sums_N + 1 <= share * (count + 1) * (1 + 1e-12))[-1]))


def risk_threshold(rows: Scored, limit: float, confidence: float) -> Chosen:
    """Return the loosest λ before one fails; a ValueError if rows are too few, or the first one fails."""
    count, share = len(rows.scores_N), limit / rows.unit
    needed = fewest_rows(share, confidence, binary=rows.binary)
    rows.check_enough(needed, f"a risk of {limit:g} with confidence {confidence:g}")
    start = max(needed, min(_START[0] * needed, count // 2), count // _START[1])
    places_T = np.unique(np.linspace(start, count, _STEPS).round().astype(int))
    mixed_N = torch.randperm(count, generator=generator(Purpose.BETS, 0)).numpy()  # bets need an order by chance
    scores_N, losses_N = rows.scores_N[mixed_N], rows.losses_N[mixed_N]
    last, accepted_n = None, losses_N
    for place in places_T[rows.below_N[places_T] >= needed].tolist():
        accepted_n = losses_N[scores_N < rows.tops_N[place]]
        if rows.binary:
            p_value = error_p_value(accepted_n.sum(), len(accepted_n), share)
        else:
            p_value = loss_p_value(accepted_n, share, confidence)
        if p_value > 1 - confidence:
            break
        last = place
    if last is None:
        raise ValueError(
            f"no threshold can be certified: among the {len(accepted_n):,} surest of {count:,} rows the mean loss is "
            f"{accepted_n.mean() * rows.unit:.3g}, which does not show a risk of at most {limit:g} with confidence "
            f"{confidence:g}. Promise a higher risk, or hold out more rows."
        )
    return rows.chosen(last)
