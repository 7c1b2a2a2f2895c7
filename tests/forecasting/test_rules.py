"""Adaptive intervals: their guarantees on hard sequences, and each rule against a plain reference."""

from __future__ import annotations

import json
import math
from typing import Any, cast

import numpy as np
import pytest

from torchbayes.forecasting import ACI, PID, AdaptiveIntervals, DtACI, QuantileForecast
from torchbayes.forecasting.rules import level_needed, quantile_of

ALPHA = 0.1


def shifted(count: int, seed: int = 0) -> np.ndarray:
    """Return scores whose scale jumps, falls and bursts."""
    rng = np.random.default_rng(seed)
    scale = np.where(np.arange(count) < count // 2, 1.0, 4.0) * np.where(np.arange(count) % 300 < 30, 5.0, 1.0)
    return np.abs(rng.normal(size=count)) * scale


def errors_of(rule, scores, alpha=ALPHA):
    """Return the errors and thresholds of a rule that knows each score at once."""
    state, errors, thresholds = rule.begin(alpha), [], []
    for score in scores:
        thresholds.append(state.threshold)
        errors.append(score > state.threshold)
        state = rule.update(state, float(score), state.threshold, alpha=alpha)
    return np.array(errors), np.array(thresholds)


@pytest.mark.parametrize("gamma", [0.005, 0.02, 0.2])
@pytest.mark.parametrize("kind", ["shifted", "adversarial"])
def test_the_share_of_errors_of_aci_keeps_its_bound(gamma, kind):
    rule, count = ACI(gamma=gamma, window=200), 1500
    if kind == "shifted":
        errors, _ = errors_of(rule, shifted(count))
    else:  # an opponent who sees the threshold, and is just outside whenever that can be
        state, errors = rule.begin(ALPHA), []
        for number in range(count):
            q = state.threshold
            score = (0.0 if math.isinf(q) else q + 1.0) if number % 7 else 0.1
            errors.append(score > q)
            state = rule.update(state, score, q, alpha=ALPHA)
    bound = (max(ALPHA, 1 - ALPHA) + gamma) / (gamma * count)
    assert abs(np.mean(errors) - ALPHA) <= bound


def test_aci_is_the_plain_recursion():
    scores, gamma = shifted(400, seed=1), 0.05
    level, expected = ALPHA, []
    for t, score in enumerate(scores):
        if level <= 0:
            q = np.inf
        elif level >= 1:
            q = -np.inf
        elif t == 0:
            q = 1.0
        else:
            q = np.sort(scores[:t])[min(int(np.ceil((t + 1) * (1 - level) - 1e-9)), t) - 1]
        expected.append(q)
        level += gamma * (ALPHA - (score > q))
    np.testing.assert_array_equal(errors_of(ACI(gamma=gamma), scores)[1], expected)


def test_dtaci_is_the_plain_algorithm():
    scores, rule = shifted(300, seed=2), DtACI(gammas=(0.01, 0.1), interval=50)
    levels, weights = np.full(2, ALPHA), np.full(2, 0.5)
    spread = (1 - ALPHA) ** 2 * ALPHA**3 + ALPHA**2 * (1 - ALPHA) ** 3
    eta, sigma = np.sqrt(3 / 50) * np.sqrt((np.log(50 * 2) + 2) / spread), 1 / 100
    thresholds = errors_of(rule, scores)[1]
    for t, score in enumerate(scores):
        if t:
            assert thresholds[t] == quantile_of(scores[:t], float(weights @ levels))
        beta = level_needed(scores[:t], score)
        off = beta - levels
        loss = np.where(off >= 0, ALPHA * off, (ALPHA - 1) * off)
        weights = weights * np.exp(-eta * loss)
        weights /= weights.sum()
        weights = (1 - sigma) * weights + sigma / 2
        levels = levels + np.array([0.01, 0.1]) * (ALPHA - (beta < levels))


def test_dtaci_of_one_step_is_aci_where_it_errs_as_the_quantile_does():
    scores = shifted(500, seed=3)
    one, several = errors_of(ACI(gamma=0.03), scores)[1], errors_of(DtACI(gammas=(0.03,)), scores)[1]
    np.testing.assert_allclose(several, one)


def test_the_tracker_of_pid_keeps_its_bound():
    scores, lr = shifted(2000), 0.1
    rule = PID(lr=lr, integrate=0, window=5000)
    errors, _ = errors_of(rule, scores)
    step = lr * np.ptp(scores)  # the largest step; the smallest is in the denominator, after the first shift
    steps = [lr * (np.ptp(scores[: t + 1]) or 1.0) for t in range(10, len(scores))]
    assert abs(errors.mean() - ALPHA) <= (scores.max() + step) / (min(steps) * len(scores))
    assert abs(errors.mean() - ALPHA) < 0.01


def test_pid_is_its_three_terms():
    scores, rule = shifted(200, seed=4), PID(lr=0.2, integrate=1.5, window=20, scorecaster=np.mean)
    tracked, excess, q = 1.0, 0.0, 1.0
    thresholds = errors_of(rule, scores)[1]
    for t, score in enumerate(scores):
        assert thresholds[t] == pytest.approx(q)
        error = float(score > q) - ALPHA
        recent = scores[max(0, t - 19) : t + 1]
        tracked += 0.2 * (np.ptp(recent) if t else 1.0) * error
        excess += error
        angle = excess * np.log(t + 2) / (1.5 * (t + 2))
        integral = scores[: t + 1].max() * np.tan(angle) if abs(angle) < np.pi / 2 else np.sign(angle) * np.inf
        q = tracked + integral + recent.mean()


def test_the_level_that_is_needed_is_where_the_threshold_just_holds():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=19)
    for score in rng.normal(size=50):
        level = level_needed(scores, score)
        if level > 0:
            assert score <= quantile_of(scores, level - 1e-6)
        if level < 1:
            assert score > quantile_of(scores, level + 1e-6)


