"""A figure of one metric against the severity of corruption, a panel for each method, with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from torchbayes.checks import check_kind, check_text
from torchbayes.report.figures.comparison import Better
from torchbayes.report.scales import label_ends, share_axis
from torchbayes.report.style import (
    INK,
    QUIET,
    as_array,
    check_pairs,
    check_panels,
    grid_shape,
    house_style,
    legend_above,
    looks,
    metric_label,
    new_figure,
    note_below,
    panel_title,
    remove_spare,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Steps = tuple[Any, Any, Any]
"""Values at severities 0, 1, ..., and the lower and upper ends of their intervals, (S,) each, or None."""
_OTHERS = "#b4bac4"


@house_style
def severity_panels(
    methods: Mapping[str, Steps],
    metric: str,
    *,
    reference: str | None = None,
    level: float | None = None,
    better: Better | None = None,
) -> Figure:
    """Draw a metric against the severity of corruption, from clean data (0) upwards, a panel for each method.

    Every panel shows the other methods as thin grey lines, and all have the same scales.

    Args:
        methods: name -> (values, lower ends, upper ends), (S,) each, the first of clean data; None for unknown ends.
        metric: Name of the metric; "NLL", "accuracy", "ECE", "Brier" are known with unit and direction.
        reference: A method that is drawn dashed in every panel.
        level: A level to compare with, dotted.
        better: Direction of a metric that is not among the known ones.
    """
    check_panels(methods=methods)
    check_pairs(3, methods=methods)
    check_text(metric=metric)
    check_kind((str, type(None)), "a name", reference=reference)
    check_kind((int, float, type(None)), "a number", level=level)
    if reference is not None and reference not in methods:
        raise ValueError(f"`reference` must be one of {', '.join(methods)}; got {reference!r}.")
    steps = {name: _checked(name, triple) for name, triple in methods.items()}
    lengths = {len(values) for values, *_ in steps.values()}
    if len(lengths) != 1:
        raise ValueError(f"All methods must have the same number of severities; got {sorted(lengths)}.")
    severities = np.arange(lengths.pop())
    rows, columns = grid_shape(len(steps), widest=5)
    figure = new_figure(max(2.15 * columns + 0.4, 3.4), 2.05 * rows + 1.0)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    drawn, handles = looks(steps), {}
    for axes, (name, (values, low, high)) in zip(grid.flat, steps.items(), strict=False):
        for other in (other for other in steps if other not in {name, reference}):
            thin = axes.plot(severities, steps[other][0], color=_OTHERS, linewidth=0.8, zorder=1.5)
            handles["other methods"] = thin[0]
        if reference is not None and name != reference:
            dashed = axes.plot(severities, steps[reference][0], color=INK, linewidth=1.0, linestyle=(0, (4, 2)))
            handles[reference] = dashed[0]
        if level is not None:
            axes.axhline(level, color=QUIET, linewidth=1.0, linestyle=(0, (1, 2)), zorder=1)
        _own(axes, severities, (values, low, high), drawn[name])
        panel_title(axes, name, drawn[name])
    _finish(figure, grid, severities, count=len(steps), metric=metric)
    banded = [bool(np.isfinite(low).any()) for _, low, _ in steps.values()]
    band = ["band: 95 % interval over rows" if all(banded) else "band: 95 % interval over rows, where it is known"]
    figure.supylabel(metric_label(metric, better).replace(", ", "\n"), multialignment="center")
    note_below(figure, "severity of corruption (0: not corrupted)", *(band if any(banded) else []))
    if handles:
        legend_above(figure, handles)
    return figure


def _checked(name: str, given: Steps) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return values and ends as arrays of one length, NaN for unknown ends."""
    values = as_array(given[0], 1, f"values of {name}")
    ends = [np.full(len(values), np.nan) if end is None else as_array(end, 1, f"values of {name}") for end in given[1:]]
    if any(len(end) != len(values) for end in ends):
        raise ValueError(
            f"`methods`: {name!r} has {len(values)} values, and ends of {' and '.join(str(len(e)) for e in ends)} "
            f"intervals. Give as many of each."
        )
    return values, ends[0], ends[1]


def _own(axes: Axes, severities: np.ndarray, steps: tuple[np.ndarray, np.ndarray, np.ndarray], look: Any) -> None:
    """Draw the method of a panel: band and line."""
    values, low, high = steps
    axes.fill_between(severities, low, high, color=look.colour, alpha=0.3, linewidth=0)
    axes.plot(severities, values, color=look.colour, marker=look.marker, markersize=3.8, linewidth=1.3)


def _finish(figure: Figure, grid: np.ndarray, severities: np.ndarray, *, count: int, metric: str) -> None:
    """Set ticks, which the panels share, and remove spare panels."""
    first: Axes = grid[0, 0]
    first.set_xticks(severities, [str(severity) for severity in severities])
    share_axis(first.yaxis, metric)
    label_ends(grid, count)
    remove_spare(grid, count)
