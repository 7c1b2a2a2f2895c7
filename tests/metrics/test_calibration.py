import math
from itertools import pairwise
from statistics import NormalDist

import pytest
import torch

from tests.metrics.helpers import labels_drawn_from, random_classes, random_normal, random_probs
from torchbayes.metrics import (
    central_level,
    ece,
    ece_mass,
    interval_coverage,
    interval_score,
    quantile_calibration,
    reliability,
)


@pytest.mark.parametrize("bins", [1, 5, 15])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ece_equals_torchmetrics(bins: int, dtype: torch.dtype):
    from torchmetrics.functional.classification import multiclass_calibration_error

    probs_BK, targets_B = random_probs(300, 4).to(dtype), random_classes(300, 4)
    expected = multiclass_calibration_error(probs_BK, targets_B, num_classes=4, n_bins=bins, norm="l1")
    assert ece(probs_BK, targets_B, bins).item() == pytest.approx(expected.item(), abs=1e-6)


def test_reliability_of_equal_width_by_hand_with_edges_empty_bins_and_certainty():
    probs_BK = torch.tensor([[0.6, 0.4], [0.55, 0.45], [0.0, 1.0], [0.2, 0.8]])
    result = reliability(probs_BK, torch.tensor([0, 1, 1, 1]), bins=5)
    assert result.kind == "width"
    assert result.count.tolist() == [0, 0, 2, 1, 1]  # 0.6 and 0.8 are upper edges of their bins
    torch.testing.assert_close(result.confidence, torch.tensor([0, 0, 0.575, 0.8, 1.0]).double(), rtol=0, atol=1e-7)
    torch.testing.assert_close(result.accuracy, torch.tensor([0, 0, 0.5, 1.0, 1.0]).double(), rtol=0, atol=0)
    torch.testing.assert_close(result.edges, torch.linspace(0, 1, 6).double(), rtol=0, atol=1e-7)
    assert result.ece.item() == pytest.approx((2 * 0.075 + 0.2) / 4, abs=1e-7)


@pytest.mark.parametrize("num_rows", [60, 67])
def test_equal_mass_bins_are_the_chunks_of_the_sorted_rows(num_rows: int):
    probs_BK, targets_B = random_probs(num_rows, 3), random_classes(num_rows, 3)
    result = reliability(probs_BK, targets_B, bins=7, kind="mass")
    confidence_B, order_B = probs_BK.amax(-1).sort()
    correct_B = (probs_BK.argmax(-1) == targets_B).double()[order_B]
    chunks = torch.split(torch.stack([confidence_B, correct_B], -1), result.count.tolist())
    expected = torch.stack([chunk.mean(0) for chunk in chunks])
    torch.testing.assert_close(torch.stack([result.confidence, result.accuracy], -1), expected, rtol=1e-12, atol=1e-14)
    assert result.count.max() - result.count.min() <= 1
    starts = [0, *result.count.cumsum(0).tolist()[:-1], num_rows - 1]
    torch.testing.assert_close(result.edges, confidence_B[starts], rtol=0, atol=0)


