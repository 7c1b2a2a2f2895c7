"""The figure of methods against a reference: what is drawn where."""

import numpy as np
import pytest
from matplotlib.lines import Line2D

from torchbayes.report import figures, png

PANELS = {
    "agreement with HMC": {"SWAG": 0.9, "MultiSWAG": 0.95},
    "total variation to HMC": {"SWAG": 0.12, "MultiSWAG": 0.08},
}


def places(line: Line2D) -> np.ndarray:
    return np.asarray(line.get_data(), dtype=float)


def test_dots_and_floors_lie_where_the_numbers_are():
    figure = figures.fidelity_dots(
        PANELS, floors={"total variation to HMC": [0.03, 0.05]}, better={"total variation to HMC": "low"}
    )
    assert png(figure, dpi=40).startswith(b"\x89PNG")
    left, right = figure.axes
    np.testing.assert_array_equal([places(line) for line in left.lines], [[[0.9], [0.0]], [[0.95], [-1.0]]])
    floor, *dots = right.lines
    np.testing.assert_allclose(places(floor)[0], 0.04)
    np.testing.assert_array_equal([places(line)[0, 0] for line in dots], [0.12, 0.08])
    band = right.patches[0].get_extents().transformed(right.transData.inverted())
    np.testing.assert_allclose([band.x0, band.x1], [0.03, 0.05])
    assert [text.get_text() for text in left.get_yticklabels()] == ["SWAG", "MultiSWAG"]
    assert right.get_xlabel() == "total variation to HMC\nlower is better"
    (legend,) = figure.legends
    assert legend.get_texts()[0].get_text() == "floor: 2 ways to halve the chains of the reference"


def test_intervals_are_lines_and_far_values_are_on_a_logarithmic_axis():
    intervals = {"W1": {"a": (0.9, 1.2)}}
    (axes,) = figures.fidelity_dots({"W1": {"a": 1.0, "b": 9.0}}, intervals=intervals).axes
    (bar,) = axes.collections
    np.testing.assert_array_equal(bar.get_segments()[0], [[0.9, 0], [1.2, 0]])  # pyright: ignore[reportAttributeAccessIssue]
    assert axes.get_xscale() == "log"
    with pytest.raises(ValueError, match="got intervals of TV"):
        figures.fidelity_dots({"W1": {"a": 1.0}}, intervals={"TV": {}})


def test_without_a_floor_there_is_no_line_and_no_legend():
    figure = figures.fidelity_dots({"W1": {"a": 1.0, "b": 2.0}})
    assert len(figure.axes[0].lines) == 2
    assert figure.legends == []


@pytest.mark.parametrize(
    ("panels", "floors", "said"),
    [({}, {}, "at least one entry; got none"), (PANELS, {"W1": [1.0]}, "got floors of W1")],
)
def test_what_cannot_be_drawn_is_said(panels, floors, said):
    with pytest.raises(ValueError, match=said):
        figures.fidelity_dots(panels, floors=floors)
