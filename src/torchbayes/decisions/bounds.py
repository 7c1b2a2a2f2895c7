r"""How far the losses of n held-out rows bound the risk of new ones: p-values, and how many rows are needed.

With losses in [0, 1] and the hypothesis that the risk is above α, each of these is at most δ with probability at most δ
where it is true:

    losses 0 or 1       P(Bin(n, α) ≤ n R̂), R̂ their mean
    others              1 / max_i Π_{j ≤ i} (1 − ν_j (L_j − α)),    the wealth of bets against it, row by row

with ν_j = min(1, √(2 log(1/δ) / (n σ̂²_{j−1}))), σ̂²_i = (¼ + Σ_{j ≤ i} (L_j − μ̂_j)²)/(i + 1) and
μ̂_i = (½ + Σ_{j ≤ i} L_j)/(i + 1) (Waudby-Smith and Ramdas 2024, whose bets learn how little losses vary; Bates et al.
2021 take them for risks). Conformal risk control (Angelopoulos et al. 2022): of losses L(λ) ≤ 1 that rise with λ, the
largest λ̂ with

    (Σ_i L_i(λ̂) + 1) / (n + 1) ≤ α    has    E L_{n+1}(λ̂) ≤ α.
"""

from __future__ import annotations

import math

import numpy as np

_MOST = 2**24  # rows that are tried


def error_p_value(errors: float, rows: int, limit: float) -> float:
    """Return the p-value of "the error rate is above the limit", of so many errors: an exact binomial test."""
    from scipy.stats import binom

    return float(binom.cdf(round(errors), rows, limit))


def loss_p_value(losses_N: np.ndarray, limit: float, confidence: float) -> float:
    """Return the p-value of "the risk is above the limit", of losses in [0, 1] in an order that chance has made."""
    rows = len(losses_N)
    counts_N = np.arange(1, rows + 1) + 1.0
    means_N = (0.5 + losses_N.cumsum()) / counts_N
    variances_N = (0.25 + ((losses_N - means_N) ** 2).cumsum()) / counts_N
    before_N = np.append(0.25, variances_N[:-1])
    bets_N = np.minimum(1.0, np.sqrt(-2 * math.log1p(-confidence) / (rows * before_N)))
    return min(1.0, math.exp(-float(np.log1p(-bets_N * (losses_N - limit)).cumsum().max())))


def fewest_rows(limit: float, confidence: float | None, *, binary: bool = True) -> int:
    """Return how many rows without a loss are needed; 1/(n + 1) ≤ α where there is no confidence."""
    if confidence is None:
        return max(1, math.ceil(1 / limit - 1e-9) - 1)
    rows = max(1, math.ceil(math.log1p(-confidence) / math.log1p(-limit) - 1e-9))  # (1 − α)ⁿ ≤ δ
    if binary:
        return rows
    low, high = rows - 1, rows
    while loss_p_value(np.zeros(high), limit, confidence) > 1 - confidence and high < _MOST:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        enough = loss_p_value(np.zeros(middle), limit, confidence) <= 1 - confidence
        low, high = (low, middle) if enough else (middle, high)
    return high
