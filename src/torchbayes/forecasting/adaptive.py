r"""Intervals that adapt online: a state for each step h of the forecast, updated when its error is known.

The score of a value y under a forecast with median m and central interval [l, u] is how many half widths it is off,

    s = (y − m)/(u − m) above the median,      (m − y)/(m − l) below,

and the adapted interval [m − q (m − l), m + q (u − m)] with the threshold q of a rule: q = 1 is the interval that was
predicted. The error of the h-step forecast that was made at t is known at t + h, and updates the state of h then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Self

import numpy as np

from torchbayes.checks import check_counts, check_kind, check_numbers, seen
from torchbayes.conformal.ranks import check_coverage
from torchbayes.display import shown_by
from torchbayes.forecasting.forecast import QuantileForecast
from torchbayes.forecasting.rules import PID, RULES, Rule, RuleState
from torchbayes.native.process import undisturbed_methods

_LEAST = 1e-9  # of half widths, as a share of the size of the numbers: they are divided by


@shown_by("horizon", "coverage", "rule")
@undisturbed_methods
class AdaptiveIntervals:
    """Intervals around forecasts whose share of errors tends to 1 − coverage, step by step, whatever the series does.

    Call `intervals` for each forecast as it is made, and `observe` for each value as it becomes known.

    Args:
        horizon: H, the steps of a forecast.
        coverage: share of the values that intervals should hold, in (0, 1).
        rule: how thresholds adapt, `ACI()`, `DtACI()`, `PID()`, or one of your own.
    """

    def __init__(self, horizon: int, *, coverage: float = 0.9, rule: Rule | None = None) -> None:
        check_counts(horizon=horizon)
        check_coverage(coverage=coverage)
        rule = PID() if rule is None else rule
        if isinstance(rule, type) or not isinstance(rule, Rule):
            raise TypeError(f"`rule` must be ACI(), DtACI(), PID(), or an object with their methods; got {seen(rule)}.")
        self.horizon, self.coverage, self.rule = horizon, coverage, rule
        self.states = [rule.begin(1 - coverage) for _ in range(horizon)]
        self._pending: list[tuple[int, np.ndarray, np.ndarray]] = []  # values since; ends of half widths; thresholds

    def intervals(self, forecast: QuantileForecast) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of the intervals of a forecast of the values that come next, (H,) each.

        An end is infinite where the rule asks for all numbers, and both are the median where it asks for none.

        Raises:
            TypeError: if it is no forecast.
            ValueError: if it has not H steps, or no quantiles as far out as the coverage.
        """
        check_kind(QuantileForecast, "a QuantileForecast, as `forecast` returns it", forecast=forecast)
        if len(forecast) != self.horizon:
            raise ValueError(f"`forecast` must have the {self.horizon} steps of `horizon`; got {len(forecast)}.")
        low, high = forecast.interval(self.coverage)
        median = forecast.median
        least = _LEAST * (1 + np.abs(median))
        ends_3H = np.stack([median, np.maximum(median - low, least), np.maximum(high - median, least)])
        thresholds_H = np.array([state.threshold for state in self.states])
        self._pending = [each for each in self._pending if each[0] < self.horizon]
        self._pending.append((0, ends_3H, thresholds_H))
        times_H = np.maximum(thresholds_H, 0.0)
        return median - times_H * ends_3H[1], median + times_H * ends_3H[2]

    def observe(self, value: float) -> None:
        """Take in the next value of the series, which ends the wait of one step of each forecast of the last H times.

        Raises:
            ValueError: if it is no finite number.
        """
        check_numbers(value=value)
        for place, (age, (median, below, above), thresholds_H) in enumerate(self._pending):
            self._pending[place] = (age + 1, np.stack([median, below, above]), thresholds_H)
            if age >= self.horizon:
                continue
            off = float(value) - median[age]
            score = off / above[age] if off >= 0 else -off / below[age]
            self.states[age] = self.rule.update(
                self.states[age], float(score), thresholds_H[age], alpha=1 - self.coverage
            )

    def state(self) -> dict[str, Any]:
        """Return all that the intervals know, as JSON holds it, but for a rule of your own."""
        rule = {"name": type(self.rule).__name__, **{n: v for n, v in vars(self.rule).items() if not callable(v)}}
        return {
            "horizon": self.horizon,
            "coverage": self.coverage,
            "rule": {name: list(value) if isinstance(value, tuple) else value for name, value in rule.items()},
            "states": [_plain(asdict(state)) for state in self.states],
            "pending": [_plain({"age": a, "ends": e, "thresholds": t}) for a, e, t in self._pending],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], rule: Rule | None = None) -> Self:
        """Return intervals that go on from what `state` returned.

        Args:
            state: that mapping.
            rule: needed if it is one of your own, or PID with a scorecaster.

        Raises:
            ValueError: if the mapping is none of `state`.
        """
        try:
            given = {n: tuple(v) if isinstance(v, list) else v for n, v in state["rule"].items() if n != "name"}
            rule = RULES[state["rule"]["name"]](**given) if rule is None else rule
            made = cls(state["horizon"], coverage=state["coverage"], rule=rule)
            made.states = [_state_of(each) for each in state["states"]]
            made._pending = [(p["age"], _array(p["ends"]), _array(p["thresholds"])) for p in state["pending"]]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"`state` must be what `state()` returned; it does not fit: {error}.") from error
        return made


def _plain(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return numbers as JSON holds them, which has none that are infinite: those are texts."""
    return {name: _texts(value.tolist() if isinstance(value, np.ndarray) else value) for name, value in numbers.items()}


def _texts(value: Any) -> Any:
    if isinstance(value, list):
        return [*map(_texts, value)]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _array(values: Any) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def _state_of(entries: Mapping[str, Any]) -> RuleState:
    values: Any = {name: _array(value) if isinstance(value, list) else value for name, value in entries.items()}
    return RuleState(**{**values, "threshold": float(values["threshold"])})
