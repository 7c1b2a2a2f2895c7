import pytest
import torch

from tests.metrics.helpers import random_normal, random_probs
from torchbayes.metrics import agreement, total_variation, wasserstein1


def test_agreement_by_hand_and_with_itself():
    p_BK, q_BK = torch.tensor([[0.6, 0.4], [0.1, 0.9]]), torch.tensor([[0.9, 0.1], [0.7, 0.3]])
    assert [agreement(p_BK, q_BK).item(), agreement(p_BK, p_BK).item()] == [0.5, 1.0]


def test_total_variation_equals_the_mean_of_half_the_l1_distance():
    p_BK, q_BK = random_probs(30, 4), random_probs(30, 4, seed=3)
    expected = 0.5 * abs(p_BK.numpy() - q_BK.numpy()).sum(1).mean()
    assert total_variation(p_BK, q_BK).item() == pytest.approx(expected, rel=1e-12)
    assert total_variation(q_BK, p_BK).item() == pytest.approx(expected, rel=1e-12)
    assert 0 < expected < 1


def test_total_variation_runs_from_zero_to_one():
    p_BK = torch.eye(3)
    assert [total_variation(p_BK, p_BK).item(), total_variation(p_BK, p_BK.roll(1, 0)).item()] == [0.0, 1.0]


@pytest.mark.parametrize(("num_first", "num_second"), [(1, 1), (6, 6), (5, 9), (12, 1)])
@pytest.mark.parametrize("decimals", [0, 12])
def test_wasserstein1_equals_scipy_point_by_point(num_first: int, num_second: int, decimals: int):
    from scipy.stats import wasserstein_distance

    draws_SB = random_normal(num_first, 4).round(decimals=decimals)
    draws_TB = (1 + 2 * random_normal(num_second, 4, seed=1)).round(decimals=decimals)
    expected = sum(float(wasserstein_distance(draws_SB[:, b].numpy(), draws_TB[:, b].numpy())) for b in range(4)) / 4
    assert wasserstein1(draws_SB, draws_TB).item() == pytest.approx(expected, rel=1e-12)
    assert wasserstein1(draws_TB, draws_SB).item() == pytest.approx(expected, rel=1e-12)


def test_wasserstein1_of_a_shift_is_the_shift_and_of_repeated_draws_zero():
    draws_SB = random_normal(20, 3)
    assert wasserstein1(draws_SB, draws_SB + 1.5).item() == pytest.approx(1.5, rel=1e-12)
    assert wasserstein1(draws_SB, torch.cat([draws_SB, draws_SB])).item() == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: agreement(torch.eye(2), torch.eye(3)), r"`p_BK` and `q_BK` .* got \(2, 2\) and"),
        (lambda: total_variation(torch.eye(2), torch.ones(2, 2)), "`q_BK` must sum to one .* got a sum of 2"),
        (lambda: wasserstein1(torch.zeros(3, 2), torch.zeros(3, 1)), r"same shape; got \(2,\) and \(1,\)"),
        (lambda: wasserstein1(torch.zeros(3), torch.zeros(3, 1)), r"`draws_SB` must have 2 axes; got shape \(3,\)"),
        (lambda: wasserstein1(torch.zeros(3, 1), torch.full((2, 1), torch.nan)), "`draws_TB` holds NaN"),
    ],
)  # fmt: skip
def test_wrong_calls_say_what_was_wrong(call, message):
    with pytest.raises(ValueError, match=message):
        call()
