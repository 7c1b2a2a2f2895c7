"""Dots, a row for each method: several questions side by side, measures against a reference, means over data sets."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from torchbayes.checks import check_choice, check_entries, check_kind, check_numbers, check_text, seen
from torchbayes.report.figures.curves import spread_of
from torchbayes.report.style import (
    FAINT,
    INK,
    QUIET,
    Better,
    Look,
    as_array,
    check_pairs,
    check_panels,
    far_apart,
    house_style,
    legend_above,
    log_scale,
    looks,
    metric_label,
    new_figure,
    note_below,
    panel_grid,
    panel_title,
    share_axis,
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
            handles[floor] = _floor(axes, np.asarray(panel.floors), width=1.2)
        for name, ends in panel.values.items():
            _dot(axes, heights[name], ends, drawn[name], full=name in panel.best or not panel.best)
        for name in (name for name in heights if name not in panel.values):
            _number(axes, heights[name], "–", full=False)
        _finish(axes, panel)
    _name_rows(grid[0], heights)
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


def _name_rows(axes: Axes, heights: Mapping[str, int]) -> None:
    """Write the names of the rows, from the top down, beside the first of the panels that share them."""
    axes.set_yticks(list(heights.values()), list(heights))
    axes.set_ylim(-len(heights) + 0.4, 0.6)


def _floor(axes: Axes, values: np.ndarray, *, width: float) -> Any:
    """Draw a floor, a band over its values, and return the line at their mean."""
    axes.axvspan(values.min(), values.max(), color=FAINT, alpha=0.6, linewidth=0)
    return axes.axvline(float(values.mean()), color=INK, linewidth=width)


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


@house_style
def metric_dots(
    datasets: Mapping[str, Mapping[str, Any]],
    metric: str,
    *,
    published: Mapping[str, Mapping[str, tuple[float, float]]] | None = None,
    over: str = "splits",
    better: Better | None = None,
) -> Figure:
    """Draw the mean of a metric and two standard errors for every method, one panel per data set.

    Methods are from top to bottom in the order given.

    Args:
        datasets: data set -> {method: values per split, shape (R,)}.
        metric: Name of the metric.
        published: data set -> {source: (value, half-width of its error bar as published)}, drawn hollow and below.
        over: What the R repeats are.
        better: Direction of a metric that is not among the known ones.
    """
    check_panels(datasets=datasets)
    check_entries({f"datasets[{name!r}]": values for name, values in datasets.items()}, check_panels)
    check_text(metric=metric, over=over)
    published = {} if published is None else published
    check_kind(Mapping, "a mapping", published=published)
    methods = list(dict.fromkeys(name for values in datasets.values() for name in values))
    sources = list(dict.fromkeys(name for values in published.values() for name in values))
    heights = {name: -index for index, name in enumerate([*methods, *sources])}
    drawn = looks(methods)
    longest = max(map(len, heights)) * 0.065
    each = (1.9, 0.23 * len(heights) + 0.65)
    figure, grid = panel_grid(len(datasets), 4, each=each, beside=(longest, 0.45), least=4.0, sharey=True)
    for axes, (dataset, values) in zip(grid.flat, datasets.items(), strict=False):
        _dots_panel(axes, values, published.get(dataset, {}), heights, drawn)
        panel_title(axes, dataset)
    _name_rows(grid[0, 0], heights)
    bars = any(bar for values in published.values() for _, bar in values.values())
    hollow = [f"hollow: published value{' with its published error bar' if bars else ''}"] if sources else []
    note_below(figure, metric_label(metric, better), f"mean over {over} ± two standard errors", *hollow)
    return figure


def _dots_panel(
    axes: Axes,
    values: Mapping[str, Any],
    published: Mapping[str, tuple[float, float]],
    heights: Mapping[str, int],
    drawn: Mapping[str, Look],
) -> None:
    for name, repeats in values.items():
        look = drawn[name]
        mean, low, high = spread_of(as_array(repeats, 1, f"values of {name}"), "sem")
        axes.hlines(heights[name], low, high, color=look.colour, linewidth=1.8)
        axes.plot(mean, heights[name], color=look.colour, marker=look.marker, markersize=6)
    for name, (value, half) in published.items():
        axes.axvline(value, color=QUIET, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
        axes.hlines(heights[name], value - half, value + half, color=QUIET, linewidth=1.2)
        axes.plot(value, heights[name], color=QUIET, marker="D", markerfacecolor="white", markersize=5)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.12)
    axes.locator_params(axis="x", nbins=4)


@house_style
def fidelity_dots(
    panels: Mapping[str, Mapping[str, float]],
    *,
    floors: Mapping[str, Any] | None = None,
    better: Mapping[str, Better] | None = None,
    among: str = "ways to halve the chains of the reference",
    intervals: Mapping[str, Mapping[str, tuple[float, float]]] | None = None,
) -> Figure:
    """Draw how close each method is to a reference, one panel per measure, with the floor as a line.

    Methods are from top to bottom in the order given.

    Args:
        panels: measure -> {method: value}.
        floors: measure -> how near another sample of the reference would come, shape (R,): a line at their mean, a
            band from the smallest to the largest.
        better: measure -> which way is closer.
        among: What the R values of a floor are.
        intervals: measure -> {method: (low, high)}, drawn as lines.
    """
    floors, better, intervals = floors or {}, better or {}, intervals or {}
    check_panels(panels=panels)
    check_kind(Mapping, "a mapping", floors=floors, better=better, intervals=intervals)
    check_text(among=among)
    for measure, values in panels.items():
        check_entries({f"panels[{measure!r}]": values}, check_panels)
        check_entries({f"panels[{measure!r}][{name!r}]": value for name, value in values.items()}, check_numbers)
    for option, given in (("floors", floors), ("intervals", intervals)):
        if unknown := sorted(set(given) - set(panels)):
            raise ValueError(f"`panels` must hold the measures of `{option}`; got {option} of {', '.join(unknown)}.")
    methods = list(dict.fromkeys(name for values in panels.values() for name in values))
    drawn, heights = looks(methods), {name: -index for index, name in enumerate(methods)}
    width = max(map(len, methods), default=0) * 0.075 + 2.6 * len(panels)
    figure = new_figure(max(width, 5.4), 0.27 * len(methods) + 1.25)
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    handles: dict[str, Any] = {}
    for axes, (measure, values) in zip(grid, panels.items(), strict=True):
        if measure in floors:
            floor = as_array(floors[measure], 1, f"floor of {measure}")
            handles[f"floor: {len(floor)} {among}"] = _floor(axes, floor, width=1.3)
        for name, value in values.items():
            if name in intervals.get(measure, {}):
                axes.hlines(heights[name], *intervals[measure][name], color=drawn[name].colour, linewidth=1.6)
            axes.plot(value, heights[name], color=drawn[name].colour, marker=drawn[name].marker, markersize=6.5)
        axes.set_xlabel(metric_label(measure, better.get(measure)).replace(", ", "\n"))
        if far_apart(values.values(), [end for ends in intervals.get(measure, {}).values() for end in ends]):
            log_scale(axes)
            axes.set_xlabel(f"{axes.get_xlabel()}, log axis")
        else:
            axes.locator_params(axis="x", nbins=5)
        share_axis(axes.xaxis, measure)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.margins(x=0.12)
    _name_rows(grid[0], heights)
    if handles:
        legend_above(figure, handles)
    return figure
