"""A loss or posterior over weights: surfaces over planes, values along rays, densities of eigenvalues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from torchbayes.checks import check_choice, check_kind, check_text
from torchbayes.report.style import (
    INK,
    as_array,
    as_positions,
    check_panels,
    house_style,
    legend_above,
    looks,
    new_figure,
    note_below,
    panel_grid,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEVELS = 12
_HIGHEST = 0.9  # quantile of the values at the last level, because losses explode away from solutions
_DECADES = 7  # decades of a density shown below its highest value


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
    how: Any = {"subplot_kw": {"projection": "3d"}} if kind == "3d" else {"sharex": True, "sharey": True}
    figure, axes_RC = panel_grid(len(grids), 3, each=(3.1, 2.9), beside=(1.0, 0), **how)
    drawn: Any = None
    for axes, (name, values) in zip(axes_RC.flat, grids.items(), strict=False):
        drawn = (_heights if kind == "3d" else _contours)(axes, (x, y), values, levels)
        if kind == "contour":
            _on_top(axes, points, line)
        axes.set_title(name, fontsize=9.5)
        axes.set_xlabel("first coordinate")
        axes.set_ylabel("second coordinate")
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


@house_style
def spectrum_density(
    densities: Mapping[str, Any], eigenvalues: Any, *, label: str = "eigenvalue (nats per squared unit of the weights)"
) -> Figure:
    """Draw densities of eigenvalues on a logarithmic axis, where single large ones are visible beside the bulk.

    The axis covers seven decades below the highest value.

    Args:
        densities: name -> values (G,) on the grid, such as those of `Spectrum.density`; zeros are not drawn.
        eigenvalues: The grid (G,), increasing.
        label: What the eigenvalues are, with their unit.
    """
    check_panels(densities=densities)
    check_text(label=label)
    grid = as_positions("eigenvalues", eigenvalues)
    values = {name: _density(density, name, len(grid)) for name, density in densities.items()}
    drawn, highest = looks(values), max(float(each.max()) for each in values.values())
    figure = new_figure(5.2, 3.1)
    axes = figure.subplots()
    handles = {}
    for name, each in values.items():
        shown = np.ma.masked_less_equal(each, 0.0)
        (handles[name],) = axes.plot(grid, shown, color=drawn[name].colour, linewidth=1.3)
    axes.set_yscale("log")
    axes.set_ylim(highest * 10.0**-_DECADES, highest * 3)
    axes.set_xlim(grid[0], grid[-1])
    axes.set_xlabel(label)
    axes.set_ylabel("density")
    if len(handles) > 1:
        legend_above(figure, handles)
    return figure


def _density(given: Any, name: str, count: int) -> np.ndarray:
    """Return a density as an array of `count` values, nowhere negative and positive somewhere."""
    density = as_array(given, 1, f"`densities`, {name}", finite=True)
    if len(density) != count:
        raise ValueError(f"`densities`: {name!r} must have {count} values, like `eigenvalues`; got {len(density)}.")
    if (density < 0).any() or not density.any():
        raise ValueError(
            f"`densities`: {name!r} must be at least 0, and above it somewhere; got values in {density.min():g} to "
            f"{density.max():g}."
        )
    return density


@house_style
def ray_profiles(profiles: Mapping[str, Any], radii: Any, *, label: str = "log posterior (nats)") -> Figure:
    """Draw values along rays, a panel for each network, with a line for each ray and their median on top.

    All panels share their axes.

    Args:
        profiles: title -> values (K, P) along K rays, such as `log_density_KP` of `geometry.rays`; values that are not
            finite are not drawn.
        radii: Positions (P,) on the rays.
        label: What the values are, with their unit.
    """
    check_panels(profiles=profiles)
    check_text(label=label)
    radii = as_array(radii, 1, "radii", finite=True)
    values = {}
    for name, profile in profiles.items():
        values[name] = as_array(profile, 2, f"`profiles`, {name}")
        if values[name].shape[1] != len(radii) or not np.isfinite(values[name]).any():
            raise ValueError(
                f"`profiles`: {name!r} must have {len(radii)} columns, like `radii`, and a finite value; got shape "
                f"{values[name].shape}."
            )
    figure, axes_RC = panel_grid(len(values), 3, each=(3.0, 2.5), beside=(0.7, 0.5), sharex=True, sharey=True)
    drawn = looks(values)
    for axes, (name, values_KP) in zip(axes_RC.flat, values.items(), strict=False):
        shown_KP = np.ma.masked_invalid(values_KP)
        axes.plot(radii, shown_KP.T, color=drawn[name].colour, linewidth=0.7, alpha=0.45)
        axes.plot(radii, np.ma.median(shown_KP, axis=0), color=INK, linewidth=1.4)
        axes.set_title(name, fontsize=9.5)
        axes.ticklabel_format(axis="y", scilimits=(-3, 5), useMathText=True)
    figure.supylabel(label)
    note_below(figure, "distance from the network", f"thin: {max(map(len, values.values()))} rays; thick: their median")
    return figure
