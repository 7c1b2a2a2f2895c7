"""Figures of a distribution over functions: functions of one input, and correlations between inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchbayes.checks import check_counts, check_entries, check_kind, check_text
from torchbayes.report.style import (
    INK,
    QUIET,
    as_array,
    as_positions,
    check_panels,
    house_style,
    legend_above,
    note_below,
    panel_grid,
    panel_title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINE = "#0072b2"
_BANDS = ((5, 95, 0.16), (25, 75, 0.3))  # percentiles, opacity


@house_style
def function_draws(
    functions: Mapping[str, Any], x: Any, *, shown: int = 8, label: str = "input", output_label: str = "output"
) -> Figure:
    """Draw functions of one input: some of them, and bands that hold half and nine tenths of all at every input.

    Args:
        functions: name -> values of S drawn functions, (S, P), such as one output of `prior_predictive`; a panel each,
            with a vertical axis of its own.
        x: Inputs, (P,), increasing.
        shown: How many functions are drawn, the first ones.
        label: The input, with its unit.
        output_label: The output, with its unit.
    """
    check_panels(functions=functions)
    check_counts(shown=shown)
    check_text(label=label, output_label=output_label)
    x = as_positions("x", x)
    arrays = {name: as_array(values, 2, f"functions of {name}", finite=True) for name, values in functions.items()}
    for name, values in arrays.items():
        if values.shape[1] != len(x):
            raise ValueError(f"`functions`: {name!r} must have {len(x)} columns, those of `x`; got {values.shape}.")
    figure, grid = panel_grid(len(arrays), 3, each=(2.6, 2.3), beside=(0.4, 0.8), least=4.6, sharex=True)
    handles: dict[str, Any] = {}
    for axes, (name, values) in zip(grid.flat, arrays.items(), strict=False):
        for low, high, opacity in _BANDS:
            ends = np.percentile(values, [low, high], axis=0)
            handles[f"{high - low} % of all"] = axes.fill_between(x, *ends, color=INK, alpha=opacity, linewidth=0)
        for line in values[:shown]:
            (handles["a function"],) = axes.plot(x, line, color=_LINE, linewidth=0.9, alpha=0.9)
        (handles["median"],) = axes.plot(x, np.median(values, axis=0), color=INK, linewidth=1.2, linestyle=(0, (4, 2)))
        panel_title(axes, name)
        axes.margins(x=0)
    for axes in grid[:, 0]:
        axes.set_ylabel(output_label)
    note_below(figure, label)
    legend_above(figure, handles)
    return figure


@house_style
def correlation_maps(
    matrices: Mapping[str, Any],
    labels: Any = None,
    *,
    class_names: Sequence[str] | None = None,
    label: str = "correlation of outputs",
) -> Figure:
    """Draw correlations between inputs as heat maps, the inputs ordered by class.

    One colour bar runs from the lowest value of all panels, or from 0, to 1.

    Args:
        matrices: title -> correlations (B, B), such as `PriorPredictive.correlation`; a panel each. NaN is left white.
        labels: Class of each input, (B,), whole numbers; None keeps the order and draws no classes.
        class_names: Names of the classes, in increasing order of their numbers; the numbers if None.
        label: What is drawn.
    """
    check_panels(matrices=matrices)
    check_text(label=label)
    grids = {title: as_array(values, 2, f"matrix of {title}") for title, values in matrices.items()}
    size = len(next(iter(grids.values())))
    for title, values in grids.items():
        if values.shape != (size, size):
            raise ValueError(f"`matrices`: {title!r} must be square, of {size} inputs; got shape {values.shape}.")
    order, names, starts = _by_class(labels, class_names, size)
    figure, axes_RC = panel_grid(len(grids), 3, each=(2.6, 2.6), beside=(1.2, 0.5))
    lowest = min(float(np.nanmin(values, initial=0.0)) for values in grids.values())
    drawn: Any = None
    for axes, (title, values) in zip(axes_RC.flat, grids.items(), strict=False):
        drawn = axes.imshow(
            values[np.ix_(order, order)], vmin=lowest, vmax=1.0, cmap="viridis", interpolation="nearest"
        )
        panel_title(axes, title)
        _mark(axes, names, starts)
    bar = figure.colorbar(drawn, ax=list(axes_RC.flat)[: len(grids)], shrink=0.85, aspect=24)
    bar.set_label(label)
    bar.outline.set_visible(False)
    return figure


def _by_class(labels: Any, class_names: Any, size: int) -> tuple[np.ndarray, list[str], np.ndarray]:
    """Return the order of the inputs, the class names, and the start of each class with the end of the last."""
    if labels is None:
        return np.arange(size), [], np.array([0, size])
    numbers = as_array(labels, 1, "labels", finite=True)
    if len(numbers) != size:
        raise ValueError(f"`labels` must be one class for each of the {size} inputs; got {len(numbers)}.")
    classes, counts = np.unique(numbers, return_counts=True)
    names = [f"{number:g}" for number in classes]
    if class_names is not None:
        check_kind((list, tuple), "a list of names", class_names=class_names)
        check_entries({f"class_names[{index}]": name for index, name in enumerate(class_names)}, check_text)
        if len(class_names) != len(classes):
            raise ValueError(f"`class_names` must name the {len(classes)} classes; got {list(class_names)}.")
        names = list(class_names)
    return np.argsort(numbers, kind="stable"), names, np.concatenate([[0], np.cumsum(counts)])


def _mark(axes: Axes, names: Sequence[str], starts: np.ndarray) -> None:
    """Write the classes along both axes, and draw lines between them."""
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    if not names:
        axes.set(xticks=[], yticks=[])
        return
    middles = (starts[:-1] + starts[1:] - 1) / 2
    axes.set_xticks(middles, names)
    axes.set_yticks(middles, names)
    axes.tick_params(length=0)
    for between in starts[1:-1] - 0.5:
        axes.axvline(between, color="white", linewidth=0.8)
        axes.axhline(between, color="white", linewidth=0.8)
    axes.set_xlabel("class", color=QUIET)
