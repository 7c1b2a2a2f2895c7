"""Figures of `subspace_inference`: the UCI table, bands of three subspaces, and the NLL on images by subspace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from torchbayes.report import Picture, figures, looks
from torchbayes.report.style import INK, house_style, legend_above, new_figure, note_below, panel_title
from torchbayes_experiments.shared.uci_splits import Values
from torchbayes_experiments.subspace_inference.published import LOG_LIKELIHOOD
from torchbayes_experiments.subspace_inference.recipe import METHODS, SPACES, SWA_POINT, SWAG_POSTERIOR
from torchbayes_experiments.subspace_inference.verdict import Results, image_scores

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PUBLISHED = "as published"


def regressions(values: Values) -> Picture:
    """Return the test log likelihoods on every set, with the published ones."""
    drawn = {name: {m: -methods[m]["nll_gaussian"] for m in METHODS} for name, methods in values.items()}
    published = {name: {f"{m}, {_PUBLISHED}": number for m, number in LOG_LIKELIHOOD[name].items()} for name in values}
    return Picture(
        "Test log likelihood on UCI regression",
        figures.metric_dots(drawn, "log likelihood", published=published, better="high"),
        "Mean over splits with two standard errors, in the target's units; hollow, as published, with the standard "
        "deviation over splits. ESS and VI are in the subspace.",
    )


def bands(toy: Mapping[str, Any]) -> Picture:
    """Return the bands of the three subspaces side by side, of one seed."""
    return Picture(
        "Bands of three subspaces",
        _bands(toy),
        "Elliptical slice sampling in a random subspace, in that of the principal components, both of the same size, "
        "and in the plane of a curve between two networks: mean, ± 2 standard deviations of the functions, and some "
        "of these; first seed.",
    )


def images(results: Results) -> Picture:
    """Return NLL and accuracy on the images by subspace."""
    names = (SWA_POINT, SWAG_POSTERIOR, *SPACES)
    drawn = {
        "NLL": {_said(name): image_scores(results, name, "nll") for name in names},
        "accuracy, %": {_said(name): 100 * image_scores(results, name, "accuracy") for name in names},
    }
    return Picture(
        "Images by subspace",
        _dots(drawn),
        "Test images: mean over seeds with two standard errors, small the seeds themselves.",
    )


def _said(name: str) -> str:
    return f"ESS, {name}" if name in SPACES else name


@house_style
def _bands(toy: Mapping[str, Any]) -> Figure:
    figure = new_figure(7.4, 2.9)
    grid = np.array(toy["grid"])
    handles: dict[str, Any] = {}
    panels = figure.subplots(1, len(SPACES), sharex=True, sharey=True)
    for axes, (name, look) in zip(panels, looks(SPACES).items(), strict=True):
        own = toy["spaces"][name]
        mean, std = np.array(own["mean"]), np.array(own["std"])
        handles["± 2 std of the functions"] = axes.fill_between(
            grid, mean - 2 * std, mean + 2 * std, color=look.colour, alpha=0.3, linewidth=0
        )
        for draw in own["draws"]:
            (handles["drawn functions"],) = axes.plot(grid, draw, color=look.colour, linewidth=0.5, alpha=0.6)
        (handles["mean"],) = axes.plot(grid, mean, color=look.colour)
        (handles["training rows"],) = axes.plot(toy["x"], toy["y"], "o", color=INK, markersize=1.8, linewidth=0)
        panel_title(axes, name, look)
        axes.margins(x=0)
    low, high = min(toy["y"]), max(toy["y"])
    panels[0].set_ylim(low - 0.5 * (high - low), high + 0.75 * (high - low))
    panels[0].set_ylabel("y")
    note_below(figure, "x")
    legend_above(figure, handles)
    return figure


@house_style
def _dots(panels: Mapping[str, Mapping[str, np.ndarray]]) -> Figure:
    figure = new_figure(7.2, 2.4)
    grid = figure.subplots(1, len(panels), sharey=True)
    names = list(next(iter(panels.values())))
    for axes, (metric, values) in zip(grid, panels.items(), strict=True):
        for place, (name, look) in enumerate(looks(names).items()):
            repeats = values[name]
            mean, half = repeats.mean(), 0.0
            if len(repeats) > 1:
                half = 2 * repeats.std(ddof=1) / len(repeats) ** 0.5
            axes.hlines(place, mean - half, mean + half, color=look.colour, linewidth=1.8)
            axes.plot(mean, place, color=look.colour, marker=look.marker, markersize=6)
            axes.plot(repeats, np.full(len(repeats), place + 0.25), "|", color=look.colour, markersize=4)
        panel_title(axes, metric)
    grid[0].set_yticks(range(len(names)), names)
    grid[0].set_ylim(len(names) - 0.4, -0.6)
    note_below(figure, "mean over seeds ± two standard errors; strokes: seeds")
    return figure
