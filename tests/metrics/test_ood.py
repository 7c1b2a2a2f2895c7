import math

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.metrics.helpers import random_normal
from torchbayes.metrics import aupr, auroc, fpr95


def scores(decimals: int) -> tuple[Tensor, Tensor]:
    """Unequal numbers of shifted normal scores, rounded to make ties."""
    return random_normal(70).round(decimals=decimals), (0.7 + random_normal(43, seed=1)).round(decimals=decimals)


def labels_and_scores(in_scores_N: Tensor, out_scores_N: Tensor) -> tuple[np.ndarray, np.ndarray]:
    labels = np.r_[np.zeros(len(in_scores_N)), np.ones(len(out_scores_N))]
    return labels, np.r_[in_scores_N.numpy(), out_scores_N.numpy()]


@pytest.mark.parametrize("decimals", [0, 1, 12])
def test_auroc_equals_all_pairs_and_sklearn(decimals: int):
    from sklearn.metrics import roc_auc_score

    in_scores_N, out_scores_N = scores(decimals)
    difference = out_scores_N[:, None] - in_scores_N
    pairs = ((difference > 0).double() + 0.5 * (difference == 0)).mean()
    torch.testing.assert_close(auroc(in_scores_N, out_scores_N), pairs, rtol=1e-12, atol=0)
    assert pairs.item() == pytest.approx(roc_auc_score(*labels_and_scores(in_scores_N, out_scores_N)), rel=1e-12)


@pytest.mark.parametrize("decimals", [0, 1, 12])
def test_aupr_equals_average_precision_with_either_side_positive(decimals: int):
    from sklearn.metrics import average_precision_score

    in_scores_N, out_scores_N = scores(decimals)
    labels, values = labels_and_scores(in_scores_N, out_scores_N)
    expected_out, expected_in = average_precision_score(labels, values), average_precision_score(1 - labels, -values)
    assert aupr(in_scores_N, out_scores_N).item() == pytest.approx(expected_out, rel=1e-12)
    assert aupr(in_scores_N, out_scores_N, positive="in").item() == pytest.approx(expected_in, rel=1e-12)


@pytest.mark.parametrize("decimals", [0, 1, 12])
def test_fpr95_is_the_first_point_of_the_roc_curve_at_the_rate(decimals: int):
    from sklearn.metrics import roc_curve

    in_scores_N, out_scores_N = scores(decimals)
    labels, values = labels_and_scores(in_scores_N, out_scores_N)
    for positive, (y_true, y_score) in {"out": (labels, values), "in": (1 - labels, -values)}.items():
        false_rate, true_rate, _ = roc_curve(y_true, y_score, drop_intermediate=False)
        expected = false_rate[true_rate >= 0.95 - 1e-12].min()
        assert fpr95(in_scores_N, out_scores_N, positive).item() == pytest.approx(expected, rel=1e-12)  # pyright: ignore


def test_fpr95_by_hand_accepts_exactly_nineteen_of_twenty_inliers():
    in_scores_N = torch.arange(20.0)
    assert fpr95(in_scores_N, torch.tensor([17.5, 18.0, 18.5, 30.0])).item() == 0.5


def test_perfect_reversed_and_uninformative_scores():
    low, high, flat = torch.zeros(30), torch.ones(10), torch.ones(30)
    assert [auroc(low, high).item(), auroc(high, low).item(), auroc(flat, high).item()] == [1.0, 0.0, 0.5]
    assert [aupr(low, high).item(), aupr(flat, high).item()] == [1.0, 0.25]
    assert aupr(flat, high, positive="in").item() == 0.75
    assert [fpr95(low, high).item(), fpr95(flat, high).item()] == [0.0, 1.0]


def test_order_alone_matters_and_infinite_scores_are_scores():
    in_scores_N, out_scores_N = scores(12)
    expected = auroc(in_scores_N, out_scores_N)
    assert torch.equal(auroc(in_scores_N.exp(), out_scores_N.exp()), expected)
    assert auroc(torch.tensor([-math.inf, 0.0]), torch.tensor([0.0, math.inf])).item() == 0.875


def test_mixed_precision_compares_values_without_losing_them():
    in_scores_N, out_scores_N = torch.tensor([1.0]), torch.tensor([1.0 + 1e-12], dtype=torch.float64)
    assert [auroc(in_scores_N, out_scores_N).item(), fpr95(in_scores_N, out_scores_N).item()] == [1.0, 0.0]
    assert aupr(in_scores_N, out_scores_N).item() == 1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: auroc(torch.zeros(0), torch.zeros(2)), r"`in_scores_N` is empty: shape \(0,\)"),
        (lambda: aupr(torch.zeros(2), torch.tensor([math.nan, 1.0])), "`out_scores_N` holds NaN: 1 of 2"),
        (lambda: fpr95(torch.zeros(2, 1), torch.zeros(2)), r"1 axis; got shape \(2, 1\)"),
        (lambda: aupr(torch.zeros(2), torch.zeros(2), positive="up"), "out, in; got 'up'"),  # pyright: ignore
    ],
)
def test_wrong_calls_say_what_was_wrong(call, message):
    with pytest.raises(ValueError, match=message):
        call()
