r"""Rules that adapt the threshold of scores online, so that the share of errors tends to α whatever the sequence.

With score s_t, threshold q_t and error err_t = [s_t > q_t]:

    ACI      q_t = Quantile_{1 − α_t}(s_1 … s_{t−1}),      α_{t+1} = α_t + γ (α − err_t)
    DtACI    α_t = Σ_k p_k α_t^k of several ACI of steps γ_k, p_k by how well each α^k predicted β_t
    PID      q_{t+1} = p_{t+1} + r_t(Σ_{i ≤ t} (err_i − α)) + g_{t+1},      p_{t+1} = p_t + η (err_t − α)

α_t is not clipped to [0, 1]: the threshold is +∞ where α_t ≤ 0 and −∞ where α_t ≥ 1, and on that the guarantee rests,

    |(1/T) Σ_t err_t − α| ≤ (max(α_1, 1 − α_1) + γ) / (T γ)                                        (ACI, one step ahead)

r_t(x) = K tan(x log(t + 1) / (C (t + 1))), ±∞ beyond ±π/2; g is an optional forecast of the score. ACI is of Gibbs and
Candès (2021), DtACI of Gibbs and Candès (2024), PID of Angelopoulos, Candès and Tibshirani (2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from torchbayes.checks import check_function, optional
from torchbayes.settings import NOT_NEGATIVE, Checked

_FIRST = 1.0  # the threshold before there is a score: the interval that was predicted


def _none() -> np.ndarray:
    return np.zeros(0)


@dataclass(frozen=True, eq=False)
class RuleState:
    """What a rule knows of one horizon.

    Attributes:
        threshold: q, of the next interval; +∞ for all numbers, −∞ for none.
        scores_N: the last scores, the oldest first.
        levels_K: α of ACI, one for each step size; p of PID.
        weights_K: of the levels of DtACI; empty otherwise.
        excess: Σ (err − α), of PID.
        largest: the largest finite score so far.
        count: how many scores there were.
    """

    threshold: float = _FIRST
    scores_N: np.ndarray = field(default_factory=_none)
    levels_K: np.ndarray = field(default_factory=_none)
    weights_K: np.ndarray = field(default_factory=_none)
    excess: float = 0.0
    largest: float = 0.0
    count: int = 0

    def having(self, score: float, window: int) -> RuleState:
        """Return the state with one more score, of which the last `window` are kept."""
        largest = max(self.largest, score) if math.isfinite(score) else self.largest
        scores_N = np.append(self.scores_N, score)[-window:]
        return replace(self, scores_N=scores_N, largest=largest, count=self.count + 1)


@runtime_checkable
class Rule(Protocol):
    """How a threshold adapts; a rule of your own has these two methods."""

    def begin(self, alpha: float) -> RuleState:
        """Return the state before the first score; `alpha` is the share of errors that is wanted."""
        ...

    def update(self, state: RuleState, score: float, threshold: float, *, alpha: float) -> RuleState:
        """Return the state after a score, whose interval had this threshold."""
        ...


@dataclass(frozen=True)
class DtACI(Checked):
    """ACI with several step sizes, weighted by how well each has predicted the level that was needed.

    The guarantee is that of ACI up to terms that vanish with the steps (Gibbs and Candès 2024).

    Attributes:
        gammas: step sizes γ.
        interval: how many steps back the weights should look, I. It sets σ = 1/(2I), and the rate η of the weights.
        window: how many of the last scores the quantiles are of.
    """

    gammas: tuple[float, ...] = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128)
    interval: int = 100
    window: int = 1000

    def begin(self, alpha: float) -> RuleState:
        """Return the state of no scores: every level is `alpha`, all weights are equal."""
        count = len(self.gammas)
        return RuleState(levels_K=np.full(count, alpha), weights_K=np.full(count, 1 / count))

    def update(self, state: RuleState, score: float, threshold: float, *, alpha: float) -> RuleState:
        """Return the state after a score: levels by their errors, weights by the pinball loss of each level."""
        beta, levels_K = level_needed(state.scores_N, score), state.levels_K
        losses_K = alpha * (beta - levels_K) - np.minimum(0.0, beta - levels_K)
        weights_K = state.weights_K * np.exp(-self.rate(alpha) * (losses_K - losses_K.min()))
        sigma = 1 / (2 * self.interval)
        weights_K = (1 - sigma) * weights_K / weights_K.sum() + sigma / len(weights_K)
        levels_K = levels_K + np.array(self.gammas) * (alpha - (beta < levels_K))
        after = state.having(score, self.window)
        threshold = quantile_of(after.scores_N, float(weights_K @ levels_K))
        return replace(after, threshold=threshold, levels_K=levels_K, weights_K=weights_K)

    def rate(self, alpha: float) -> float:
        """Return η, √(3/I) √((log(I K) + 2) / ((1 − α)² α³ + α² (1 − α)³))."""
        spread = (1 - alpha) ** 2 * alpha**3 + alpha**2 * (1 - alpha) ** 3
        return math.sqrt(3 / self.interval * (math.log(self.interval * len(self.gammas)) + 2) / spread)


@dataclass(frozen=True)
class ACI(Checked):
    """Adaptive conformal inference: the level of the quantile of past scores follows the errors.

    Attributes:
        gamma: step size γ; larger follows changes sooner, and varies more.
        window: how many of the last scores the quantile is of.
    """

    gamma: float = 0.02
    window: int = 1000

    def begin(self, alpha: float) -> RuleState:
        """Return the state of no scores: the level is `alpha`."""
        return RuleState(levels_K=np.array([alpha]))

    def update(self, state: RuleState, score: float, threshold: float, *, alpha: float) -> RuleState:
        """Return the state after a score: α + γ (α − err)."""
        levels_K = state.levels_K + self.gamma * (alpha - (score > threshold))
        after = state.having(score, self.window)
        return replace(after, threshold=quantile_of(after.scores_N, float(levels_K[0])), levels_K=levels_K)


@dataclass(frozen=True)
class PID(Checked):
    """Conformal PID control: the threshold itself follows the errors, their sum, and a forecast of the score.

    For scores in [0, b] the first term alone gives |mean err − α| ≤ (b + η)/(η T).

    Attributes:
        lr: step of the threshold, η, as a share of the range of recent scores.
        integrate: C of the second term, which grows without bound as errors pile up; smaller acts sooner, and makes
            wider intervals. 0 leaves the term out.
        window: how many of the last scores are recent.
        scorecaster: a function of the last scores (n,) that returns a forecast of the next one, g; None for none.
    """

    lr: float = 0.05
    integrate: float = field(default=5.0, metadata=NOT_NEGATIVE)
    window: int = 100
    scorecaster: Callable[[np.ndarray], float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        optional(check_function, "a function of the last scores", scorecaster=self.scorecaster)

    def begin(self, alpha: float) -> RuleState:
        """Return the state of no scores: the threshold is that of the predicted interval."""
        return RuleState(levels_K=np.array([_FIRST]))

    def update(self, state: RuleState, score: float, threshold: float, *, alpha: float) -> RuleState:
        """Return the state after a score: the three terms of the next threshold."""
        after, error = state.having(score, self.window), float(score > threshold) - alpha
        recent_N = after.scores_N[np.isfinite(after.scores_N)]
        spread = float(np.ptp(recent_N)) if len(recent_N) > 1 else 0.0
        levels_K, excess = state.levels_K + self.lr * (spread or _FIRST) * error, state.excess + error
        ahead = 0.0 if self.scorecaster is None else float(self.scorecaster(recent_N))
        threshold = float(levels_K[0]) + self._integral(after, excess) + ahead
        return replace(after, threshold=threshold, levels_K=levels_K, excess=excess)

    def _integral(self, state: RuleState, excess: float) -> float:
        if not self.integrate or not state.largest:
            return 0.0
        count = state.count + 1
        angle = excess * math.log(count) / (self.integrate * count)
        if abs(angle) >= math.pi / 2:
            return math.copysign(math.inf, angle)
        return state.largest * math.tan(angle)


def quantile_of(scores_N: np.ndarray, level: float) -> float:
    """Return the threshold that a share `level` of scores should exceed.

    It is the k-th smallest of n, k = ⌈(n + 1)(1 − level)⌉ but at most n; +∞ where `level` is 0 or less, −∞ where it is
    1 or more; 1, the interval that was predicted, where there are no scores.
    """
    if level <= 0 or level >= 1:
        return math.inf if level <= 0 else -math.inf
    if not len(scores_N):
        return _FIRST
    rank = min(max(math.ceil((len(scores_N) + 1) * (1 - level) - 1e-9), 1), len(scores_N))
    return float(np.partition(scores_N, rank - 1)[rank - 1])


def level_needed(scores_N: np.ndarray, score: float) -> float:
    """Return β, the supremum of the levels whose threshold holds a score.

    That is (m + 1)/(n + 1), with m of the n scores at least as large; 0 where none is.
    """
    if not len(scores_N):
        return 1.0 if score <= _FIRST else 0.0
    return float((scores_N >= score).sum() + 1) / (len(scores_N) + 1) if score <= scores_N.max() else 0.0


RULES: dict[str, Any] = {kind.__name__: kind for kind in (ACI, DtACI, PID)}
