"""Figures of `compression`: errors by the weights that are left, and the noise of units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchbayes.report import Picture, looks
from torchbayes.report.style import INK, house_style, legend_above, new_figure, panel_title
from torchbayes_experiments.compression.recipe import GROUPS, PUBLISHED, SINGLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Results = Sequence[Mapping[str, Any]]


def curves(results: Results, network: str) -> Picture:
    """Return the error against the weights that are left, by every method."""
    return Picture(
        f"Pruning {network}: test error against the weights that are left",
        _curves(results, network),
        "Mean over seeds, with the seeds as faint lines. Units are pruned by their multipliers, single weights by "
        "their signal to noise, under a Laplace posterior (with the others following: surgeon), or by magnitude. Large "
        "marks are where a threshold is not chosen by hand; diamonds as published.",
    )


@house_style
def _curves(results: Results, network: str) -> Figure:
    figure = new_figure(5.6, 3.9)
    axes, handles = figure.subplots(), dict[str, Any]()
    methods = (*GROUPS, *SINGLE)
    look, most = looks(methods), 0
    for method in methods:
        shares = [np.array(r[network][method]["curve"]) for r in results]
        chosen = "compressed" in results[0][network][method]
        lines = [curve[:-1] if chosen else curve for curve in shares]
        for line in lines:
            own = line[line[:, 0].argsort()]
            axes.plot(own[:, 0], own[:, 1], color=look[method].colour, alpha=0.2, linewidth=0.7)
        mean = np.mean(lines, 0)
        mean = mean[mean[:, 0].argsort()]
        (handles[method],) = axes.plot(
            mean[:, 0], mean[:, 1], color=look[method].colour, marker=look[method].marker, markersize=3
        )
        if chosen:
            at = np.mean([curve[-1] for curve in shares], 0)
            axes.plot(*at, color=look[method].colour, marker=look[method].marker, markersize=8, linestyle="")
        most = max(most, results[0][network][GROUPS[0]]["compressed"]["before"] // 4)
    for (name, _), mark in PUBLISHED.items():
        if name == network:
            handles["published"] = axes.plot(
                most / mark.rate, mark.error, color=INK, marker="D", markerfacecolor="white", linestyle=""
            )[0]
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(most / 500, most)
    axes.set_ylim(0.5, 100)
    axes.set_yticks([0.5, 1, 2, 5, 10, 20, 50, 100], ["0.5", "1", "2", "5", "10", "20", "50", "100"])
    axes.minorticks_off()
    axes.set_xlabel(f"weights left of {most:,}")
    axes.set_ylabel("test error (%)")
    legend_above(figure, handles)
    return figure


def histograms(results: Results, network: str) -> Picture:
    """Return histograms of the noise of units, of the first seed."""
    return Picture(
        f"Noise of the units of {network}",
        _histograms(results[0][network]),
        "First seed: log Var z/(E z)² under the normal-Jeffreys prior, minus the logarithm of the mode of z under the "
        "horseshoe, of the inputs of dense layers and the filters of convolutions. Units right of the dashed line are "
        "pruned.",
    )


@house_style
def _histograms(fits: Mapping[str, Any]) -> Figure:
    layers = list(fits[GROUPS[0]]["noise"])
    figure = new_figure(2.1 * len(layers), 3.6)
    grid, look = figure.subplots(2, len(layers), squeeze=False, sharex="row"), looks(GROUPS)
    for row, method in zip(grid, GROUPS, strict=True):
        for axes, layer in zip(row, layers, strict=True):
            noise = np.array(fits[method]["noise"][layer])
            axes.hist(noise, bins=40, color=look[method].colour)
            axes.axvline(fits[method]["compressed"]["thresholds"][layer], color=INK, linestyle=(0, (3, 2)), linewidth=1)
            panel_title(axes, f"layer {layer}: {len(noise)} units")
        row[0].set_ylabel(method)
    figure.supxlabel("noise of a unit")
    return figure
