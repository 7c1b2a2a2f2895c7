import math

import pytest
import torch

from tests.metrics.helpers import random_classes, random_normal, random_probs
from torchbayes.metrics import accuracy, brier, crps_draws, crps_gaussian, nll, rmse


def test_accuracy_counts_right_rows_and_breaks_ties_by_the_first_class():
    probs_BK = torch.tensor([[0.7, 0.3], [0.2, 0.8], [0.5, 0.5], [0.5, 0.5]])
    assert accuracy(probs_BK, torch.tensor([0, 0, 0, 1])).item() == 0.5


def test_uint8_labels_are_classes_and_not_a_mask():
    probs_BK, targets_B = random_probs(50, 4), random_classes(50, 4)
    expected = (probs_BK.numpy().argmax(1) == targets_B.numpy()).mean()
    assert accuracy(probs_BK, targets_B.to(torch.uint8)).item() == expected
    assert torch.equal(brier(probs_BK, targets_B.to(torch.uint8)), brier(probs_BK, targets_B))


def test_nll_is_the_mean_and_stays_infinite_where_a_target_was_impossible():
    assert nll(torch.tensor([0.5, 0.25]).log()).item() == pytest.approx(1.5 * math.log(2), rel=1e-6)
    assert nll(torch.tensor([0.0, -math.inf])).item() == math.inf


def test_nll_sums_float32_in_float64():
    log_prob_B = torch.full((100_003,), -0.1)
    assert nll(log_prob_B).item() == pytest.approx(float(torch.tensor(0.1)), abs=1e-12)


@pytest.mark.parametrize("num_classes", [2, 5])
def test_brier_equals_sklearn_summed_over_classes(num_classes: int):
    from sklearn.metrics import brier_score_loss

    probs_BK, targets_B = random_probs(40, num_classes), random_classes(40, num_classes)
    one_vs_rest = [
        brier_score_loss((targets_B == k).numpy(), probs_BK[:, k].numpy(), pos_label=True) for k in range(num_classes)
    ]
    assert brier(probs_BK, targets_B).item() == pytest.approx(sum(one_vs_rest), abs=1e-12)


def test_brier_spans_zero_to_two():
    probs_BK = torch.eye(2)
    assert brier(probs_BK, torch.tensor([0, 1])).item() == 0.0
    assert brier(probs_BK, torch.tensor([1, 0])).item() == 2.0


def test_rmse_by_hand_over_any_shape():
    mean_B = torch.tensor([[0.0], [2.0]])
    assert rmse(mean_B, torch.tensor([[3.0], [6.0]])).item() == pytest.approx(math.sqrt(12.5), rel=1e-12)


def test_crps_gaussian_equals_the_integral_of_squared_cdf_error():
    from scipy.integrate import quad
    from scipy.stats import norm

    mean_B, scale_B, targets_B = random_normal(4), random_normal(4, seed=1).exp(), random_normal(4, seed=2)
    total = 0.0
    for mean, scale, target in zip(mean_B.tolist(), scale_B.tolist(), targets_B.tolist(), strict=True):
        total += quad(lambda x: norm.cdf(x, mean, scale) ** 2, -40, target)[0]  # noqa: B023
        total += quad(lambda x: norm.sf(x, mean, scale) ** 2, target, 40)[0]  # noqa: B023
    assert crps_gaussian(mean_B, scale_B, targets_B).item() == pytest.approx(total / 4, abs=1e-7)


def test_crps_gaussian_has_the_gradient_of_finite_differences():
    mean_B, scale_B = random_normal(3).requires_grad_(), random_normal(3, seed=1).exp().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda mean, scale: crps_gaussian(mean, scale, random_normal(3, seed=2)), (mean_B, scale_B)
    )


