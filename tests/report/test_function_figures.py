"""Pictures of functions: what is drawn is what was given."""

from typing import Any

import numpy as np
import pytest

from tests.report.helpers import drawn, labels, line, rng
from torchbayes.report import figures


def test_functions_are_drawn_with_bands_of_all_of_them():
    x, values = np.linspace(-1, 1, 7), rng().normal(size=(50, 7))
    figure = figures.function_draws(
        {"narrow": values, "wide": 3 * values}, x, shown=4, label="time", output_label="height"
    )
    axes = drawn(figure)
    assert [panel.get_title() for panel in axes] == ["narrow", "wide"]
    for factor, panel in zip((1, 3), axes, strict=True):
        assert len(panel.lines) == 5
        np.testing.assert_allclose(line(panel, 2), [x, factor * values[2]])
        np.testing.assert_allclose(line(panel, 4), [x, factor * np.median(values, 0)])
        for band, (low, high) in zip(panel.collections, ((5, 95), (25, 75)), strict=True):
            corners = np.asarray(band.get_paths()[0].vertices, dtype=float)
            ends = np.percentile(factor * values, [low, high], axis=0)
            for edge in ends:
                for point in zip(x, edge, strict=True):
                    assert np.abs(corners - np.array(point)).sum(1).min() < 1e-9
    assert labels(figure) == ["90 % of all", "50 % of all", "a function", "median"]
    assert axes[0].get_ylabel() == "height"


def test_correlations_are_ordered_by_class():
    matrix, classes = rng().uniform(-0.2, 1, (5, 5)), np.array([7, 2, 7, 2, 4])
    figure = figures.correlation_maps({"one": matrix, "two": np.eye(5)}, classes)
    axes = drawn(figure)
    order = [1, 3, 4, 0, 2]
    image: Any = axes[0].images[0]
    np.testing.assert_allclose(image.get_array(), matrix[np.ix_(order, order)])
    assert image.get_clim() == (pytest.approx(matrix.min()), 1.0)
    assert axes[1].images[0].get_clim() == image.get_clim()
    assert [text.get_text() for text in axes[0].get_xticklabels()] == ["2", "4", "7"]
    np.testing.assert_allclose(axes[0].get_xticks(), [0.5, 2, 3.5])
    assert [float(np.asarray(lines.get_xdata())[0]) for lines in axes[0].lines[::2]] == [1.5, 2.5]


def test_names_of_classes_and_no_classes_at_all():
    named = drawn(figures.correlation_maps({"one": np.eye(3)}, [0, 1, 1], class_names=["cat", "dog"]))
    assert [text.get_text() for text in named[0].get_yticklabels()] == ["cat", "dog"]
    plain = drawn(figures.correlation_maps({"one": np.full((3, 3), np.nan)}))
    assert len(plain[0].lines) == 0
    assert not len(plain[0].get_xticks())
