"""The sections of an evaluation: tables and pictures of made-up predictions whose numbers are known."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import torchbayes as tb
from torchbayes import likelihoods
from torchbayes.assess.intervals import Numbers
from torchbayes.data import Data, Pair
from torchbayes.data.base import Standardise
from torchbayes.report.evaluation import classification, confusions_table, coverage, regression, transforms


def data_of(inputs: Tensor, targets: Tensor, classes: tuple[str, ...] = ()) -> Data:
    units = None if classes else Standardise(torch.tensor([10.0]), torch.tensor([2.0]))
    pair, task = Pair(inputs, targets), "classification" if classes else "regression"
    return Data("made up", task, pair, pair, classes, Standardise.identity(), units, "made up for a test")


def judged(probs: Tensor, targets: Tensor, shape: tuple[int, ...] = (4,)):
    data = data_of(torch.rand(len(targets), *shape), targets, tuple(f"c{k}" for k in range(probs.shape[-1])))
    return classification("SWAG", data, tb.evaluate(tb.Predictive.from_probs(probs), targets))


PROBS = torch.tensor([[0.9, 0.1, 0.0], [0.4, 0.35, 0.25], [0.2, 0.2, 0.6], [0.1, 0.8, 0.1]])


def test_the_least_certain_rows_are_listed_by_number():
    tables, drawn, remarks = judged(PROBS, torch.tensor([0, 1, 2, 0]))
    assert list(drawn) == ["reliability", "entropy", "referral", "confusion"]
    assert not remarks
    (table,) = tables
    rows = [[cell.text for cell in row] for row in table.cells]
    assert [row[0] for row in rows] == ["1", "2", "3", "0"]
    entropy = -sum(p * math.log(p) for p in (0.4, 0.35, 0.25))
    assert rows[0] == ["1", "c1", "c0", "40.0 %", "35.0 %", f"{entropy:.3f}", "0.000"]
    assert rows[2][1:5] == ["c0", "c1", "80.0 %", "10.0 %"]
    assert drawn["entropy"].caption.startswith("2 right and 2 wrong predictions")


def test_images_are_shown_as_images():
    tables, drawn, _ = judged(PROBS, torch.tensor([0, 1, 2, 0]), shape=(1, 5, 5))
    assert not tables
    assert "Rows of the test set, from 0: 1, 2, 3, 0." in drawn["uncertain_images"].caption


@pytest.mark.parametrize("right", [True, False])
def test_predictions_that_are_all_right_or_all_wrong_have_pictures(right: bool):
    targets = PROBS.argmax(-1)
    _, drawn, _ = judged(PROBS, targets if right else (targets + 1) % 3)
    assert drawn["entropy"].caption.startswith("4 right and 0 wrong" if right else "0 right and 4 wrong")


def test_many_classes_have_a_table_of_confusions():
    probs = torch.full((6, 25), 0.01)
    for row, predicted in enumerate([3, 3, 3, 7, 0, 1]):
        probs[row, predicted] = 0.76
    tables, drawn, _ = judged(probs, torch.tensor([5, 5, 3, 5, 0, 2]))
    assert "confusion" not in drawn
    rows = [[cell.text for cell in row] for row in tables[0].cells]
    assert rows == [["c5", "c3", "2", "66.7 %"], ["c2", "c1", "1", "100.0 %"], ["c5", "c7", "1", "33.3 %"]]
    assert confusions_table(torch.eye(3), ["a", "b", "c"]) is None


def test_binary_labels_in_floating_point_are_classes():
    predictive = tb.Predictive(torch.tensor([[2.0, -1.0, 0.3]])[..., None], likelihoods.Bernoulli())
    targets = torch.tensor([1.0, 0.0, 0.0])
    data = data_of(torch.rand(3, 4), targets, ("no", "yes"))
    (table,), drawn, _ = classification("SWAG", data, tb.evaluate(predictive, targets))
    assert "confusion" in drawn
    assert [cell.text for cell in table.cells[0]][:3] == ["2", "no", "yes"]


def test_soft_labels_and_none_are_said():
    predictive = tb.Predictive(PROBS.log()[None], likelihoods.Categorical())
    soft = torch.full((4, 3), 1 / 3)
    data = data_of(torch.rand(4, 4), torch.zeros(4), ("a", "b", "c"))
    actual = tb.evaluate(predictive, soft)
    assert actual.labels is not None
    torch.testing.assert_close(actual.labels, soft)
    tables, drawn, (said,) = classification("SWAG", data, actual)
    assert (tables, list(drawn)) == ([], ["reliability", "referral"])
    assert said == "The labels are soft, so there is no table of confusions."


def test_places_of_a_sequence_are_no_rows():
    outputs = torch.randn(1, 3, 5, 2, generator=torch.Generator().manual_seed(0))
    targets = torch.ones(3, 5, dtype=torch.int64)
    targets[0, :2] = -100
    actual = tb.evaluate(tb.Predictive(outputs, likelihoods.Categorical(ignore_index=-100)), targets)
    assert actual.labels is not None
    assert actual.labels.tolist() == [1] * 13
    data = data_of(torch.rand(3, 5), targets, ("a", "b"))
    tables, drawn, _ = classification("SWAG", data, actual)
    assert not tables
    assert "confusion" in drawn


def numbers_of(levels: list[float], scale: list[float] | None = None) -> Numbers:
    column = torch.tensor(levels, dtype=torch.float64)[:, None]
    spread = torch.ones_like(column) if scale is None else torch.tensor(scale, dtype=torch.float64)[:, None]
    weights = torch.ones(len(levels), dtype=torch.float64)
    return Numbers(
        0.5 + 0 * column, 0 * column, spread, low=column - 2, high=column + 2, levels=column, weights=weights
    )


def test_coverage_is_the_share_of_levels_that_are_reached():
    levels, shares = coverage(numbers_of([0.125, 0.505, 0.505, 0.995]))
    assert levels[[0, 50, 100]].tolist() == [0.0, 0.5, 1.0]
    assert shares[[0, 12, 13, 50, 51, 99, 100]].tolist() == [0.0, 0.0, 0.25, 0.25, 0.75, 0.75, 1.0]


def test_coverage_weighs_rows():
    actual = numbers_of([0.2, 0.6])
    weighed = Numbers(**{**vars(actual), "weights": torch.tensor([1.0, 3.0]).double()})
    assert coverage(weighed)[1][[10, 30, 70]].tolist() == [0.0, 0.25, 1.0]


def test_a_regression_is_drawn_in_raw_units():
    targets = torch.zeros(3, 1)
    _, drawn, remarks = regression(
        "HMC", data_of(torch.rand(3, 4), targets), numbers_of([0.1, 0.2, 0.3], [1.0, 2.0, 3.0])
    )
    assert list(drawn) == ["predicted", "coverage", "residuals", "errors"]
    assert not remarks
    image: Any = drawn["predicted"].image
    assert image.axes[0].lines[0].get_xdata().tolist() == [11.0] * 3  # 10 + 2 · 0.5
    assert image.axes[0].lines[0].get_ydata().tolist() == [10.0] * 3
    image = drawn["errors"].image
    assert image.axes[0].lines[0].get_xdata().tolist() == [2.0, 4.0, 6.0]
    assert image.axes[0].lines[0].get_ydata().tolist() == [1.0] * 3
    assert "whole numbers" not in drawn["coverage"].caption


def test_what_a_regression_lacks_is_said():
    data = data_of(torch.rand(3, 4), torch.zeros(3, 1))
    _, drawn, (said,) = regression("HMC", data, numbers_of([0.1, 0.2, 0.3]))
    assert list(drawn) == ["predicted", "coverage", "residuals"]
    assert "is the same for all test rows, 2 (in units of the target)" in said
    _, drawn, (said,) = regression("HMC", data, numbers_of([0.1, 0.2, 0.3], [math.inf] * 3))
    assert list(drawn) == ["predicted", "coverage"]
    assert said == "Some predictive variances are 0 or not finite, so errors are not drawn against them."
    actual = numbers_of([0.1, 0.2, 0.3])
    _, drawn, said = regression("HMC", data, Numbers(**{**vars(actual), "mean": math.nan * actual.mean}))
    assert list(drawn) == ["coverage"]
    assert "targets have no mean" in said[0]


def test_counts_are_told_from_other_numbers():
    actual = numbers_of([0.1, 0.2])
    whole = Numbers(**{**vars(actual), "targets": torch.tensor([[1.0], [3.0]]).double()})
    _, drawn, _ = regression("HMC", data_of(torch.rand(2, 4), torch.zeros(2, 1)), whole)
    assert "Targets are whole numbers" in drawn["coverage"].caption


def test_transforms_of_real_targets_are_drawn_and_weights_count():
    outputs, targets = torch.randn(3, 40, 2), torch.randn(40, 2)
    likelihood, weights = likelihoods.Weighted(likelihoods.Gaussian(1.0)), torch.arange(40) % 3
    actual = tb.evaluate(tb.Predictive(outputs, likelihood), (targets, weights))
    image: Any = transforms("SWAG", actual)["pit"].image
    heights = torch.tensor([bar.get_height() for bar in image.axes[0].containers[0]])
    assert len(heights) == 7  # 39 rows of 2 targets each, ten or more in a bin
    assert actual.pit is not None
    first = (actual.pit < 1 / 7).double().sum(1) @ weights[weights > 0].double() / 78
    assert float(heights[0]) == pytest.approx(float(first))
    assert not transforms("SWAG", tb.evaluate(tb.Predictive.from_probs(PROBS), torch.tensor([0, 1, 2, 0])))
