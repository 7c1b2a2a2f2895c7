"""Figures of `pbp_uci`: a score against the passes, a panel for each set, with the published one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from torchbayes.report import Picture, looks
from torchbayes.report.style import (
    INK,
    grid_shape,
    house_style,
    legend_above,
    metric_label,
    new_figure,
    note_below,
    panel_title,
    remove_spare,
)
from torchbayes_experiments.pbp_uci.published import PUBLISHED
from torchbayes_experiments.pbp_uci.recipe import METRICS, ONE, STREAM, TWO
from torchbayes_experiments.shared.uci_splits import Values
from torchbayes_experiments.verdicts import two_standard_errors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PASSES = 40  # of the fit that is compared with the published one
_ASIDE = 1.32  # times the passes: where the next score of as many passes stands


def curves(values: Values, metric: str) -> Picture:
    """Return a metric against the passes.

    Args:
        values: scores averaged over seeds.
        metric: a key of `METRICS`.
    """
    return Picture(
        f"Test {METRICS[metric]} of probabilistic backpropagation on UCI regression",
        _curves(values, metric),
        f"{METRICS[metric]} in the target's units against the passes: mean over splits with two standard errors; "
        "hollow, as published, after 40 passes, with two of its standard errors. Every pass counts the rows again; the "
        "stream counts each once.",
    )


@house_style
def _curves(values: Values, metric: str) -> Figure:
    rows, columns = grid_shape(len(values), widest=3)
    figure = new_figure(2.5 * columns, 1.95 * rows + 0.9)
    grid = figure.subplots(rows, columns, sharex=True, squeeze=False)
    handles: dict[str, Any] = {}
    for axes, name in zip(grid.flat, values, strict=False):
        _panel(axes, values, name, metric, handles)
        panel_title(axes, name)
    remove_spare(grid, len(values))
    for axes in list(grid.flat)[max(0, len(values) - columns) : len(values)]:
        axes.tick_params(labelbottom=True)
    note_below(figure, "passes over the training rows; right of the last, what else took as many")
    figure.supylabel(metric_label(METRICS[metric]))
    legend_above(figure, handles)
    return figure


def _panel(axes: Axes, values: Values, name: str, metric: str, handles: dict[str, Any]) -> None:
    """Draw one set, and put what is new to the legend in `handles`."""
    fits, (mark, error) = values[name], PUBLISHED[name][metric]
    look = looks([ONE, TWO, STREAM])
    passes = {int(fit.split()[0]): scores for fit, scores in fits.items() if fit.endswith(("pass", "passes"))}
    passes[_PASSES] = fits[ONE]
    at = sorted(passes)
    means = np.array([passes[n][metric].mean() for n in at])
    half = np.array([two_standard_errors(passes[n][metric]) for n in at])
    axes.fill_between(at, means - half, means + half, color=look[ONE].colour, alpha=0.15, linewidth=0)
    (handles["PBP, one hidden layer"],) = axes.plot(at, means, color=look[ONE].colour, marker=look[ONE].marker)
    for fit, x in ((TWO, _PASSES * _ASIDE), (STREAM, 1)):
        if fit in fits:
            own = fits[fit][metric]
            handles[f"{fit}, each row once" if fit == STREAM else fit] = axes.errorbar(
                x, own.mean(), two_standard_errors(own), color=look[fit].colour, marker=look[fit].marker, linestyle=""
            )
    handles["published"] = axes.errorbar(
        _PASSES * _ASIDE**2, mark, 2 * error, color=INK, marker="D", markerfacecolor="white", linestyle=""
    )
    axes.axhline(mark, color=INK, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
    axes.set_xscale("log")
    axes.set_xticks(at, [str(n) for n in at])
    axes.minorticks_off()
