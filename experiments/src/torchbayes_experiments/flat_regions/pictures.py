"""Figures of `flat_regions`: volumes and test accuracy, loss surfaces, widths, and densities of eigenvalues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from torchbayes.report import Picture, figures
from torchbayes.report.style import INK, QUIET, house_style, legend_above, looks, new_figure, note_below, percent_axis
from torchbayes_experiments.flat_regions.recipe import END, FILTERS, GRID, MATCHED, PLAIN, RAW
from torchbayes_experiments.verdicts import two_standard_errors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Results = Sequence[Mapping[str, Any]]

_WHEN = {END: "after the whole training", MATCHED: "at equal training loss"}


def drawn(results: Results) -> tuple[Picture, ...]:
    """Return all pictures.

    Args:
        results: what `run` returned, one per seed.
    """
    shown = results[0]["surfaces"]
    grids = {name: np.array(one) for name, one in zip(_titles(results[0]), shown["nll"], strict=True)}
    return (
        Picture(
            "Volumes of good and bad solutions",
            draw_volumes(results),
            "log₁₀ of the volume of each basin over that of the good network of the same seed, against test accuracy; "
            "a point for each network of each seed. Left: radii in units of the network's filters. Right: radii in "
            "weight space, which depend on the scale of the weights as well. All networks fit the same rows without a "
            "mistake, at about the same loss.",
        ),
        Picture(
            "A good and a bad solution",
            figures.loss_surfaces(grids, shown["x"], shown["y"], label="loss on the clean rows (nats)"),
            "Loss over the plane of two random directions, in units of the network's filters, around each of two "
            "networks that fit these rows; first seed.",
        ),
        Picture(
            "Effective dimension and loss by width",
            draw_widths(results),
            "Networks with one hidden layer on few rows with noisy labels: mean training loss, mean test loss, and "
            "effective dimension, after the whole training and at the first epoch at which the training loss had "
            "fallen to a given level. From the dotted line on no training row is misclassified, in any seed.",
        ),
        Picture(
            "Eigenvalues of good and bad solutions",
            draw_densities(results),
            "Eigenvalues of the Gauss-Newton matrix of the clean rows per decade, smoothed, mean over seeds.",
        ),
    )


def at(one: Mapping[str, Any], *keys: str) -> float:
    """Return a number from nested mappings.

    Args:
        one: the outer mapping.
        keys: from the outside in.
    """
    return float(reduce(lambda found, key: found[key], keys, one))  # type: ignore[arg-type]


def plain(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the networks of a seed that were trained in the plain way, in the order of their shares of poison."""
    return sorted((one for one in result["solutions"] if one["name"] == PLAIN), key=lambda one: one["share"])


def _titles(result: Mapping[str, Any]) -> list[str]:
    titles = []
    for share in result["surfaces"]["shares"]:
        [one] = [one for one in plain(result) if one["share"] == share]
        titles.append(f"{_poison(share)}: test error {100 * one['test_error']:.0f} %")
    return titles


def _poison(share: float) -> str:
    return f"{100 * share:g} % poison"


@house_style
def draw_volumes(results: Results) -> Figure:
    """Draw the volumes of basins against test accuracy, by filters and raw.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The figure, two axes.
    """
    figure = new_figure(7.4, 3.6)
    grid = figure.subplots(1, 2)
    labels = {_name(one): None for one in results[0]["solutions"]}
    handles: dict[str, Any] = {}
    for axes, shape, title in zip(grid, (FILTERS, RAW), ("filter-normalised radii", "raw radii"), strict=True):
        for result in results:
            good = at(plain(result)[0], "basins", shape, "orders")
            for (label, look), one in zip(looks(labels).items(), result["solutions"], strict=True):
                height = at(one, "basins", shape, "orders") - good
                style: Any = {"color": look.colour, "marker": look.marker, "linestyle": "none", "alpha": 0.85}
                (handles[label],) = axes.plot(1 - one["test_error"], height, **style)
        axes.set_title(title)
        axes.set_ylabel("log₁₀ of the volume over the good one's")
        axes.yaxis.set_major_formatter(lambda value, _position: f"{value:,.0f}".replace("-", "−"))
        percent_axis(axes.xaxis)
    note_below(figure, "test accuracy")
    legend_above(figure, handles)
    return figure


