import math

import mpmath
import pytest
import torch

from tests.metrics.helpers import random_normal, random_probs
from torchbayes.metrics import entropy, expected_entropy, mutual_information
from torchbayes.metrics.uncertainty import divergence


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entropy_equals_scipy_and_keeps_shape_and_dtype(dtype: torch.dtype):
    from scipy.stats import entropy as scipy_entropy

    probs = random_probs(2, 7, 5).to(dtype)
    result = entropy(probs)
    assert result.dtype == dtype
    expected = torch.as_tensor(scipy_entropy(probs.double().numpy(), axis=-1)).to(dtype)
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-7)


def test_entropy_is_zero_for_certainty_and_log_k_for_the_uniform():
    result = entropy(torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.25] * 4], dtype=torch.float64))
    torch.testing.assert_close(result, torch.tensor([0.0, math.log(4)], dtype=torch.float64), rtol=1e-15, atol=0)


def test_mutual_information_equals_the_mean_divergence_from_the_average():
    probs_SBK = random_probs(6, 10, 4)
    average_BK = probs_SBK.mean(0)
    divergence = (probs_SBK * (probs_SBK / average_BK).log()).sum(-1).mean(0)
    torch.testing.assert_close(mutual_information(probs_SBK), divergence, rtol=1e-10, atol=1e-14)


def test_total_entropy_splits_into_expected_entropy_and_mutual_information():
    probs_SBK = random_probs(6, 10, 4)
    parts = expected_entropy(probs_SBK) + mutual_information(probs_SBK)
    torch.testing.assert_close(parts, entropy(probs_SBK.mean(0)), rtol=1e-12, atol=0)
    torch.testing.assert_close(expected_entropy(probs_SBK), entropy(probs_SBK).mean(0), rtol=1e-12, atol=0)


def test_mutual_information_of_opposed_certain_draws_is_log_two():
    probs_SBK = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    assert mutual_information(probs_SBK).item() == pytest.approx(math.log(2), rel=1e-7)
    assert expected_entropy(probs_SBK).item() == 0.0


@pytest.mark.parametrize("spread", [1e-7, 1e-5, 1e-3, 1e-1, 1.0, 10.0])
def test_divergence_keeps_its_digits_however_small(spread: float):
    """Of numbers with 60 digits, on either side of where the series begins."""
    outputs_SK = torch.randn(5, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    probs_SK = (1.0 + spread * outputs_SK).softmax(-1)
    with mpmath.workdps(60):
        rows = [[mpmath.mpf(p) for p in row] for row in probs_SK.tolist()]
        mean = [mpmath.fsum(column) / 5 for column in zip(*rows, strict=True)]
        expected = float(mpmath.fsum(p * mpmath.log(p / m) for row in rows for p, m in zip(row, mean, strict=True)) / 5)
    # the numbers themselves have 16 digits, of which the spread leaves so many
    assert float(divergence(probs_SK.unsqueeze(1))) == pytest.approx(expected, rel=1e-12 + 1e-14 / spread)


def test_divergence_of_single_precision_probabilities():
    probs_SBK = (1e-4 * random_normal(8, 100, 5)).softmax(-1)
    actual, exact = mutual_information(probs_SBK.float()).double(), mutual_information(probs_SBK)
    assert (actual / exact - 1).abs().max() < 1e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mutual_information_of_equal_draws_is_zero_and_never_below(dtype: torch.dtype):
    probs_SBK = random_probs(1, 500, 10).to(dtype).expand(7, 500, 10)
    result = mutual_information(probs_SBK)
    assert result.min() >= 0
    torch.testing.assert_close(result, torch.zeros(500, dtype=dtype), rtol=0, atol=10 * torch.finfo(dtype).eps)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: entropy(torch.tensor(1.0)), "classes on its last axis; got a single number"),
        (lambda: entropy(torch.tensor([0.3])), r"sum of 0\.3.*stack \(1 - p, p\)"),
        (lambda: entropy(torch.tensor([0.3, 0.702])), r"sum of 1\.002"),
        (lambda: mutual_information(torch.eye(2)), r"`probs_SBK` must have 3 axes; got shape \(2, 2\)"),
        (lambda: expected_entropy(torch.ones(2, 0, 3)), r"`probs_SBK` is empty: shape \(2, 0, 3\)"),
    ],
)
def test_wrong_calls_say_what_was_wrong(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_sums_within_a_thousandth_of_one_are_accepted():
    probs = torch.tensor([0.3, 0.7009], dtype=torch.float64)
    expected = -(0.3 * math.log(0.3) + 0.7009 * math.log(0.7009))
    assert entropy(probs).item() == pytest.approx(expected, rel=1e-12)
