"""Figures of decisions and of predicted numbers: what is drawn is what was given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.report.helpers import drawn, labels, line, rng
from torchbayes.metrics import reliability
from torchbayes.report import figures


def test_a_reliability_diagram_says_how_many_inputs_each_bin_has():
    probs = torch.as_tensor(rng().dirichlet(np.full(3, 0.3), 400))
    bins = reliability(probs, torch.as_tensor(rng().integers(0, 3, 400)))
    (_, shares) = drawn(figures.reliability_diagram({"MAP": bins}, counts=True))
    assert [text.get_text() for text in shares.texts] == [str(count) for count in bins.count.tolist() if count]
    (_, shares) = drawn(figures.reliability_diagram({"MAP": bins}))
    assert not shares.texts
    assert bins.count.sum() == 400


def test_a_referral_curve_stands_beside_the_best_and_the_random_one():
    kept, accuracy = np.array([0.25, 0.5, 0.75, 1.0]), np.array([1.0, 1.0, 2 / 3, 0.5])
    figure = figures.referral_curves({"SWAG": (kept, accuracy)})
    (axes,) = drawn(figure)
    assert labels(figure) == ["SWAG", "if the wrong ones were referred first", "if referred at random"]
    np.testing.assert_allclose(line(axes, 0), [kept, accuracy])
    shares, best = line(axes, 2)
    np.testing.assert_allclose(best, [1.0 if share <= 0.5 else 0.5 / share for share in shares])
    np.testing.assert_allclose(line(axes, 3)[1], 0.5)
    several = figures.referral_curves({"SWAG": (kept, accuracy), "HMC": (kept, accuracy)})
    drawn(several)
    assert labels(several) == ["SWAG", "HMC"]


def test_a_risk_curve_has_its_promise_and_its_threshold():
    kept, risk = np.array([0.25, 0.5, 0.75, 1.0]), np.array([0.0, 0.05, 0.1, 0.2])
    figure = figures.risk_curves({"SWAG": (kept, risk)}, limit=0.12, chosen=(0.6, 0.07), loss="error rate")
    (axes,) = drawn(figure)
    assert labels(figure) == ["SWAG", "promised", "certified threshold"]
    np.testing.assert_allclose(line(axes, 0), [kept, risk])
    np.testing.assert_allclose(line(axes, 1)[1], 0.12)
    np.testing.assert_allclose(line(axes, 2), [[0.6], [0.07]])
    assert axes.get_ylabel().startswith("error rate")


@pytest.mark.parametrize("names", [["a", "b", "c"], ["a rather long name of a class", "b", "c"]])
def test_a_confusion_matrix_shows_counts_and_shares_of_the_true_class(names: list[str]):
    counts = np.array([[1200.0, 0.0, 0.0], [3.0, 1.0, 0.0], [0.0, 0.0, 0.0]])  # of the last class there is no row
    axes, _ = drawn(figures.confusion_matrix(counts, names))
    assert {text.get_position(): text.get_text() for text in axes.texts} == {
        (0, 0): "1,200",
        (0, 1): "3",
        (1, 1): "1",
    }
    shares = np.asarray(axes.images[0].get_array()) ** 2
    np.testing.assert_allclose(shares, [[1, 0, 0], [0.75, 0.25, 0], [0, 0, 0]])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted class", "true class")
    assert all(len(tick.get_text()) <= 12 for tick in axes.get_yticklabels())


@pytest.mark.parametrize("classes", [2, 20])
def test_a_confusion_matrix_of_any_size_is_drawn(classes: int):
    counts = np.diag(np.arange(classes) + 0.5)  # of weighted rows
    axes, _ = drawn(figures.confusion_matrix(counts, [f"class {k}" for k in range(classes)]))
    assert [text.get_text() for text in axes.texts] == [f"{k}.5" for k in range(classes)]


def test_predictions_outside_their_interval_stand_out():
    observed, predicted = np.array([0.0, 1.0, 2.0]), np.array([0.1, 1.1, 5.0])
    figure = figures.predicted_observed(
        "HMC", observed, predicted, low=predicted - 1, high=predicted + 1, target_label="price"
    )
    (axes,) = drawn(figure)
    assert labels(figure) == ["inside its interval", "outside", "predicted = observed"]
    np.testing.assert_allclose(line(axes, 0), [[0, 1], [0.1, 1.1]])
    np.testing.assert_allclose(line(axes, 1), [[2], [5]])
    bars: Any = axes.collections[0]
    np.testing.assert_allclose(bars.get_segments(), [[[0, -0.9], [0, 1.1]], [[1, 0.1], [1, 2.1]]])
    assert axes.get_ylabel() == "predicted price"
    all_inside = figures.predicted_observed("HMC", observed, observed, low=observed - 1, high=observed + 1)
    drawn(all_inside)
    assert labels(all_inside) == ["inside its interval", "predicted = observed"]


def test_of_many_predictions_some_are_drawn_and_wild_intervals_are_cut():
    observed = rng().normal(size=2000)
    wide = np.where(np.arange(2000) == np.argmin(observed), 1e6, 1.0)  # the least is always drawn
    figure = figures.predicted_observed("HMC", observed, observed, low=observed - wide, high=observed + wide)
    (axes,) = drawn(figure)
    assert len(line(axes, 0)[0]) == 500
    assert max(map(abs, axes.get_ylim())) < 30
    assert figure.get_supxlabel().splitlines()[1:] == [
        "500 of 2,000 targets",
        "intervals that leave the picture are cut off",
    ]


def test_a_coverage_curve_stands_beside_what_chance_allows():
    level, share = np.array([0.0, 0.5, 1.0]), np.array([0.0, 0.7, 1.0])
    figure = figures.coverage_curves({"HMC": (level, share)}, 100)
    (axes,) = drawn(figure)
    np.testing.assert_allclose(line(axes, 1), [level, share])
    band = np.asarray(axes.collections[0].get_paths()[0].vertices)
    np.testing.assert_allclose(band[np.isclose(band[:, 0], 0.5), 1], [0.4, 0.6])  # ± 2 · √(¼ / 100)
    assert labels(figure)[-1] == "calibrated, ± two standard errors of 100 targets"


def test_a_histogram_of_transforms_stands_beside_what_chance_allows():
    values = np.array([0.0, 0.1, 0.3, 0.6, 0.7, 0.8, 0.9, 1.0])
    figure = figures.pit_histogram("HMC", values, bins=4)
    (axes,) = drawn(figure)
    heights: Any = [patch.get_height() for patch in axes.containers[0]]
    np.testing.assert_allclose(heights, [2 / 8, 1 / 8, 2 / 8, 3 / 8])
    half = 2 * (0.25 * 0.75 / 8) ** 0.5
    band: Any = next(patch for patch in axes.patches if patch not in axes.containers[0])
    assert band.get_y() == pytest.approx(max(0.0, 0.25 - half))
    assert band.get_y() + band.get_height() == pytest.approx(0.25 + half)
    assert labels(figure) == ["HMC", "uniform, ± two standard errors of 8 targets"]


def test_a_weight_of_a_transform_counts_as_copies():
    values, weights = rng().uniform(size=60), np.arange(60) % 4
    actual, copied = (
        [patch.get_height() for patch in drawn(figure)[0].containers[0]]  # type: ignore[attr-defined]
        for figure in (
            figures.pit_histogram("HMC", values, weights=weights),
            figures.pit_histogram("HMC", values.repeat(weights)),
        )
    )
    assert len(actual) == 9
    np.testing.assert_allclose(actual, copied)


@pytest.mark.parametrize(("widest", "axis"), [(2.0, "linear"), (100.0, "log")])
def test_errors_lie_between_lines_of_their_standard_deviations(widest: float, axis: str):
    scale = np.geomspace(1, widest, 40)
    errors = scale * np.where(np.arange(40) % 2, 1.0, -1.0)
    figure = figures.errors_by_scale("HMC", errors, scale)
    (axes,) = drawn(figure)
    assert axes.get_xscale() == axis
    np.testing.assert_allclose(line(axes, 0), [scale, errors])
    for index, times in ((1, -1), (2, 1), (3, -2), (4, 2)):
        np.testing.assert_allclose(line(axes, index)[1], times * line(axes, index)[0])
    stated, actual = line(axes, 5)  # two groups, in each of which every error is one standard deviation
    np.testing.assert_allclose(stated, actual)
    np.testing.assert_allclose(stated, [np.sqrt(np.mean(half**2)) for half in np.split(scale, 2)])
    few = figures.errors_by_scale("HMC", errors[:9], scale[:9])
    drawn(few)
    assert "root mean square error of a group" not in labels(few)


def test_residuals_have_the_mean_and_the_spread_of_their_groups():
    predicted, scale = np.arange(40.0), np.repeat([1.0, 3.0], 20)
    left = np.where(np.arange(40) % 2, 1.0, -1.0) + np.repeat([0.0, 2.0], 20)
    low, high = predicted - 2.5, predicted + 2.5
    figure = figures.residuals("HMC", predicted + left, predicted, low=low, high=high, scale=scale, units="EUR")
    (axes,) = drawn(figure)
    inside = np.abs(left) <= 2.5
    np.testing.assert_allclose(line(axes, 0), [[9.5, 29.5], [0.0, 2.0]])
    np.testing.assert_allclose(line(axes, 1), [predicted[inside], left[inside]])
    np.testing.assert_allclose(line(axes, 2), [predicted[~inside], left[~inside]])
    (band,) = axes.collections
    edge = np.asarray(band.get_paths()[0].vertices)
    for x, half in ((0.0, 2.0), (39.0, 6.0)):  # two standard deviations of each group, from end to end
        np.testing.assert_allclose(np.unique(edge[edge[:, 0] == x, 1]), [-half, half])
    assert axes.get_ylabel() == "observed − predicted\n(EUR)"
    few = figures.residuals("HMC", left[:5], predicted[:5], low=low[:5], high=high[:5], scale=scale[:5])
    drawn(few)
    assert "mean of a group" not in labels(few)
