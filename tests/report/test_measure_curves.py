"""Curves of several measures: what is drawn is what was handed over."""

import numpy as np
import pytest

from torchbayes.report import figures, png

VALUES = {"GP": np.array([[1.0, 3.0], [2.0, 2.0], [0.0, 4.0]]), "MLP": np.array([[0.0, 0.2], [1.0, 1.0], [2.0, 2.2]])}


def test_lines_are_means_and_bands_two_standard_errors():
    figure = figures.measure_curves(
        {"evidence": VALUES, "error": VALUES}, (0, 0.5, 1), label="share", percent=["error"]
    )
    assert png(figure, dpi=40).startswith(b"\x89PNG")
    assert len(figure.axes) == 2
    line = figure.axes[0].lines[0]
    np.testing.assert_allclose(np.asarray(line.get_xydata()), [[0, 2], [0.5, 2], [1, 2]])
    band = np.asarray(figure.axes[0].collections[0].get_paths()[0].vertices)[:, 1]
    assert (band.min(), band.max()) == pytest.approx((2 - 4, 2 + 4))  # the last: sd √8, two standard errors 2 √8 / √2
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["GP", "MLP"]
    assert figure.get_supxlabel() == "share\nmean over 2 seeds, band ± two standard errors"
    ticks = figure.axes[1].yaxis.get_major_formatter()
    assert ticks(0.5, 0) == "50 %"


def test_places_may_be_names_and_a_level_is_drawn():
    figure = figures.measure_curves({"evidence": VALUES}, ("a", "b", "c"), levels={"evidence": ("uniform", -2.5)})
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["a", "b", "c"]
    np.testing.assert_array_equal(np.asarray(axes.lines[-1].get_xydata())[:, 1], [-2.5, -2.5])
    assert "uniform" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="must have 2 `places`; got 3"):
        figures.measure_curves({"evidence": VALUES}, (0, 1))
    with pytest.raises(ValueError, match="missing: error"):
        figures.measure_curves({"evidence": VALUES}, (0, 1, 2), percent=["error"])
    with pytest.raises(ValueError, match="at least one entry; got none"):
        figures.measure_curves({}, (0, 1, 2))


@pytest.mark.parametrize(("places", "place", "expected"), [(("a", "b", "c"), "b", 1.0), ((0, 0.5, 4), 4, 4.0)])
def test_a_place_is_marked_in_every_panel(places, place, expected):
    figure = figures.measure_curves({"evidence": VALUES, "error": VALUES}, places, mark=("threshold", place))
    for axes in figure.axes:
        np.testing.assert_array_equal(np.asarray(axes.lines[-1].get_xydata())[:, 0], [expected, expected])
    assert "threshold" in [text.get_text() for text in figure.legends[0].get_texts()]
    with pytest.raises(ValueError, match=r"one of the `places`, .*; got 'z'"):
        figures.measure_curves({"evidence": VALUES}, places, mark=("threshold", "z"))
