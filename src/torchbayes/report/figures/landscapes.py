"""Loss surfaces over planes in weight space: contours, and heights in three dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from torchbayes.checks import check_choice, check_kind, check_text
from torchbayes.report.style import INK, as_array, check_panels, grid_shape, house_style, new_figure, remove_spare

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEVELS = 12
_HIGHEST = 0.9  # quantile of the values at the last level, because losses explode away from solutions


@house_style
def loss_surfaces(
    surfaces: Mapping[str, Any],
    x: Any,
    y: Any,
    *,
    marks: Mapping[str, Any] | None = None,
    curve: Any = None,
    kind: Literal["contour", "3d"] = "contour",
    label: str = "loss",
) -> Figure:
    """Draw values over a plane, a panel for each surface, with networks and a curve between them on top.

    Levels are spaced evenly in the logarithm of the height above the lowest value. All values above the last level,
    the 90 % quantile, have one colour; values that are not finite have none. All panels share the levels.

    Args:
        surfaces: title -> values on the grid, (len(y), len(x)), such as `nll_QP` of `geometry.surface`.
        x: Horizontal positions of the grid.
        y: Vertical positions of the grid.
        marks: name -> coordinates (2,) of networks, drawn as points.
        curve: Coordinates (T, 2) of a curve in the plane.
        kind: "contour", or "3d" for heights; only contours show marks and curve.
        label: What the values are, with their unit.
    """
    check_panels(surfaces=surfaces)
    check_choice(("contour", "3d"), kind=kind)
    check_text(label=label)
    x, y = as_array(x, 1, "x", finite=True), as_array(y, 1, "y", finite=True)
    grids = {name: _checked(values, name, (len(y), len(x))) for name, values in surfaces.items()}
    marks = {} if marks is None else marks
    check_kind(Mapping, "a mapping from names to coordinates", marks=marks)
    points = {name: as_array(coordinates, 1, f"`marks`, {name}", finite=True) for name, coordinates in marks.items()}
    wrong = next((name for name, coordinates in points.items() if coordinates.shape != (2,)), None)
    if wrong is not None:
        raise ValueError(f"`marks`: {wrong!r} must be two coordinates; got shape {points[wrong].shape}.")
    line = None if curve is None else as_array(curve, 2, "curve", finite=True)
    levels = _levels(np.concatenate([values[np.isfinite(values)] for values in grids.values()]))
    rows, columns = grid_shape(len(grids), widest=3)
    figure = new_figure(3.1 * columns + 1.0, 2.9 * rows)
    extra: Any = {"subplot_kw": {"projection": "3d"}} if kind == "3d" else {"sharex": True, "sharey": True}
    axes_RC = figure.subplots(rows, columns, squeeze=False, **extra)
    drawn: Any = None
    for axes, (name, values) in zip(axes_RC.flat, grids.items(), strict=False):
        drawn = (_heights if kind == "3d" else _contours)(axes, (x, y), values, levels)
        if kind == "contour":
            _on_top(axes, points, line)
        axes.set_title(name, fontsize=9.5)
        axes.set_xlabel("first coordinate")
        axes.set_ylabel("second coordinate")
    remove_spare(axes_RC, len(grids))
    if kind == "contour":
        for axes in axes_RC.flat:
            axes.label_outer()
    bar: Any = figure.colorbar(drawn, ax=axes_RC.ravel().tolist(), label=label, aspect=24, pad=0.03)
    bar.set_ticks(levels[::2], labels=[f"{level:.3g}" for level in levels[::2]])
    return figure


def _checked(values: Any, name: str, shape: tuple[int, int]) -> np.ndarray:
    """Return a surface as an array that fits the grid and has a finite value."""
    surface = as_array(values, 2, f"`surfaces`, {name}")
    if surface.shape != shape:
        raise ValueError(f"`surfaces`: {name!r} must be {shape} like the grid of `y` and `x`; got {surface.shape}.")
    if not np.isfinite(surface).any():
        raise ValueError(f"`surfaces`: {name!r} has no finite value. Evaluate it closer to a solution.")
    return surface


def _levels(values: np.ndarray) -> np.ndarray:
    """Return the levels of contours, increasing."""
    low, high = float(values.min()), float(np.quantile(values, _HIGHEST))
    if not high > low:
        return np.linspace(low - 0.5, low + 0.5, _LEVELS)
    return low + (high - low) * np.concatenate([[0.0], np.geomspace(0.003, 1.0, _LEVELS - 1)])


def _norm(levels: np.ndarray) -> tuple[Any, Any]:
    """Return the colour map, and the map from values to its levels."""
    from matplotlib import colormaps
    from matplotlib.colors import BoundaryNorm

    colours = colormaps["viridis_r"]
    return colours, BoundaryNorm(levels, colours.N, extend="max")


def _contours(axes: Axes, positions: tuple[np.ndarray, np.ndarray], values: np.ndarray, levels: np.ndarray) -> Any:
    colours, norm = _norm(levels)
    axes.grid(visible=False)
    shown = np.ma.masked_invalid(values)
    axes.contour(*positions, shown, levels=levels, colors=[INK], linewidths=0.35, alpha=0.6)
    axes.set_aspect("equal")
    return axes.contourf(*positions, shown, levels=levels, cmap=colours, norm=norm, extend="max")


def _heights(axes: Any, positions: tuple[np.ndarray, np.ndarray], values: np.ndarray, levels: np.ndarray) -> Any:
    from matplotlib.cm import ScalarMappable

    colours, norm = _norm(levels)
    shown = np.clip(np.where(np.isfinite(values), values, levels[-1]), levels[0], levels[-1])
    height = np.log10(shown - levels[0] + (levels[1] - levels[0]))
    # smooth colours, because bands look ragged at an angle
    face = colours(np.interp(shown, levels, np.linspace(0.0, 1.0, len(levels))))
    axes.plot_surface(
        *np.meshgrid(*positions), height, facecolors=face, rstride=1, cstride=1, linewidth=0, antialiased=False
    )
    axes.view_init(elev=38, azim=-55)
    axes.set_zticks([])
    axes.tick_params(pad=-2)
    return ScalarMappable(norm=norm, cmap=colours)


def _on_top(axes: Axes, points: Mapping[str, np.ndarray], line: np.ndarray | None) -> None:
    if line is not None:
        axes.plot(line[:, 0], line[:, 1], color="white", linewidth=2.6)
        axes.plot(line[:, 0], line[:, 1], color="#d55e00", linewidth=1.4)
    for name, (across, up) in points.items():
        axes.plot([across], [up], "o", color="white", markeredgecolor=INK, markersize=5)
        axes.annotate(name, (across, up), xytext=(4, 4), textcoords="offset points", fontsize=7.5, color=INK)
