r"""Ranks of scores: which of n calibration scores is the threshold, and what coverage that gives.

Let s_1 … s_n be scores of calibration rows and s that of a new row, exchangeable with them. With the k-th smallest of
the n as threshold q,

    P(s ≤ q) ≥ k/(n + 1),    with equality where no two scores are equal,

so that k = ⌈(n + 1) c⌉ gives coverage c, and there is no finite threshold where k > n (Vovk, Gammerman and Shafer
2005). The coverage of the many rows that come after one calibration set has the distribution Beta(k, n + 1 − k) over
calibration sets (Vovk 2012). The smallest k with P(Beta(k, n + 1 − k) < c) ≤ δ gives at least the coverage c for a
share 1 − δ of them.

Where rows are not exchangeable, but have weights ω proportional to the ratio of the density of new rows to that of
calibration rows, the threshold is the smallest s_j with Σ_{s_i ≤ s_j} ω_i ≥ c (Σ_i ω_i + ω), ω that of the new row
(Tibshirani et al. 2019).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from torchbayes.checks import check_numbers

_DENOMINATOR = 10**9  # of a coverage as a fraction: 0.1 + 0.2 is 3/10
_ROUNDING = 1e-12  # of sums of weights


@dataclass(frozen=True)
class Threshold:
    """The largest score of what a set holds.

    Attributes:
        value: q; infinite where the calibration rows are too few.
        rank: k, of the scores from the smallest on; n + 1 where q is infinite.
        rows: n, calibration rows.
        weighted: whether rows have weights, so that the rank does not give the coverage.
    """

    value: float
    rank: int
    rows: int
    weighted: bool = False

    @property
    def expected(self) -> float | None:
        """Coverage of a new row, k/(n + 1), on average over calibration sets; more if scores are equal.

        None where rows have weights: it is then at least the coverage asked for.
        """
        return None if self.weighted else self.rank / (self.rows + 1)

    @property
    def spread(self) -> float | None:
        """Standard deviation over calibration sets of the coverage that one of them gives, of Beta(k, n + 1 − k)."""
        if self.weighted:
            return None
        k, total = self.rank, self.rows + 1
        return math.sqrt(k * (total - k) / (total**2 * (total + 1)))


def check_coverage(**shares: float) -> None:
    """Raise a ValueError unless shares lie between 0 and 1."""
    check_numbers(**shares)
    for name, share in shares.items():
        if not 0 < share < 1:
            raise ValueError(f"`{name}` must lie between 0 and 1; got {share:g}. 0.9 is usual.")


def rank_of(rows: int, coverage: float, confidence: float | None = None) -> int:
    """Return k for n rows: ⌈(n + 1) c⌉, or with `confidence` 1 − δ the smallest that keeps the promise; n + 1 if none.

    P(Beta(k, n + 1 − k) < c) is the probability that k or more of n uniform numbers are below c.
    """
    if confidence is None:
        return min(math.ceil(_fraction(coverage) * (rows + 1)), rows + 1)
    from scipy.stats import binom

    return min(int(binom.ppf(confidence, rows, coverage)) + 1, rows + 1)


def fewest_rows(coverage: float, confidence: float | None = None) -> int:
    """Return the smallest n with a finite threshold: k = n needs n/(n + 1) ≥ c, or P(all n below c) = cⁿ ≤ δ."""
    if confidence is None:
        share = _fraction(coverage)
        return max(1, math.ceil(share / (1 - share)) if share < 1 else _DENOMINATOR)
    rows = max(1, math.ceil(math.log1p(-confidence) / math.log(coverage)))
    return next(n for n in (rows - 1, rows, rows + 1) if n > 0 and rank_of(n, coverage, confidence) <= n)


def threshold(scores_N: Tensor, coverage: float, confidence: float | None = None) -> Threshold:
    """Return the threshold of scores (n,)."""
    rows = len(scores_N)
    rank = rank_of(rows, coverage, confidence)
    value = math.inf if rank > rows else float(scores_N.kthvalue(rank).values)
    return Threshold(value, rank, rows)


def weighted_thresholds(scores_N: Tensor, weights_N: Tensor, weights_B: Tensor, *, coverage: float) -> Tensor:
    """Return the thresholds of new rows of weights ω (B,), float64; infinite where no score is reached."""
    ordered_N, order_N = scores_N.double().sort()
    reached_N = weights_N.double()[order_N].cumsum(0)
    total = reached_N[-1] if len(reached_N) else reached_N.sum()
    wanted_B = coverage * (total + weights_B.double()) * (1 - _ROUNDING)
    values = torch.cat([ordered_N, ordered_N.new_tensor([math.inf])])
    return values[torch.searchsorted(reached_N, wanted_B)]


def _fraction(share: float) -> Fraction:
    """Return the share that was meant: ⌈(n + 1) c⌉ must not be one too high because 0.55 · 100 exceeds 55 in floats."""
    return Fraction(float(share)).limit_denominator(_DENOMINATOR)
