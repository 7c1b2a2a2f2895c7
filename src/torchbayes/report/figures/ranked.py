"""A figure that ranks all methods by several questions side by side, each value with its interval."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from torchbayes.checks import check_choice, check_kind, check_text, seen
from torchbayes.report.figures.comparison import Better
from torchbayes.report.scales import far_apart, log_scale
from torchbayes.report.style import (
    FAINT,
    INK,
    QUIET,
    Look,
    as_array,
    check_pairs,
    check_panels,
    house_style,
    legend_above,
    looks,
    new_figure,
    note_below,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Dots:
    """One question of `ranked_dots`.

    Attributes:
        title: The question, in a word or two.
        measure: The quantity that answers it, with its unit: the label of the axis.
        values: method -> (value, lower end, upper end) of its interval; NaN for unknown ends.
        better: Which way is better.
        best: Methods that are drawn full: the best, and those not significantly different from it.
        floors: How near another sample of the reference would come, several values: a line at their mean, a band from
            the smallest to the largest.
    """

    title: str
    measure: str
    values: Mapping[str, tuple[float, float, float]]
    better: Better = "low"
    best: Collection[str] = ()
    floors: Sequence[float] = ()

    def __post_init__(self) -> None:
        check_text(title=self.title, measure=self.measure)
        check_panels(values=self.values)
        check_pairs(3, values=self.values)
        check_choice(("low", "high"), better=self.better)
        check_kind((list, tuple, set, frozenset), "names of methods", best=self.best)
        if len(self.floors):
            as_array(self.floors, 1, "floors", finite=True)
        for name, ends in self.values.items():
            as_array(ends, 1, f"values[{name!r}]")

    @property
    def numbers(self) -> dict[str, float]:
        """Value of each method."""
        return {name: value for name, (value, *_) in self.values.items()}

    def ranked(self) -> list[str]:
        """Return the methods, the best first, and those without a number last."""
        sign = 1 if self.better == "low" else -1
        return sorted(self.values, key=lambda name: (not math.isfinite(v := self.numbers[name]), sign * v))


@house_style
def ranked_dots(panels: Sequence[Dots], *, floor: str = "floor") -> Figure:
    """Draw several questions side by side, a row for each method, ranked by the first question.

    Full markers are the best of a question and those not significantly different from it, hollow ones the others;
    lines are intervals. Numbers stand at the right of each panel. The best method of the first question is on top.

    Args:
        panels: The questions.
        floor: What the floors are, for the legend.
    """
    if not isinstance(panels, list | tuple) or not panels or not all(isinstance(each, Dots) for each in panels):
        raise TypeError(f"`panels` must be a list of figures.Dots, at least one; got {seen(panels)}.")
    check_text(floor=floor)
    drawn = looks(name for panel in panels for name in panel.values)
    order = list(dict.fromkeys([*panels[0].ranked(), *drawn]))
    heights = {name: -row for row, name in enumerate(order)}
    figure = new_figure(max(map(len, order)) * 0.07 + 2.15 * len(panels), 0.29 * len(order) + 1.5)
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    handles = _legend(panels)
    for axes, panel in zip(grid, panels, strict=True):
        if len(panel.floors):
            axes.axvspan(min(panel.floors), max(panel.floors), color=FAINT, alpha=0.6, linewidth=0)
            handles[floor] = axes.axvline(float(np.mean(panel.floors)), color=INK, linewidth=1.2)
        for name, ends in panel.values.items():
            _dot(axes, heights[name], ends, drawn[name], full=name in panel.best or not panel.best)
        for name in (name for name in heights if name not in panel.values):
            _number(axes, heights[name], "–", full=False)
        _finish(axes, panel)
    grid[0].set_yticks(list(heights.values()), list(heights))
    grid[0].set_ylim(-len(order) + 0.4, 0.6)
    if handles:
        legend_above(figure, handles)
    note_below(figure, "methods in the order of the first panel, the best at the top")
    return figure


def _legend(panels: Sequence[Dots]) -> dict[str, Any]:
    """Return legend handles for full and hollow markers, and intervals."""
    from matplotlib.lines import Line2D

    dot = {"color": QUIET, "marker": "o", "linestyle": "none", "markersize": 6}
    handles: dict[str, Any] = {}
    if any(panel.best and set(panel.best) < set(panel.values) for panel in panels):
        handles["best, or not significantly different"] = Line2D([], [], **dot)
        handles["worse than the best"] = Line2D([], [], **dot, markerfacecolor="white")
    if any(math.isfinite(low) for panel in panels for _, low, _ in panel.values.values()):
        handles["95 % interval"] = Line2D([], [], color=QUIET, linewidth=1.8)
    return handles


def _dot(axes: Axes, height: float, ends: tuple[float, float, float], look: Look, *, full: bool) -> None:
    """Draw one value, its interval, and its number at the right edge."""
    value, low, high = ends
    if math.isfinite(low) and math.isfinite(high):
        axes.hlines(height, low, high, color=look.colour, linewidth=1.8)
    if math.isfinite(value):
        axes.plot(
            value, height, color=look.colour, marker=look.marker, linestyle="none",
            markersize=9 if look.marker == "*" else 6.5,
            markerfacecolor=look.colour if full else "white", markeredgewidth=1.3,
        )  # fmt: skip
    _number(axes, height, f"{value:.{3 if abs(value) < 10 else 1}f}", full=full)


def _number(axes: Axes, height: float, text: str, *, full: bool) -> None:
    """Write a number at the right edge of a row."""
    axes.annotate(
        text.replace("-", "−"), (1.0, height), (2, 0), xycoords=axes.get_yaxis_transform(), textcoords="offset points",
        va="center", fontsize=7.5, color=INK, fontweight="bold" if full else "normal",
    )  # fmt: skip


def _finish(axes: Axes, panel: Dots) -> None:
    """Set title, labels and ticks of one panel."""
    axes.set_title(panel.title, fontweight="bold")
    ends = [end for _, *ends in panel.values.values() for end in ends]
    logarithmic = far_apart([*panel.numbers.values(), *panel.floors], ends)
    axes.set_xlabel(f"{panel.measure}\n{panel.better}er is better{', log axis' if logarithmic else ''}")
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.08)
    if logarithmic:
        log_scale(axes)
    else:
        axes.locator_params(axis="x", nbins=4)
