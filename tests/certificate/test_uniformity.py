"""Uniformity of ranks: published widths of the envelope, false alarms, and sizes of errors that are put in."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import binom
from torch import Tensor

from tests.oracles import normal
from torchbayes.certificate.uniformity import envelope, resolution, uniformity


def uniform(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("count", "half"), [(50, 0.20), (100, 0.14), (200, 0.10), (500, 0.066)])
def test_the_envelope_has_the_measured_width(count: int, half: float) -> None:
    assert resolution(count) == pytest.approx(half, abs=0.006)
    points, low, high = envelope(count)
    middle = int((points - 0.5).abs().argmin())
    assert max(float(high[middle] - 0.5), float(0.5 - low[middle])) == pytest.approx(resolution(count))


def test_bounds_have_the_binomial_tails_of_their_counts() -> None:
    """The bounds are where twice the smaller tail, by scipy, crosses one number at all points."""
    points, low, high = envelope(50)
    tails = [
        [2 * min(binom.cdf(c, 50, z), binom.sf(c - 1, 50, z)) for c in (round(50 * low_k), round(50 * high_k))]
        for z, low_k, high_k in zip(points.tolist(), low.tolist(), high.tolist(), strict=True)
    ]
    outside = [
        2 * min(binom.cdf(c, 50, z), binom.sf(c - 1, 50, z))
        for z, low_k, high_k in zip(points.tolist(), low.tolist(), high.tolist(), strict=True)
        for c in (round(50 * low_k) - 1, round(50 * high_k) + 1)
        if 0 <= c <= 50
    ]
    assert min(map(min, tails)) > (1 + 1e-6) * max(outside)


@pytest.mark.parametrize("count", [50, 200])
def test_uniform_numbers_are_rejected_as_often_as_they_should(count: int) -> None:
    """200 samples at 5 %: a standard error of .015."""
    rejected = [uniformity(values).p_value < 0.05 for values in uniform(200, count, seed=count)]
    assert sum(rejected) / 200 == pytest.approx(0.05, abs=0.046)


@pytest.mark.parametrize(("width", "shift"), [(0.6, 0.0), (1.6, 0.0), (1.0, 0.5), (1.0, -0.5)])
def test_sizes_are_those_that_were_put_in(width: float, shift: float) -> None:
    """Posteriors N(m + shift s, s²) of truths N(m, (s/width)²); the shift is in units of s."""
    actual = uniformity(torch.special.ndtr(normal(4000, seed=3) / width - shift))
    assert actual.p_value < 0.01
    assert actual.shift == pytest.approx(shift, abs=0.06)
    if shift == 0:
        assert actual.width == pytest.approx(width, rel=0.06)
    assert actual.width_interval[0] < actual.width < actual.width_interval[1]
    assert actual.shift_interval[0] < actual.shift < actual.shift_interval[1]


def test_the_largest_difference_is_that_of_kolmogorov_and_smirnov() -> None:
    from scipy.stats import kstest

    values = uniform(37, seed=5).square()
    assert uniformity(values).largest == pytest.approx(kstest(values.numpy(), "uniform").statistic, abs=1e-12)


def test_points_claim_a_width_of_zero() -> None:
    actual = uniformity((uniform(100) > 0.5).double())
    assert actual.width < 0.05
    assert not math.isnan(actual.shift)


@pytest.mark.parametrize("values", [[0.5], [], [0.2, 1.2], [0.2, -0.1], [math.nan, 0.5]])
def test_what_is_no_rank_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="`values_N`"):
        uniformity(torch.tensor(values, dtype=torch.float64))