def _name(one: Mapping[str, Any]) -> str:
    return _poison(one["share"]) if one["name"] == PLAIN else one["name"]


@house_style
def draw_widths(results: Results) -> Figure:
    """Draw training loss, test loss and effective dimension against the width.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The figure, three axes.
    """
    figure = new_figure(9.0, 3.4)
    panels = {"training loss (nats)": "loss", "test loss (nats)": "test_nll", "effective dimension": "effective"}
    grid, handles = figure.subplots(1, len(panels)), {}
    units = np.array([one["units"] for one in results[0]["widths"]])
    both = looks(_WHEN.values())
    for axes, (title, key) in zip(grid, panels.items(), strict=True):
        for when, label in _WHEN.items():
            places, values = _by_width(results, when, key)
            if not len(places):
                continue
            error = two_standard_errors(values.T)
            mean, look = values.mean(1), both[label]
            axes.fill_between(places, mean - error, mean + error, color=look.colour, alpha=0.15, linewidth=0)
            style: Any = {"linestyle": "-" if when == END else (0, (4, 2))}
            (handles[label],) = axes.plot(places, mean, color=look.colour, marker=look.marker, **style)
        handles["no mistake on training rows"] = _threshold(axes, results, units)
        axes.set_title(title)
        _by_units(axes, units)
    grid[0].set_yscale("log")
    note_below(figure, "hidden units", f"mean over {len(results)} seeds, band ± two standard errors")
    legend_above(figure, handles)
    return figure


def _by_width(results: Results, when: str, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the widths at which every seed has a number, and the numbers (P, R); the first of effective dimensions."""
    places, values = [], []
    for of_width in zip(*(result["widths"] for result in results), strict=True):
        found = [one[when] for one in of_width]
        if None not in found:
            places.append(of_width[0]["units"])
            values.append([one[key][0] if key == "effective" else one[key] for one in found])
    return np.array(places, dtype=np.float64), np.array(values, dtype=np.float64)


def _threshold(axes: Axes, results: Results, units: np.ndarray) -> Any:
    """Return a line, drawn where all seeds begin to fit their training rows; off the panel if nowhere."""
    misses = np.array([[one[END]["error"] > 0 for one in result["widths"]] for result in results]).any(0)
    first = int(np.flatnonzero(misses).max(initial=-1)) + 1
    place = float(units[first]) if first < len(units) else np.nan
    return axes.axvline(place, color=QUIET, linestyle=":", linewidth=1.2)


def _by_units(axes: Axes, units: np.ndarray) -> None:
    axes.set_xscale("log", base=2)
    ticks = 2.0 ** np.arange(np.floor(np.log2(units[0])), np.ceil(np.log2(units[-1])) + 1)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


@house_style
def draw_densities(results: Results) -> Figure:
    """Draw the eigenvalues per decade of the good and of the most poisoned network, and of one between.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The figure, one axes.
    """
    figure = new_figure(5.6, 3.6)
    axes = figure.subplots()
    names, handles = [_name(one) for one in plain(results[0])], {}
    every = looks(_name(one) for one in results[0]["solutions"])
    chosen = sorted({0, len(names) // 2, len(names) - 1})
    for place in chosen:
        mean = np.mean([plain(result)[place]["curvature"]["density"] for result in results], axis=0)
        seen = np.where(mean > 0.3, mean, np.nan)
        look = every[names[place]]
        style: Any = {"marker": look.marker, "markevery": 12, "markersize": 4}
        (handles[names[place]],) = axes.plot(10.0 ** np.array(GRID), seen, color=look.colour, **style)
    axes.set(xscale="log", yscale="log", xlabel="eigenvalue λ (nats per squared unit of the weights)")
    axes.set_ylabel("eigenvalues per decade")
    handles["α"] = axes.axvline(results[0]["precision"], color=INK, linestyle=":", linewidth=1.0)
    legend_above(figure, handles)
    return figure
