"""P-values and thresholds against scipy and MAPIE on the same losses, and promises by simulation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mapie.risk_control.fwer_control import control_fwer
from mapie.risk_control.methods import (
    compute_hoeffding_bentkus_p_value,
    find_best_predict_param,
    get_r_hat_plus,
)
from scipy.stats import binomtest

from torchbayes.decisions import Abstention
from torchbayes.decisions.bounds import error_p_value, fewest_rows, loss_p_value


def test_a_p_value_of_errors_is_that_of_the_exact_binomial_test():
    for errors, rows in ((0, 22), (0, 21), (5, 100), (30, 200)):
        exact = binomtest(errors, rows, 0.1, alternative="less").pvalue
        assert error_p_value(errors, rows, 0.1) == pytest.approx(exact, rel=1e-12)


def test_bets_win_what_their_formula_says():
    """One row after the other, as Bates et al. (2021) write it."""
    losses = np.random.default_rng(0).random(60) * 0.2
    wealth, most, total, squares, variance = 1.0, 0.0, 0.5, 0.25, 0.25
    for i, loss in enumerate(losses, 1):
        wealth *= 1 - min(1.0, (2 * np.log(10) / (60 * variance)) ** 0.5) * (loss - 0.15)
        most, total = max(most, wealth), total + loss
        squares += (loss - total / (i + 1)) ** 2
        variance = squares / (i + 1)
    assert loss_p_value(losses, 0.15, 0.9) == pytest.approx(1 / most, rel=1e-12)


def test_bets_are_valid_and_tell_more_than_hoeffding_and_bentkus_where_losses_vary_little():
    source = np.random.default_rng(0)
    null = source.random((2000, 200)) < 0.305
    rejected = np.mean([loss_p_value(losses, 0.305, 0.9) <= 0.1 for losses in null])
    assert 0.03 < rejected <= 0.1
    low = 0.05 * source.random((50, 200))  # risk 0.025
    ours = [loss_p_value(losses, 0.05, 0.9) <= 0.1 for losses in low]
    theirs = compute_hoeffding_bentkus_p_value(low.mean(1), np.full(50, 200), 0.05)
    assert np.mean(ours) > 0.9
    assert (theirs > 0.1).all()


def test_so_many_rows_without_a_loss_are_just_enough():
    for limit, confidence in ((0.1, 0.9), (0.05, 0.95), (0.3, 0.5), (0.01, 0.99)):
        rows = fewest_rows(limit, confidence)
        values = [error_p_value(0, count, limit) for count in (rows - 1, rows)]
        assert values[1] <= 1 - confidence < values[0]
        rows = fewest_rows(limit, confidence, binary=False)
        values = [loss_p_value(np.zeros(count), limit, confidence) for count in (rows - 1, rows)]
        assert values[1] <= 1 - confidence < values[0]
        rows = fewest_rows(limit, None)
        assert 1 / (rows + 1) <= limit * (1 + 1e-12)
        assert 1 / rows > limit
    assert fewest_rows(0.1, 0.9) == 22
    assert fewest_rows(0.1, None) == 9


def rows_of(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores s in [0, 1], uniform, and errors of probability 0.01 + 0.45 s²."""
    source = np.random.default_rng(seed)
    scores = source.random(rows)
    return (source.random(rows) < 0.01 + 0.45 * scores**2).astype(float), scores


def risk_of(threshold: float) -> float:
    """The error rate of rows whose score is below a threshold."""
    return 0.01 + 0.15 * threshold**2


def test_the_rate_is_that_of_conformal_risk_control():
    for seed, limit in ((0, 0.1), (1, 0.05), (2, 0.02)):
        losses, scores = rows_of(200, seed)
        rule = Abstention(losses, scores, limit, None)
        # λ of MAPIE on a grid: a row is accepted where its score is below 1 - λ, so that risks fall
        ends = np.sort(np.append(scores, 1.0))
        risks = losses[:, None] * (scores[:, None] < ends)
        upper = get_r_hat_plus(risks[:, ::-1], 1 - ends[::-1], "crc", None, None, None)[1]
        best = find_best_predict_param(1 - ends[::-1], upper, np.array([[limit]])[0])
        assert min(rule.threshold, 1.0) == pytest.approx(1 - float(best[0]), abs=1e-12)


