"""The figures that show all methods at once: what is drawn where."""

import numpy as np
import pytest

from tests.report.helpers import drawn, labels, line, rng
from torchbayes.report import figures, looks

NAN = float("nan")
NLL = {"SWAG": (0.07, 0.05, 0.09), "HMC": (0.06, 0.05, 0.08), "Laplace": (0.31, 0.29, 0.34), "lost": (NAN, NAN, NAN)}


def panels() -> list[figures.Dots]:
    close = {"SWAG": (0.03, 0.02, 0.04), "Laplace": (0.04, NAN, NAN)}
    return [
        figures.Dots("test set", "NLL (nats)", NLL, best=["HMC", "SWAG"]),
        figures.Dots(
            "foreign images", "AUROC", {"HMC": (0.99, 0.98, 1.0), "SWAG": (0.96, 0.95, 0.97)}, "high", ["HMC"]
        ),
        figures.Dots("closeness", "TV", close, floors=[0.02, 0.04]),
    ]


def test_methods_are_ranked_and_dots_lie_at_their_values():
    left, middle, right = axes = drawn(figures.ranked_dots(panels()))
    assert [text.get_text() for text in left.get_yticklabels()] == ["HMC", "SWAG", "Laplace", "lost"]
    heights = {"HMC": 0, "SWAG": -1, "Laplace": -2}
    actual = looks(["SWAG", "HMC", "Laplace", "lost"])
    for dot, name in zip(left.lines, ("SWAG", "HMC", "Laplace"), strict=True):
        np.testing.assert_array_equal(np.asarray(dot.get_data(), dtype=float).ravel(), [NLL[name][0], heights[name]])
        assert (dot.get_color(), dot.get_marker()) == (actual[name].colour, actual[name].marker)
        assert (dot.get_markerfacecolor() == "white") == (name == "Laplace")
    segments = [np.asarray(bar.get_paths()[0].vertices) for bar in left.collections]
    np.testing.assert_array_equal(
        [segment[:, 0] for segment in segments], [NLL[n][1:] for n in ("SWAG", "HMC", "Laplace")]
    )
    assert [text.get_text() for text in left.texts] == ["0.070", "0.060", "0.310", "nan"]
    assert [line(middle, i)[0, 0] for i in range(2)] == [0.99, 0.96]
    assert line(right, 0)[0, 0] == pytest.approx(0.03)  # the floor
    assert len(right.collections) == 1  # an interval that is not known is not drawn
    assert [panel.get_xscale() for panel in axes] == ["log", "linear", "linear"]
    assert left.get_xlabel() == "NLL (nats)\nlower is better, log axis"
    assert middle.get_xlabel() == "AUROC\nhigher is better"


def test_what_no_panel_says_is_not_in_the_legend():
    figure = figures.ranked_dots(panels(), floor="its chains")
    assert labels(figure) == [
        "best, or not significantly different",
        "worse than the best",
        "95 % interval",
        "its chains",
    ]
    assert labels(figures.ranked_dots([figures.Dots("a", "b", {"SWAG": (1.0, NAN, NAN)})])) == []


def test_every_method_has_a_panel_among_all_others():
    values = {name: rng().random((3, 6)) for name in ("single network", "SWAG", "HMC")}
    steps = {name: (mean, mean - low, mean + high) for name, (mean, low, high) in values.items()}
    figure = figures.severity_panels(steps | {"mine": (np.ones(6), None, None)}, "accuracy", reference="HMC", level=0.5)
    axes = drawn(figure)
    assert [panel.get_title() for panel in axes] == [*values, "mine"]
    assert labels(figure) == ["other methods", "HMC"]
    for panel, (mean, low, high) in zip(axes, steps.values(), strict=False):
        np.testing.assert_array_equal(line(panel, -1), [np.arange(6), mean])
        assert len(panel.lines) == len(axes) + 1  # all methods and the level
        band = np.asarray(panel.collections[0].get_paths()[0].vertices)
        np.testing.assert_allclose([band[:, 1].min(), band[:, 1].max()], [low.min(), high.max()])
    assert axes[0].yaxis.get_major_formatter()(0.975, 0) == "97.5 %"
    assert all(label.get_visible() for label in axes[-1].get_xticklabels())


def test_severity_panels_say_what_does_not_fit():
    ones = np.ones(6)
    with pytest.raises(ValueError, match=r"same number of severities; got \[5, 6\]"):
        figures.severity_panels({"a": (ones, None, None), "b": (ones[:5], None, None)}, "NLL")
    with pytest.raises(ValueError, match="'a' has 6 values, and ends of 5 and 6 intervals"):
        figures.severity_panels({"a": (ones, ones[:5], None)}, "NLL")
    with pytest.raises(ValueError, match="`reference` must be one of a; got 'HMC'"):
        figures.severity_panels({"a": (ones, None, None)}, "NLL", reference="HMC")
