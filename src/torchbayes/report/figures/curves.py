"""Several measures against one varied quantity: a panel per measure, a line per model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchbayes.checks import check_kind, check_text
from torchbayes.report.figures.comparison import spread_of
from torchbayes.report.style import (
    QUIET,
    as_array,
    check_panels,
    grid_shape,
    house_style,
    legend_above,
    looks,
    new_figure,
    note_below,
    percent_axis,
    remove_spare,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@house_style
def measure_curves(
    panels: Mapping[str, Mapping[str, Any]],
    places: Sequence[float] | Sequence[str],
    *,
    label: str = "",
    over: str = "seeds",
    levels: Mapping[str, tuple[str, float]] | None = None,
    percent: Collection[str] = (),
    mark: tuple[str, float | str] | None = None,
) -> Figure:
    """Draw measures of several models at the same places, the mean over repeats with a band of two standard errors.

    Args:
        panels: measure -> {model: values of shape (P, R)}; R repeats are averaged.
        places: Positions of the P values: numbers, or names that are spaced evenly.
        label: What the places are.
        over: What the R repeats are.
        levels: measure -> (name, value) of a level to compare with, drawn dashed.
        percent: Measures that are shares, written as per cent from 0 on; include the label if the places are shares.
        mark: (name, place) of a place to point out in every panel, drawn dotted.
    """
    levels = {} if levels is None else levels
    check_panels(panels=panels)
    check_kind(Mapping, "a mapping", levels=levels)
    check_text(label=label, over=over)
    check_kind((list, tuple, set, frozenset), "measures", percent=percent)
    check_kind((Sequence, np.ndarray), "numbers or names", places=places)
    unknown = sorted({*levels, *percent} - {*panels, label})
    if unknown:
        raise ValueError(f"`panels` must hold every measure of `levels` and `percent`; missing: {', '.join(unknown)}.")
    drawn = looks(name for values in panels.values() for name in values)
    rows, columns = grid_shape(len(panels), widest=3 if len(panels) % 2 else 2)
    figure = new_figure(max(3.2 * columns, 4.8), 2.5 * rows + 0.9)
    grid = figure.subplots(rows, columns, squeeze=False)
    handles: dict[str, Any] = {}
    repeats: set[int] = set()
    for axes, (measure, values) in zip(grid.flat, panels.items(), strict=False):
        for name, repeated in values.items():
            array = as_array(repeated, 2, f"{measure} of {name}")
            if len(array) != len(places):
                raise ValueError(f"{measure} of {name} must have {len(places)} `places`; got {len(array)}.")
            repeats.add(array.shape[1])
            handles[name] = _line(axes, places, array, drawn[name])
        if measure in levels:
            title, level = levels[measure]
            handles[title] = axes.axhline(level, color=QUIET, linewidth=1.1, linestyle=(0, (4, 2)))
        if mark is not None:
            name, at = _place(places, mark)
            handles[name] = axes.axvline(at, color=QUIET, linewidth=1.1, linestyle=(0, (1, 2)))
        axes.set_ylabel(measure.replace(", ", "\n"))
        _per_cent(axes, measure in percent, label in percent)
    remove_spare(grid, len(panels))
    notes = [label] if label else []
    if repeats != {1}:
        notes.append(f"mean over {max(repeats)} {over}, band ± two standard errors")
    note_below(figure, *notes)
    legend_above(figure, handles)
    return figure


def _place(places: Sequence[float] | Sequence[str], mark: tuple[str, float | str]) -> tuple[str, float]:
    """Return the name of a marked place, and its position on the horizontal axis."""
    if not isinstance(mark, tuple) or len(mark) != 2 or not isinstance(mark[0], str):
        raise TypeError(f"`mark` must be a name and one of the `places`, such as ('peak', 3); got {mark!r}.")
    name, wanted = mark
    if wanted not in places:
        raise ValueError(f"`mark` must be at one of the `places`, {', '.join(map(str, places))}; got {wanted!r}.")
    return name, float(list(places).index(wanted) if isinstance(wanted, str) else wanted)


def _per_cent(axes: Axes, vertical: bool, horizontal: bool) -> None:
    """Write the axes that hold shares as per cent, the vertical one from 0 on."""
    if vertical:
        percent_axis(axes.yaxis)
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    if horizontal:
        percent_axis(axes.xaxis)


def _line(axes: Axes, places: Sequence[float] | Sequence[str], array: np.ndarray, look: Any) -> Any:
    """Draw and return the line of one model; names of places become ticks."""
    named = isinstance(places[0], str)
    at = np.arange(len(places), dtype=float) if named else np.asarray(places, dtype=float)
    mean, low, high = spread_of(array, "sem")
    if array.shape[1] > 1:
        axes.fill_between(at, low, high, color=look.colour, alpha=0.13, linewidth=0)
    if named:
        axes.set_xticks(at, [str(place) for place in places])
        axes.margins(x=0.1)
    return axes.plot(at, mean, color=look.colour, marker=look.marker)[0]
