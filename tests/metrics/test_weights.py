"""Weights of rows and soft labels in metrics: against scikit-learn's sample_weight, and against repeated rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from sklearn import metrics as sk
from torch import Tensor

from tests.oracles import assert_close, classes, normal
from torchbayes import metrics

B, K = 40, 3
PROBS, LABELS = (1.5 * normal(B, K)).softmax(-1), classes(B, K, seed=1)
WEIGHTS = normal(B, seed=2).exp() * (normal(B, seed=3) > -0.5)
COUNTS = classes(B, 4, seed=4)
COUNTS[0] += int((-COUNTS.sum()) % 20)  # so that 20 bins of equal mass hold whole rows
REAL, MEAN = normal(B, seed=5), normal(B, seed=6)


def test_scores_are_those_of_scikit_learn():
    rows, weights = PROBS.numpy(), WEIGHTS.numpy()
    actual = metrics.accuracy(PROBS, LABELS, weights_B=WEIGHTS)
    assert_close(actual, sk.accuracy_score(LABELS, rows.argmax(1), sample_weight=weights))
    log_prob = PROBS.gather(1, LABELS[:, None])[:, 0].log()
    assert_close(metrics.nll(log_prob, weights_B=WEIGHTS), sk.log_loss(LABELS, rows, sample_weight=weights))
    squares = [sk.brier_score_loss(k == LABELS, rows[:, k], sample_weight=weights) for k in range(K)]
    assert_close(metrics.brier(PROBS, LABELS, weights_B=WEIGHTS), sum(squares))
    expected = math.sqrt(sk.mean_squared_error(REAL, MEAN, sample_weight=weights))
    assert_close(metrics.rmse(MEAN, REAL, weights_B=WEIGHTS), expected)


SCORES: dict[str, Callable[..., Tensor]] = {
    "accuracy": metrics.accuracy,
    "brier": metrics.brier,
    "ece": metrics.ece,
    "ece of 4": lambda p, y, **own: metrics.ece(p, y, 4, **own),
    "ece_mass": metrics.ece_mass,
    "ece_mass of 5": lambda p, y, **own: metrics.ece_mass(p, y, 5, **own),
    "temperature": lambda p, y, **own: torch.tensor(metrics.fit_temperature(p.log(), y, **own)),
}


HARD: dict[str, Callable[..., Tensor]] = {
    **SCORES,
    "aurc": lambda p, y, **own: metrics.risk_coverage((p.argmax(-1) != y).to(p), 1 - p.amax(-1), **own).aurc,
}


@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("tied", [False, True])
def test_integer_weights_are_repeated_rows(name: str, tied: bool):
    probs = ((PROBS * 8).round() + 1) / ((PROBS * 8).round() + 1).sum(-1, keepdim=True) if tied else PROBS
    score = HARD[name]
    repeated = score(probs.repeat_interleave(COUNTS, 0), LABELS.repeat_interleave(COUNTS))
    assert_close(score(probs, LABELS, weights_B=COUNTS), repeated, rtol=1e-9)
    assert_close(score(probs, LABELS, weights_B=0.1 * COUNTS.double()), repeated, rtol=1e-9)


@pytest.mark.parametrize("kind", ["width", "mass"])
def test_bins_of_weighted_rows(kind: Any):
    actual = metrics.reliability(PROBS, LABELS, 10, kind=kind, weights_B=COUNTS)
    expected = metrics.reliability(PROBS.repeat_interleave(COUNTS, 0), LABELS.repeat_interleave(COUNTS), 10, kind=kind)
    for name in ("confidence", "accuracy", "count", "edges"):
        assert_close(getattr(actual, name), getattr(expected, name))
    ones = metrics.reliability(PROBS, LABELS, 10, kind=kind, weights_B=torch.ones(B))
    plain = metrics.reliability(PROBS, LABELS, 10, kind=kind)
    for name in ("confidence", "accuracy", "count", "edges"):
        assert_close(getattr(ones, name), getattr(plain, name))


@pytest.mark.parametrize("name", [n for n in SCORES if n != "temperature"])
def test_soft_labels_are_rows_of_all_classes_by_their_shares(name: str):
    soft = normal(B, K, seed=7).softmax(-1)
    rows, labels = PROBS.repeat_interleave(K, 0), torch.arange(K).repeat(B)
    expected = SCORES[name](rows, labels, weights_B=soft.flatten())
    assert_close(SCORES[name](PROBS, soft), expected, rtol=1e-9)
    weighted = SCORES[name](rows, labels, weights_B=(WEIGHTS[:, None] * soft).flatten())
    assert_close(SCORES[name](PROBS, soft, weights_B=WEIGHTS), weighted, rtol=1e-9)
    one_hot = torch.nn.functional.one_hot(LABELS, K).double()
    assert_close(SCORES[name](PROBS, one_hot), SCORES[name](PROBS, LABELS))


OTHER, SCALE, DRAWS = (1.2 * normal(B, K, seed=7)).softmax(-1), normal(B, seed=8).exp(), normal(6, B, seed=9)
LEVELS = torch.tensor([0.2, 0.8], dtype=torch.float64)
ROWS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...], int]] = {  # score, arguments, axis of the rows
    "agreement": (metrics.agreement, (PROBS, OTHER), 0),
    "total variation": (metrics.total_variation, (PROBS, OTHER), 0),
    "wasserstein": (metrics.wasserstein1, (DRAWS, DRAWS[:4] + 0.5), -1),
    "crps of a gaussian": (metrics.crps_gaussian, (MEAN, SCALE, REAL), -1),
    "crps of normals": (metrics.crps_normals, (MEAN[None], SCALE[None], REAL), -1),
    "crps of draws": (metrics.crps_draws, (DRAWS, REAL), -1),
    "coverage": (metrics.interval_coverage, (MEAN - 1, MEAN + SCALE, REAL), -1),
    "interval score": (
        lambda *given, **own: metrics.interval_score(*given, coverage=0.9, **own),
        (MEAN - 1, MEAN + SCALE, REAL),
        -1,
    ),
    "quantiles": (
        lambda *given, **own: metrics.quantile_calibration(LEVELS, *given, **own),
        (torch.stack([MEAN - SCALE, MEAN + SCALE]), REAL),
        -1,
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_means_over_rows_count_rows_by_their_weights(name: str):
    score, arguments, axis = ROWS[name]
    repeated = score(*(x.repeat_interleave(COUNTS, axis) for x in arguments))
    assert_close(score(*arguments, weights_B=COUNTS), repeated)
    assert_close(score(*arguments, weights_B=torch.ones(B)), score(*arguments))


def test_coverage_and_means():
    low, high = MEAN - 1, MEAN + 1
    inside = ((low <= REAL) & (high >= REAL)).double()
    expected = (WEIGHTS * inside).sum() / WEIGHTS.sum()
    assert_close(metrics.interval_coverage(low, high, REAL, weights_B=WEIGHTS), expected)
    assert_close(metrics.weighted_mean(MEAN, WEIGHTS), (WEIGHTS * MEAN).sum() / WEIGHTS.sum())
    impossible = torch.tensor([0.0, -math.inf], dtype=torch.float64)
    assert_close(metrics.nll(impossible, weights_B=torch.tensor([1.0, 0.0])), 0.0)


@pytest.mark.parametrize(
    ("weights", "error", "words"),
    [
        (-WEIGHTS, ValueError, "at least 0"),
        (0 * WEIGHTS, ValueError, "not all 0"),
        (WEIGHTS / 0, ValueError, "finite"),
        (WEIGHTS[:3], ValueError, "same shape"),
        ([1.0], TypeError, "must be a torch tensor; got list"),
    ],
)
def test_weights_that_are_none(weights: Any, error: type[Exception], words: str):
    with pytest.raises(error, match=words):
        metrics.accuracy(PROBS, LABELS, weights_B=weights)
    with pytest.raises(error, match=words):
        metrics.ece_mass(PROBS, LABELS, weights_B=weights)


@pytest.mark.parametrize("positive", ["in", "out"])
def test_detection_is_that_of_repeated_inputs(positive: Any) -> None:
    source = torch.Generator().manual_seed(0)
    inside, outside = (torch.randint(6, (n,), generator=source).double() for n in (30, 20))
    counts = [torch.randint(4, (len(each),), generator=source) for each in (inside, outside)]
    weights = {"in_weights_N": counts[0].double(), "out_weights_N": counts[1].double()}
    repeated = [each.repeat_interleave(count) for each, count in zip((inside, outside), counts, strict=True)]
    side: Any = {"positive": positive}
    each: Any = ((metrics.auroc, {}), (metrics.aupr, side), (metrics.fpr95, side))
    for metric, options in each:
        actual, expected = metric(inside, outside, **options, **weights), metric(*repeated, **options)
        assert math.isclose(actual, expected, rel_tol=1e-12), metric.__name__
    # another library, with weights that are no whole numbers
    shares = [torch.rand(len(each), generator=source).double() for each in (inside, outside)]
    weights = dict(zip(weights, shares, strict=True))
    labels, scores = torch.cat([torch.zeros(30), torch.ones(20)]), torch.cat([inside, outside])
    about = (labels, scores) if positive == "out" else (1 - labels, -scores)
    every = torch.cat(shares)
    assert math.isclose(metrics.auroc(inside, outside, **weights), sk.roc_auc_score(*about, sample_weight=every))
    actual = metrics.aupr(inside, outside, positive, **weights)
    assert math.isclose(actual, sk.average_precision_score(*about, sample_weight=every))
    with pytest.raises(ValueError, match="weights"):
        metrics.auroc(inside, outside, in_weights_N=-shares[0])