def test_the_risk_is_that_of_a_fixed_sequence():
    losses, scores = rows_of(400, 3)
    rule = Abstention(losses, scores, 0.1, 0.9)
    order = np.argsort(scores)
    start, ends = 66, np.append(scores[order], np.inf)
    counts = np.unique(np.linspace(start, 400, 50).round().astype(int))
    values = np.array([binomtest(int(losses[order][:k].sum()), int(k), 0.1, alternative="less").pvalue for k in counts])
    valid = control_fwer(values, 0.1, fwer_method="fixed_sequence")
    assert rule.threshold == ends[counts[valid[-1]]]
    assert rule.accepted == counts[valid[-1]] == int((scores < rule.threshold).sum())


def test_equal_scores_are_accepted_together_or_not_at_all():
    losses = np.array([0.0] * 60 + [1.0] * 10 + [0.0] * 30)
    scores = np.array([0.1] * 60 + [0.2] * 40)
    rule = Abstention(losses, scores, 0.09, 0.9)
    assert (rule.threshold, rule.accepted) == (0.2, 60)
    assert rule.accepts(scores).tolist() == [True] * 60 + [False] * 40


@pytest.mark.parametrize("bound", [1.0, 40.0])
def test_losses_of_any_unit_are_the_same_losses(bound: float):
    losses, scores = rows_of(500, 4)
    one, other = Abstention(losses, scores, 0.1), Abstention(bound * losses, scores, 0.1 * bound, bound=bound)
    assert one.threshold == other.threshold
    assert other.empirical == pytest.approx(bound * one.empirical)


def test_promises_are_kept_over_sets_of_held_out_rows():
    """Up to two standard errors of a share of 0.1 over the sets."""
    broken, rates, uncertified, kept, sets = 0, [], 0, [], 200
    for seed in range(sets):
        losses, scores = rows_of(400, 100 + seed)
        try:
            threshold = min(Abstention(losses, scores, 0.1, 0.9).threshold, 1.0)
        except ValueError:
            uncertified += 1
        else:
            kept.append(threshold)
            broken += risk_of(threshold) > 0.1
        threshold = min(Abstention(losses, scores, 0.1, None).threshold, 1.0)
        rates.append(threshold * risk_of(threshold))
    assert broken / sets <= 0.1 + 2 * (0.09 / sets) ** 0.5
    assert np.mean(kept) > 0.3  # the promise is not kept by accepting nothing
    assert uncertified < sets / 10
    assert 0.1 - 2 / 401 - 0.003 <= np.mean(rates) <= 0.1 + 0.003
    naive = 0
    for seed in range(sets):
        losses, scores = rows_of(400, 100 + seed)
        order = np.argsort(scores)
        means = losses[order].cumsum() / np.arange(1, 401)
        last = np.flatnonzero(means <= 0.1)[-1]
        naive += risk_of(float(scores[order][last])) > 0.1
    assert naive / sets > 0.3  # what the promise is for


def test_costs_that_are_no_errors_keep_their_promise_too():
    broken, certified = 0, 0
    for seed in range(100):
        errors, scores = rows_of(600, 20_000 + seed)
        losses = errors * np.random.default_rng((1, seed)).random(600)  # half of an error on average
        try:
            threshold = min(Abstention(losses, scores, 0.05, 0.9).threshold, 1.0)
        except ValueError:
            continue
        certified += 1
        broken += risk_of(threshold) / 2 > 0.05
    assert certified > 80
    assert broken / 100 <= 0.1 + 2 * (0.09 / 100) ** 0.5


def test_rows_that_are_too_few_are_refused_with_the_number_that_is_needed():
    with pytest.raises(ValueError, match="at least 22 are needed"):
        Abstention(torch.zeros(21), torch.rand(21), 0.1, 0.9)
    with pytest.raises(ValueError, match="at least 9 are needed"):
        Abstention(torch.zeros(8), torch.rand(8), 0.1, None)
    assert Abstention(torch.zeros(22), torch.rand(22), 0.1, 0.9).threshold == float("inf")
    assert Abstention(torch.zeros(9), torch.rand(9), 0.1, None).coverage == 1
    with pytest.raises(ValueError, match="no threshold can be certified"):
        Abstention(torch.ones(100), torch.rand(100), 0.1, 0.9)
