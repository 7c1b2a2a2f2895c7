import math

import pytest
import torch

from tests.oracles import assert_close, normal
from torchbayes.evidence.estimate import LEAST_ESS, log_mean, warn_of_few


def test_value_is_the_log_of_the_mean_at_any_scale():
    log_weights = 2 * normal(50)
    expected = log_weights.exp().mean().log()
    assert_close(log_mean(log_weights).value, expected)
    assert_close(log_mean(log_weights - 5000.0).value, expected - 5000.0)
    assert_close(log_mean(log_weights.float()).value, log_weights.float().double().exp().mean().log())


def test_error_is_the_jackknife_by_leaving_out_one():
    log_weights = 3 * normal(20, seed=1)
    without = torch.stack([log_weights[torch.arange(20) != p].exp().mean().log() for p in range(20)])
    expected = math.sqrt(19 / 20 * float((without - without.mean()).square().sum()))
    assert_close(log_mean(log_weights).error, expected)


def test_error_of_even_weights_is_the_delta_methods():
    log_weights = 0.01 * normal(1000, seed=2)
    weights = log_weights.exp()
    assert_close(log_mean(log_weights).error, weights.std() / weights.mean() / math.sqrt(1000), rtol=1e-3)


def test_one_weight_that_decides_has_a_large_error():
    log_weights = torch.tensor([0.0, 0.0, 0.0, 60.0])
    # without it the estimate falls by 60
    assert log_mean(log_weights).error > 40
    assert_close(log_mean(log_weights).ess, 1.0)


def test_effective_size():
    log_weights = normal(30, seed=3)
    weights = log_weights.exp()
    assert_close(log_mean(log_weights).ess, weights.sum() ** 2 / weights.square().sum())
    assert_close(log_mean(torch.zeros(7)).ess, 7.0)
    assert log_mean(torch.zeros(7)).error < 1e-14


def test_weights_of_zero_count():
    log_weights = torch.tensor([0.0, 0.0, 0.0, -math.inf], dtype=torch.float64)
    actual = log_mean(log_weights)
    assert_close(actual.value, math.log(0.75))
    assert_close(actual.ess, 3.0)
    without = [math.log(2 / 3)] * 3 + [0.0]
    mean = sum(without) / 4
    assert_close(actual.error, math.sqrt(3 / 4 * sum((w - mean) ** 2 for w in without)))
    assert log_mean(torch.tensor([0.0, -math.inf])).error == math.inf


@pytest.mark.parametrize(
    ("log_weights", "message"),
    [
        ([0.0], "at least 2 weights; got 1"),
        ([-math.inf, -math.inf], "the largest is -inf"),
        ([0.0, math.nan], "1 of 2 are NaN"),
        ([0.0, math.inf], "the largest is inf"),
    ],
)
def test_weights_that_have_no_mean(log_weights: list[float], message: str):
    with pytest.raises(ValueError, match=message):
        log_mean(torch.tensor(log_weights))


@pytest.mark.parametrize(("spread", "tolerance"), [(0.5, 0.05), (1.0, 0.1), (1.5, 0.25)])
def test_error_is_calibrated_where_there_is_no_warning(spread: float, tolerance: float):
    """Log normal weights of 128 particles: e^{s z − s²/2} has mean 1."""
    scores, warned = [], 0
    for log_weights in spread * normal(2000, 128, seed=4) - spread**2 / 2:
        actual = log_mean(log_weights)
        warned += actual.ess < LEAST_ESS
        scores.append(actual.value / actual.error)
    assert warned < 200
    assert_close(torch.tensor(scores).double().square().mean().sqrt(), 1.0, rtol=0, atol=tolerance)


def test_few_weights_warn():
    with pytest.warns(UserWarning, match=r"3\.0 effective particles, fewer than 10.*More of them\."):
        warn_of_few(3.0, "particles", "More of them.")
    warn_of_few(LEAST_ESS, "particles", "Fine.")


def test_few_weights_are_too_low_and_their_errors_too_small():
    """Why there is a warning: with log normal weights of spread 3, the error bar covers too rarely."""
    actual = [log_mean(log_weights) for log_weights in 3.0 * normal(500, 128, seed=5) - 4.5]
    scores = torch.tensor([f.value / f.error for f in actual])
    assert sum(f.ess < LEAST_ESS for f in actual) > 350
    assert scores.mean() < -1
    assert scores.square().mean().sqrt() > 1.5