def test_equal_mass_shares_ties_so_that_row_order_does_not_matter():
    probs_BK = 0.2 + 0.4 * torch.nn.functional.one_hot(random_classes(50, 3), 3).double()
    targets_B, order_B = labels_drawn_from(probs_BK), torch.randperm(50, generator=torch.Generator().manual_seed(5))
    expected = ((probs_BK.argmax(-1) == targets_B).double().mean() - 0.6).abs()
    torch.testing.assert_close(ece_mass(probs_BK, targets_B, 6), expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(ece_mass(probs_BK[order_B], targets_B[order_B], 6), expected, rtol=1e-12, atol=1e-14)


def test_equal_mass_with_fewer_rows_than_bins_is_the_mean_gap_of_single_rows():
    probs_BK, targets_B = random_probs(3, 3), random_classes(3, 3)
    gaps_B = ((probs_BK.argmax(-1) == targets_B).double() - probs_BK.amax(-1)).abs()
    result = reliability(probs_BK, targets_B, bins=20, kind="mass")
    assert result.count.sum() == 3
    assert torch.isfinite(result.accuracy).all()
    torch.testing.assert_close(result.ece, gaps_B.mean(), rtol=1e-12, atol=1e-14)


def test_equal_mass_differs_from_strict_inequalities_by_at_most_the_dropped_rows():
    probs_BK, targets_B, bins = random_probs(400, 5), random_classes(400, 5), 20
    confidence_B, correct_B = probs_BK.amax(-1), (probs_BK.argmax(-1) == targets_B).double()
    edges = torch.cat([confidence_B.sort().values[:: 400 // bins], confidence_B.max()[None]])
    strict = 0.0
    for low, high in pairwise(edges.tolist()):
        inside = (confidence_B > low) & (confidence_B < high)
        strict += float((correct_B[inside].mean() - confidence_B[inside].mean()).abs() * inside.double().mean())
    difference = abs(ece_mass(probs_BK, targets_B, bins).item() - strict)
    assert 0 < difference < (bins + 1) / 400


@pytest.mark.parametrize("kind", ["width", "mass"])
def test_calibrated_data_have_an_error_of_monte_carlo_size_and_overconfident_data_their_gap(kind):
    num_rows, bins = 20_000, 10
    probs_BK = random_probs(num_rows, 4)
    calibrated = reliability(probs_BK, labels_drawn_from(probs_BK), bins, kind=kind)
    # Each bin's gap is about N(0, v / n) with v <= 1/4, so its mean size is below sqrt(2 / pi) / (2 sqrt(n)).
    bound = (calibrated.count.double().sqrt().sum() * math.sqrt(2 / math.pi) / 2 / num_rows).item()
    assert calibrated.ece.item() < 2 * bound
    sharpened_BK = probs_BK.square() / probs_BK.square().sum(-1, keepdim=True)
    overconfident = reliability(sharpened_BK, labels_drawn_from(probs_BK), bins, kind=kind)
    gap = sharpened_BK.amax(-1).mean() - probs_BK.amax(-1).mean()
    assert overconfident.ece.item() == pytest.approx(gap.item(), abs=2 * bound)


def test_calibration_errors_return_the_error_of_their_own_bins():
    probs_BK, targets_B = random_probs(90, 3), random_classes(90, 3)
    assert torch.equal(ece(probs_BK, targets_B, 8), reliability(probs_BK, targets_B, 8, kind="width").ece)
    assert torch.equal(ece_mass(probs_BK, targets_B, 8), reliability(probs_BK, targets_B, 8, kind="mass").ece)
    assert ece(probs_BK, targets_B).dtype == ece_mass(probs_BK.float(), targets_B).dtype == torch.float64


def test_interval_coverage_counts_ends_and_open_intervals():
    lower_B, upper_B = torch.tensor([0.0, 0.0, -math.inf, 2.0]), torch.tensor([1.0, 1.0, 5.0, math.inf])
    assert interval_coverage(lower_B, upper_B, torch.tensor([1.0, 1.1, -9.0, 1.9])).item() == 0.5


def test_interval_score_is_best_at_the_quantiles():
    # Of a standard normal at a = 0.1 the best intervals score (4/a) φ(1.645) = 4.1254; ±1.5 and ±1.8 score more.
    levels = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    values = math.sqrt(2) * torch.erfinv(2 * levels - 1)
    z = NormalDist().inv_cdf(0.95)
    for half, exact in ((z, 40 * NormalDist().pdf(z)), (1.5, 4.174), (1.8, 4.172)):
        ends = torch.full_like(values, half)
        assert interval_score(-ends, ends, values, coverage=0.9).item() == pytest.approx(exact, abs=2e-3)
    one = torch.ones(1, dtype=torch.float64)
    assert interval_score(0 * one, one, 3 * one, coverage=0.5).item() == 1 + 4 * 2
    assert interval_score(0 * one, math.inf * one, 3 * one, coverage=0.5).item() == math.inf


def test_central_level_is_that_of_the_smallest_interval_around_the_target():
    normal = NormalDist(2.0, 3.0)
    levels = torch.tensor([0.0, 0.3, 0.9, 0.99]).double()
    for side in (-1, 1):  # the ends of central intervals, from which their level comes back
        ends = torch.tensor([normal.inv_cdf(0.5 + side * level / 2) for level in levels.tolist()])
        cdf = torch.tensor([normal.cdf(end) for end in ends.tolist()]).double()
        torch.testing.assert_close(central_level(cdf, cdf), levels, rtol=0, atol=1e-6)


def test_central_level_of_counts_by_hand():
    # a fair coin thrown twice: P = 1/4, 1/2, 1/4; the interval of level 1/2 is [0, 2], that of 0.4 is [1, 1]
    below, up_to = torch.tensor([0.0, 0.25, 0.75]), torch.tensor([0.25, 0.75, 1.0])
    assert central_level(below, up_to).tolist() == [0.5, 0.0, 0.5]


def test_quantile_calibration_recovers_the_level_a_quantile_really_has():
    num_points, levels_Q = 20_000, torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    standard = [NormalDist().inv_cdf(level) for level in levels_Q.tolist()]
    center_B = random_normal(num_points)
    targets_B = center_B + random_normal(num_points, seed=1)
    quantiles_QB = center_B + 0.5 * torch.tensor(standard, dtype=torch.float64)[:, None]  # half the true spread
    exact_Q = torch.tensor([NormalDist().cdf(0.5 * z) for z in standard], dtype=torch.float64)
    observed_Q = quantile_calibration(levels_Q, quantiles_QB, targets_B)
    torch.testing.assert_close(observed_Q, exact_Q, rtol=0, atol=4 * 0.5 / math.sqrt(num_points))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ece(torch.eye(2), torch.tensor([0, 1]), 0), "`bins` must be a whole number of at least 1; got 0"),
        (lambda: ece_mass(torch.eye(2), torch.tensor([0, 1]), 2.5), r"got 2\.5"),  # pyright: ignore
        (lambda: reliability(torch.eye(2), torch.tensor([0, 1]), kind="mas"), "width, mass; got 'mas'"),  # pyright: ignore
        (lambda: interval_coverage(torch.ones(2), torch.zeros(2), torch.zeros(2)), "above `upper_B` in 2 intervals"),
        (lambda: interval_coverage(torch.ones(2), torch.ones(2), torch.full((2,), math.nan)), "`targets_B` holds NaN"),
        (lambda: interval_coverage(torch.ones(2), torch.ones(2), torch.zeros(3)), r"got \(2,\) and \(3,\)"),
        (lambda: quantile_calibration(torch.tensor([0.0, 0.5]), torch.zeros(2, 3), torch.zeros(3)), "got 0 to 0.5"),
        (lambda: quantile_calibration(torch.tensor([0.5]), torch.zeros(2, 3), torch.zeros(3)), r"\(2,\) and \(1,\)"),
        (lambda: quantile_calibration(torch.tensor([0.5]), torch.zeros(1, 2), torch.zeros(3)), r"\(2,\) and \(3,\)"),
    ],
)  # fmt: skip
def test_wrong_calls_say_what_was_wrong(call, message):
    with pytest.raises(ValueError, match=message):
        call()