def flat(horizon: int) -> QuantileForecast:
    return QuantileForecast(np.array([0.05, 0.5, 0.95]), np.tile([-1.0, 0.0, 1.0], (horizon, 1)))


@pytest.mark.parametrize("rule", [ACI(gamma=0.05), DtACI(), PID()])
def test_each_step_learns_of_its_own_errors_when_they_are_known(rule):
    horizon, values = 4, np.random.default_rng(5).normal(size=160) * np.linspace(1, 3, 160)
    online, states = AdaptiveIntervals(horizon, rule=rule), [rule.begin(0.1) for _ in range(horizon)]
    issued = []
    for t, value in enumerate(values):
        thresholds = [state.threshold for state in states]
        low, high = online.intervals(flat(horizon))
        np.testing.assert_allclose(high, np.maximum(thresholds, 0.0))
        np.testing.assert_allclose(low, -high)
        issued.append(thresholds)
        online.observe(value)
        for h in range(min(horizon, t + 1)):  # the forecast of h + 1 steps that was made h steps ago
            states[h] = rule.update(states[h], abs(value), issued[t - h][h], alpha=1 - 0.9)


def test_the_share_of_errors_tends_to_what_is_wanted_at_every_step():
    gamma, horizon, values = 0.05, 3, shifted(1200, seed=6)
    online, inside = AdaptiveIntervals(horizon, rule=ACI(gamma=gamma, window=300)), []
    for t, value in enumerate(values):
        low, high = online.intervals(flat(horizon))
        if t + horizon <= len(values):
            inside.append((low <= values[t : t + horizon]) & (values[t : t + horizon] <= high))
        online.observe(value)
    errors = 1 - np.mean(inside, axis=0)
    bound = (0.9 + gamma * np.arange(1, horizon + 1)) / (gamma * len(inside))  # α may drift for h steps
    assert (np.abs(errors - 0.1) <= bound).all()


@pytest.mark.parametrize("rule", [ACI(), ACI(gamma=0.5), DtACI(gammas=(0.01, 0.05)), PID(lr=0.2)])
def test_intervals_go_on_from_a_file(rule):
    values = np.random.default_rng(7).normal(size=40)
    online = AdaptiveIntervals(3, coverage=0.8, rule=rule)
    for value in values:
        online.intervals(flat(3))
        online.observe(value)
    assert ("inf" in json.dumps(online.state(), allow_nan=False)) == (rule == ACI(gamma=0.5))
    again = AdaptiveIntervals.from_state(json.loads(json.dumps(online.state())))
    for value in values:
        np.testing.assert_array_equal(online.intervals(flat(3)), again.intervals(flat(3)))
        online.observe(value)
        again.observe(value)


def test_wrong_arguments_are_named():
    online, kind, array = AdaptiveIntervals(3), cast(Any, ACI), cast(Any, np.zeros(3))
    with pytest.raises(ValueError, match="`horizon` must be a whole number"):
        AdaptiveIntervals(0)
    with pytest.raises(TypeError, match="`rule` must be ACI"):
        AdaptiveIntervals(3, rule=kind)
    with pytest.raises(TypeError, match="`forecast` must be a QuantileForecast"):
        online.intervals(array)
    with pytest.raises(ValueError, match="3 steps of `horizon`; got 2"):
        online.intervals(flat(2))
    with pytest.raises(ValueError, match="`value` must be a finite number"):
        online.observe(float("nan"))
    with pytest.raises(ValueError, match=r"known at levels from 0\.05 to 0\.95"):
        AdaptiveIntervals(3, coverage=0.99).intervals(flat(3))
    with pytest.raises(ValueError, match="`gamma` must be"):
        ACI(gamma=-1)
    with pytest.raises(ValueError, match="`state` must be"):
        AdaptiveIntervals.from_state({"horizon": 3})


def test_aci_beside_mapie():
    """MAPIE clips α to [0, 1]; where it stays inside, the levels are the same."""
    pytest.importorskip("mapie")
    from mapie.regression import TimeSeriesRegressor
    from sklearn.linear_model import LinearRegression

    rng = np.random.default_rng(8)
    X, y = rng.normal(size=(300, 1)), rng.normal(size=300)
    other: Any = TimeSeriesRegressor(LinearRegression(), method="aci", cv=3).fit(X[:200], y[:200])
    rule, state = ACI(gamma=0.01), ACI().begin(ALPHA)
    for t in range(200, 300):
        _, ends = other.predict(X[t : t + 1], confidence_level=1 - ALPHA, optimize_beta=False)
        outside = not ends[0, 0, 0] <= y[t] <= ends[0, 1, 0]
        other.adapt_conformal_inference(X[t : t + 1], y[t : t + 1], gamma=0.01, confidence_level=1 - ALPHA)
        state = rule.update(state, float(outside), 0.5, alpha=ALPHA)
        assert 0 < state.levels_K[0] < 1
        assert other.current_alpha[ALPHA] == pytest.approx(state.levels_K[0])
