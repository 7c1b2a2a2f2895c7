"""The rule behind verdicts, against scipy's t test, its own error rate and a table of combinations."""

import math

import numpy as np
import pytest
from scipy import stats

from torchbayes_experiments.verdicts import Part, Verdict, below, interval, mean_and_error, two_standard_errors


def part(outcome, precondition=False):
    return Part("a statement", outcome, "numbers", precondition)


def test_interval_and_error_agree_with_scipy():
    values = np.random.default_rng(0).normal(2.0, 0.5, 7)
    mean, low, high = interval(values)
    oracle = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert mean == pytest.approx(values.mean())
    assert (low, high) == pytest.approx((oracle.low, oracle.high), rel=1e-12)
    assert mean_and_error(values) == pytest.approx((values.mean(), stats.sem(values)), rel=1e-12)


def test_one_repeat_has_no_spread():
    assert interval([3.0]) == (3.0, -math.inf, math.inf)
    assert mean_and_error([3.0]) == 3.0
    assert below("x", [-100.0]).outcome == "inconclusive"


@pytest.mark.parametrize(
    ("values", "bound", "outcome"),
    [
        ([-1.0, -1.1, -0.9], 0.0, "holds"),
        ([1.0, 1.1, 0.9], 0.0, "does not hold"),
        ([-1.0, 1.1, 0.2], 0.0, "inconclusive"),
        ([0.05, 0.06, 0.055], 0.1, "holds"),
        ([0.05, 0.06, 0.055], 0.02, "does not hold"),
        ([-0.1, -0.001], 0.0, "inconclusive"),  # both below, but the interval reaches beyond zero
    ],
)
def test_below_reaches_every_outcome(values, bound, outcome):
    actual = below("a is less than b", values, bound)
    assert actual.outcome == outcome
    assert f"in {sum(v < bound for v in values)} of {len(values)} repeats" in actual.evidence
    assert f"mean {np.mean(values):.4g}".replace("-", "−") in actual.evidence


def test_a_difference_of_zero_is_called_either_way_five_times_in_a_hundred():
    rng = np.random.default_rng(1)
    outcomes = [below("x", rng.normal(size=4)).outcome for _ in range(1500)]
    spread = 4 * math.sqrt(0.025 * 0.975 / 1500)
    for outcome in ("holds", "does not hold"):
        assert abs(outcomes.count(outcome) / 1500 - 0.025) < spread


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_repeats_that_are_no_numbers_are_refused(values):
    with pytest.raises(ValueError, match="must be finite and at least one"):
        below("x", values)


@pytest.mark.parametrize(
    ("parts", "outcome"),
    [
        ([part("holds"), part("holds")], "holds"),
        ([part("holds"), part("does not hold"), part("inconclusive")], "does not hold"),
        ([part("holds"), part("inconclusive")], "inconclusive"),
        ([part("holds", True), part("holds")], "holds"),
        ([part("does not hold", True), part("holds")], "inconclusive"),
        ([part("inconclusive", True), part("does not hold")], "inconclusive"),
        ([part("holds", True), part("does not hold")], "does not hold"),
    ],
)
def test_parts_combine(parts, outcome):
    verdict = Verdict.of(parts)
    assert verdict.outcome == outcome
    held = sum(p.outcome == "holds" for p in parts)
    start = f"All {held} parts hold." if held == len(parts) else f"{held} of {len(parts)} parts hold."
    assert verdict.reason.startswith(start)


def test_a_long_list_of_open_parts_is_cut():
    reason = Verdict.of([part("holds")] + [part("inconclusive")] * 5).reason
    assert reason.startswith("1 of 6 parts hold.")
    assert reason.count("a statement (inconclusive)") == 3
    assert reason.endswith("; and 2 more.")


def test_no_part_no_verdict():
    with pytest.raises(ValueError, match="at least one part"):
        Verdict.of([])


def test_error_bars_are_two_standard_errors_of_each_column():
    values = np.array([[1.0, 4.0], [2.0, 4.0], [6.0, 7.0]])
    np.testing.assert_allclose(two_standard_errors(values), 2 * stats.sem(values, axis=0), rtol=1e-12)
    assert two_standard_errors(values[:1]).tolist() == [0.0, 0.0]