@pytest.mark.parametrize("num_draws", [2, 3, 8])
def test_crps_draws_equals_the_double_sum_over_pairs(num_draws: int):
    draws_SB, targets_B = random_normal(num_draws, 5), random_normal(5, seed=1)
    pairs = (draws_SB[:, None] - draws_SB[None]).abs().sum((0, 1)) / (2 * num_draws * (num_draws - 1))
    expected = ((draws_SB - targets_B).abs().mean(0) - pairs).mean()
    torch.testing.assert_close(crps_draws(draws_SB, targets_B), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("num_draws", [2, 20])
def test_crps_draws_is_unbiased_for_the_gaussian_score_at_any_number_of_draws(num_draws: int):
    repeats = 20_000
    draws_SB = 0.5 + 2 * random_normal(num_draws, repeats)
    targets_B = torch.full((repeats,), 1.7, dtype=torch.float64)
    exact = crps_gaussian(torch.full_like(targets_B, 0.5), torch.full_like(targets_B, 2.0), targets_B)
    singles_B = torch.stack([crps_draws(draws_SB[:, b : b + 1], targets_B[b : b + 1]) for b in range(1000)])
    standard_error = singles_B.std() / math.sqrt(repeats)
    assert (crps_draws(draws_SB, targets_B) - exact).abs() < 4 * standard_error


def test_crps_draws_in_float32_keeps_its_digits_far_from_zero():
    draws_SB, targets_B = (1000 + random_normal(500, 3)).float(), (1000 + random_normal(3, seed=1)).float()
    expected = crps_draws(draws_SB.double(), targets_B.double())
    assert crps_draws(draws_SB, targets_B).item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: accuracy(torch.ones(3), torch.tensor([0])), ValueError, r"`probs_BK` .* 2 axes; got shape \(3,\)"),
        (lambda: accuracy(torch.ones(0, 3), torch.zeros(0).long()), ValueError, r"`probs_BK` is empty: shape \(0, 3\)"),
        (lambda: accuracy(torch.ones(1, 2), torch.zeros(1).long()), ValueError, "must sum to one .* got a sum of 2"),
        (lambda: accuracy(torch.tensor([[1.5, -0.5]]), torch.tensor([0])), ValueError, "not be negative; got -0.5"),
        (lambda: accuracy(torch.tensor([[math.nan, 1.0]]), torch.tensor([0])), ValueError, "`probs_BK` holds NaN"),
        (lambda: accuracy(torch.tensor([[math.inf, 1.0]]), torch.tensor([0])), ValueError, "holds NaN or infinite"),
        (lambda: accuracy(torch.eye(2), torch.tensor([0, 2])), ValueError, r"must lie in 0\.\.1; got 2"),
        (lambda: accuracy(torch.eye(2), torch.tensor([-1, 0])), ValueError, r"must lie in 0\.\.1; got -1"),
        (lambda: accuracy(torch.eye(2), torch.tensor([0, 1, 1])), ValueError, r"shape \(2,\); got shape \(3,\)"),
        (lambda: accuracy(torch.eye(2), torch.tensor([0.0, 1.0])), TypeError, "integer classes; got torch.float32"),
        (lambda: accuracy(torch.eye(2).half(), torch.tensor([0, 1])), TypeError, "float64; got torch.float16"),
        (lambda: accuracy([[1.0]], torch.tensor([0])), TypeError, "must be a torch tensor; got list"),  # pyright: ignore
        (lambda: accuracy(torch.eye(2), [0, 1]), TypeError, "must be a torch tensor; got list"),  # pyright: ignore
        (lambda: brier(torch.eye(2), torch.tensor([True, False])), TypeError, "integer classes; got torch.bool"),
        (lambda: nll(torch.tensor([math.nan, 0.0])), ValueError, "`log_prob_B` holds NaN: 1 of 2"),
        (lambda: nll(torch.zeros(2, 1)), ValueError, r"`log_prob_B` must have 1 axis; got shape \(2, 1\)"),
        (lambda: rmse(torch.zeros(3, 1), torch.zeros(3)), ValueError, r"same shape; got \(3, 1\) and \(3,\)"),
        (lambda: rmse(torch.tensor([math.inf]), torch.zeros(1)), ValueError, "NaN or infinite values: 1 of 1"),
        (lambda: brier(torch.eye(2), torch.zeros(2, device="meta").long()), ValueError, "is on meta, the rest on cpu"),
        (lambda: crps_gaussian(torch.zeros(2), torch.zeros(2), torch.zeros(2)), ValueError, "`scale_B` .* zero; got 0"),
        (lambda: crps_draws(torch.zeros(1, 2), torch.zeros(2)), ValueError, "at least 2 draws"),
        (lambda: crps_draws(torch.zeros(4, 2), torch.zeros(3)), ValueError, r"same shape; got \(2,\) and \(3,\)"),
    ],
)  # fmt: skip
def test_wrong_calls_say_what_was_wrong(call, error, message):
    with pytest.raises(error, match=message):
        call()
