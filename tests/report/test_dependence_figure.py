"""The figure of partial dependence: what is drawn is what was given."""

from __future__ import annotations

import numpy as np

from tests.report.helpers import drawn, labels, line, rng
from torchbayes.report import figures

DRAWS = rng().normal(size=(41, 4, 1)).cumsum(1)


def test_numbers_are_a_line_with_its_band_and_what_is_missing_stands_beside_it():
    at = np.array([0.0, 1.0, 4.0, np.nan])
    (axes,) = drawn(figures.partial_dependence({"age": (at, DRAWS, [0.5, 2.0])}, target_label="mean rent"))
    np.testing.assert_allclose(line(axes, 0), [at[:3], DRAWS[:, :3, 0].mean(0)])
    (band, bar) = axes.collections
    edge = np.asarray(band.get_paths()[0].vertices)
    for g in range(3):
        there = edge[edge[:, 0] == at[g], 1]
        ends = np.percentile(DRAWS[:, g, 0], [2.5, 97.5])
        np.testing.assert_allclose([there.min(), there.max()], ends)
    (segment,) = bar.get_segments()  # type: ignore[attr-defined]
    np.testing.assert_allclose(segment[:, 1], np.percentile(DRAWS[:, 3, 0], [2.5, 97.5]))
    assert segment[0, 0] > 4
    assert [text.get_text() for text in axes.texts] == ["missing"]
    np.testing.assert_allclose(line(axes, -1)[0], [0.5, 2.0])
    assert axes.get_ylabel() == "mean rent"


def test_names_are_points_with_their_shares():
    towns = np.array(["Ulm", "Bonn", "a town with a very long name", "missing"], dtype=object)
    panels = {"town": (towns, DRAWS, [0.5, 0.3, 0.15, 0.05])}
    (axes,) = drawn(figures.partial_dependence(panels, target_label="probability of yes"))
    np.testing.assert_allclose(line(axes, 0)[1], DRAWS[..., 0].mean(0))
    said = [label.get_text() for label in axes.get_xticklabels()]
    assert [said[0], said[3]] == ["Ulm\n50 %", "missing\n5 %"]
    assert len(said[2]) < 22


def test_dates_and_several_curves_have_axes_and_a_legend():
    days = np.datetime64("2024-01-01", "s") + np.arange(4) * np.timedelta64(40, "D")
    draws = np.repeat(DRAWS, 3, axis=2)
    panels = {"day": (days, draws, days[1:3]), "age": (np.arange(4.0), draws, [1.0])}
    figure = figures.partial_dependence(panels, ["red", "green", "blue"], target_label="probability of the class")
    first, _ = drawn(figure)
    assert labels(figure) == ["red", "green", "blue"]
    assert any("Feb" in label.get_text() for label in first.get_xticklabels())
    single = figures.partial_dependence({"age": (np.arange(4.0), DRAWS[:1], [1.0])})
    (axes,) = drawn(single)
    edge = np.asarray(axes.collections[0].get_paths()[0].vertices)
    np.testing.assert_allclose(np.unique(edge[:, 1]), np.unique(DRAWS[0]))  # one function has no width
