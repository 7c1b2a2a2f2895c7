"""Ranks against simulated coverage, the Beta distribution, and counts in exact arithmetic."""

import math
from decimal import Decimal

import pytest
import torch
from scipy.stats import beta

from torchbayes.conformal.ranks import Threshold, fewest_rows, rank_of, threshold, weighted_thresholds

SOURCE = torch.Generator().manual_seed(0)


def test_a_rank_is_that_of_exact_arithmetic():
    for rows in range(1, 200):
        for text in ("0.05", "0.1", "0.29", "0.5", "0.55", "0.57", "0.7", "0.8", "0.9", "0.95", "0.99"):
            exact = (Decimal(text) * (rows + 1)).to_integral_value(rounding="ROUND_CEILING")
            assert rank_of(rows, float(text)) == exact
    assert math.ceil(0.55 * 100) == 56  # what floats say
    assert rank_of(99, 0.55) == 55
    assert rank_of(9, 1 - 0.7) == rank_of(9, 0.1 + 0.2) == 3


@pytest.mark.parametrize(("coverage", "rows"), [(0.8, 4), (0.9, 9), (0.95, 19), (0.99, 99), (0.5, 1), (0.05, 1)])
def test_the_fewest_rows_with_a_finite_threshold(coverage, rows):
    assert fewest_rows(coverage) == rows
    assert math.isfinite(threshold(torch.rand(rows, generator=SOURCE), coverage).value)
    if rows > 1:
        assert threshold(torch.rand(rows - 1, generator=SOURCE), coverage).value == math.inf


@pytest.mark.parametrize(("rows", "coverage", "exact"), [(19, 0.9, 18 / 20), (20, 0.9, 19 / 21), (50, 0.9, 46 / 51)])
def test_coverage_is_the_rank_over_one_more_than_the_rows(rows, coverage, exact):
    sets = 60_000
    scores = torch.rand(sets, rows + 1, generator=SOURCE, dtype=torch.float64)
    rank = rank_of(rows, coverage)
    covered = scores[:, -1] <= scores[:, :-1].kthvalue(rank, dim=1).values
    assert rank / (rows + 1) == exact
    assert float(covered.double().mean()) == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / sets))


def test_the_coverage_of_one_calibration_set_is_beta():
    rows, sets, rank = 99, 50_000, 90
    assert rank_of(rows, 0.9) == rank
    # The coverage that a threshold q of uniform scores gives is q itself.
    coverage = torch.rand(sets, rows, generator=SOURCE, dtype=torch.float64).kthvalue(rank, dim=1).values
    law = beta(rank, rows + 1 - rank)
    actual = Threshold(0.9, rank, rows)
    assert actual.expected == pytest.approx(law.mean())
    assert actual.spread == pytest.approx(law.std())
    assert float(coverage.std()) == pytest.approx(law.std(), rel=0.02)
    for level in (0.85, 0.9, 0.95):
        share = law.cdf(level)
        assert float((coverage < level).double().mean()) == pytest.approx(share, abs=4 * math.sqrt(share / sets))
    assert law.cdf(0.9) == pytest.approx(0.46, abs=0.01)


@pytest.mark.parametrize("rows", [22, 44, 45, 99, 1000])
@pytest.mark.parametrize("coverage", [0.9, 0.95])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
def test_a_promise_takes_the_smallest_rank_whose_beta_law_keeps_it(rows, coverage, confidence):
    ranks = torch.arange(1, rows + 1).numpy()
    kept = ranks[beta.cdf(coverage, ranks, rows + 1 - ranks) <= 1 - confidence]
    assert rank_of(rows, coverage, confidence) == min(kept, default=rows + 1)


@pytest.mark.parametrize(("coverage", "confidence"), [(0.9, 0.9), (0.95, 0.5), (0.99, 0.99), (0.2, 0.5)])
def test_the_fewest_rows_for_a_promise(coverage, confidence):
    rows = fewest_rows(coverage, confidence)
    assert coverage**rows <= 1 - confidence + 1e-12
    assert rows == 1 or coverage ** (rows - 1) > 1 - confidence
    assert rank_of(rows, coverage, confidence) <= rows


def test_equal_weights_give_the_rank_without_weights():
    for rows in (1, 9, 10, 19, 20, 60):
        scores = torch.rand(rows, generator=SOURCE, dtype=torch.float64)
        for coverage in (0.1, 0.5, 0.55, 0.9, 0.95):
            actual = weighted_thresholds(scores, torch.full((rows,), 0.3), torch.tensor([0.3]), coverage=coverage)
            assert float(actual) == threshold(scores, coverage).value


def test_weights_against_a_loop_over_rows():
    scores, weights = torch.rand(30, generator=SOURCE).double(), torch.rand(30, generator=SOURCE).double()
    news = torch.tensor([0.0, 0.5, 3.0, 30.0]).double()
    actual = weighted_thresholds(scores, weights, news, coverage=0.8)
    for new, value in zip(news, actual, strict=True):
        reached = [float(s) for s in scores if weights[scores <= s].sum() >= 0.8 * (weights.sum() + new)]
        assert float(value) == min(reached, default=math.inf)
    assert actual[-1] == math.inf


def test_coverage_under_a_shift_of_the_inputs():
    # Rows x ~ U(0, 1) have noise of scale x; new rows have density 2x. The score is |noise|.
    sets, rows, coverage = 4000, 100, 0.9
    x = torch.rand(sets, rows, generator=SOURCE, dtype=torch.float64)
    new = torch.rand(sets, generator=SOURCE, dtype=torch.float64).sqrt()
    scores = (x * torch.randn(sets, rows, generator=SOURCE, dtype=torch.float64)).abs()
    score = (new * torch.randn(sets, generator=SOURCE, dtype=torch.float64)).abs()
    values = torch.cat([
        weighted_thresholds(*each, coverage=coverage) for each in zip(scores, x, new.unsqueeze(1), strict=True)
    ])
    error = math.sqrt(coverage * (1 - coverage) / sets)
    weighted = float((score <= values).double().mean())
    assert coverage - 3 * error <= weighted <= coverage + 0.015 + 3 * error
    plain = float((score <= scores.kthvalue(rank_of(rows, coverage), dim=1).values).double().mean())
    assert plain < coverage - 3 * error
