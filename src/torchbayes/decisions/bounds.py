r"""How far the losses of n held-out rows bound the risk of new ones: p-values and conformal risk control.

With losses in [0, 1], of mean R̂, and H: the risk is above α, each of these is at most δ with probability at most δ
under H (Bates et al. 2021; Angelopoulos et al. 2021, "Learn then test"):

    losses 0 or 1       P(Bin(n, α) ≤ n R̂)
    others              min(exp(−n h(min(R̂, α), α)), e P(Bin(n, α) ≤ ⌈n R̂⌉)),   Hoeffding and Bentkus
                        h(a, b) = a log(a/b) + (1 − a) log((1 − a)/(1 − b))

Conformal risk control (Angelopoulos et al. 2022): of losses L(λ) ≤ 1 that rise with λ, the largest λ̂ with

    (Σ_i L_i(λ̂) + 1) / (n + 1) ≤ α    has    E L_{n+1}(λ̂) ≤ α.
"""

from __future__ import annotations

import math

import numpy as np


def p_values(sums_T: np.ndarray, rows_T: np.ndarray, limit: float, *, binary: bool) -> np.ndarray:
    """Return p-values of "the risk is above the limit", from sums of losses in [0, 1] over so many rows."""
    from scipy.stats import binom

    if binary:
        return binom.cdf(np.round(sums_T), rows_T, limit)
    risks_T = np.minimum(sums_T / np.maximum(rows_T, 1), limit)
    bentkus_T = math.e * binom.cdf(np.ceil(sums_T - _ROUNDING * rows_T), rows_T, limit)
    return np.minimum(np.minimum(np.exp(-rows_T * _divergence(risks_T, limit)), bentkus_T), 1.0)


_ROUNDING = 1e-12  # of a mean of losses


def _divergence(risks_T: np.ndarray, limit: float) -> np.ndarray:
    """Return h(a, b) of two probabilities, in nats."""
    from scipy.special import rel_entr

    return rel_entr(risks_T, limit) + rel_entr(1 - risks_T, 1 - limit)


def fewest_rows(limit: float, confidence: float | None) -> int:
    """Return how many rows without a loss are needed: (1 − α)ⁿ ≤ δ, or 1/(n + 1) ≤ α where there is no confidence."""
    if confidence is None:
        return max(1, math.ceil(1 / limit - 1e-9) - 1)
    return max(1, math.ceil(math.log1p(-confidence) / math.log1p(-limit) - 1e-9))
