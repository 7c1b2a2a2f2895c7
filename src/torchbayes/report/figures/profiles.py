"""Figures of a posterior in one dimension at a time: densities of eigenvalues, and log densities along rays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from torchbayes.checks import check_text
from torchbayes.report.style import (
    INK,
    as_array,
    check_panels,
    grid_shape,
    house_style,
    legend_above,
    looks,
    new_figure,
    note_below,
    remove_spare,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DECADES = 7  # decades of a density shown below its highest value


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
    grid = as_array(eigenvalues, 1, "eigenvalues", finite=True)
    if not (np.diff(grid) > 0).all():
        raise ValueError("`eigenvalues` must increase; got values that do not. Sort the grid.")
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
    rows, columns = grid_shape(len(values), widest=3)
    figure = new_figure(3.0 * columns + 0.7, 2.5 * rows + 0.5)
    axes_RC = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    drawn = looks(values)
    for axes, (name, values_KP) in zip(axes_RC.flat, values.items(), strict=False):
        shown_KP = np.ma.masked_invalid(values_KP)
        axes.plot(radii, shown_KP.T, color=drawn[name].colour, linewidth=0.7, alpha=0.45)
        axes.plot(radii, np.ma.median(shown_KP, axis=0), color=INK, linewidth=1.4)
        axes.set_title(name, fontsize=9.5)
        axes.ticklabel_format(axis="y", scilimits=(-3, 5), useMathText=True)
    remove_spare(axes_RC, len(values))
    figure.supylabel(label)
    note_below(figure, "distance from the network", f"thin: {max(map(len, values.values()))} rays; thick: their median")
    return figure
