"""Verdict, tables and figures of `bayes_by_backprop`, with the published numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchbayes.report import Picture, Table
from torchbayes.report.style import INK, Look, house_style, legend_above, looks, new_figure, panel_title, percent_axis
from torchbayes_experiments.bayes_by_backprop.recipe import DROPOUT, GAUSSIAN, LOUDNESS, MIXTURE, NETWORK, PLAIN
from torchbayes_experiments.experiment import Findings
from torchbayes_experiments.verdicts import Part, Verdict, below, mean_and_error, two_standard_errors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Results = Sequence[Mapping[str, Any]]

# Test errors in % on MNIST after 600 epochs, table 1 of Blundell et al. (2015): width -> method -> error.
PUBLISHED: dict[str, dict[str, float]] = {
    "400": {PLAIN: 1.83, DROPOUT: 1.51, GAUSSIAN: 1.82, MIXTURE: 1.36},
    "800": {PLAIN: 1.84, DROPOUT: 1.33, GAUSSIAN: 1.99, MIXTURE: 1.34},
    "1200": {PLAIN: 1.88, DROPOUT: 1.36, GAUSSIAN: 2.04, MIXTURE: 1.32},
}
# The same for a network of 1,200 units under the mixture without a share of its weights, table 2, from memory.
PUBLISHED_PRUNED: dict[float, float] = {0.0: 1.24, 0.5: 1.24, 0.75: 1.24, 0.95: 1.29, 0.98: 1.39}
MARGINS = {0.75: 0.1, 0.95: 0.2, 0.98: 0.3}  # points of error that removing a share of the weights may cost
FACTOR = 2.0  # by which quartiles must be further apart beyond the training inputs than among them
LEVEL = 1.1  # those of a single network may differ by no more than this factor
BAYES = (GAUSSIAN, MIXTURE)
_LABELS = {MIXTURE: "Bayes by backprop", NETWORK: NETWORK}  # of the curve


def summarise(results: Results) -> Findings:
    """Turn the seeds' scores into verdict, tables and figures.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    widths = list(results[0]["table"])
    parts = [part for width in widths for part in _parts(width, results)] + _curve_parts(results)
    tables = (_table(widths, results), *(_pruning_table(width, results) for width in widths), _curve_table(results))
    figures = (*(_pruning_picture(width, results) for width in widths), _curve_picture(results))
    return Findings(Verdict.of(parts), tables, figures)


def values(results: Results, width: str, method: str, *, metric: str) -> np.ndarray:
    """Return a score of a method, one for each seed.

    Args:
        results: the seeds' scores.
        width: of the hidden layers.
        method: its name.
        metric: a key of the scores.

    Returns:
        Array (R,), or (R, P) of scores at P shares of removed weights.
    """
    return np.array([result["table"][width][method][metric] for result in results])


def _parts(width: str, results: Results) -> list[Part]:
    """Return the parts of the claim at one width."""

    def of(method: str) -> np.ndarray:
        return values(results, width, method, metric="error")

    def lower(first: str, second: str) -> Part:
        return below(f"{width} units: error of {first} below that of {second}", of(first) - of(second))

    shares = results[0]["shares"]
    pruned = {method: values(results, width, method, metric="pruned") for method in (PLAIN, MIXTURE)}
    costs = pruned[MIXTURE] - pruned[MIXTURE][:, shares.index(0.0), None]
    found = [lower(MIXTURE, PLAIN), lower(MIXTURE, GAUSSIAN), lower(DROPOUT, PLAIN)]
    for share, margin in MARGINS.items():
        what = f"{width} units: points of error that removing {100 * share:g} % of the weights costs"
        found.append(below(what, costs[:, shares.index(share)], margin))
    place = shares.index(0.95)
    what = f"{width} units: error without 95 % of the weights below that of SGD pruned by magnitude"
    return [*found, below(what, pruned[MIXTURE][:, place] - pruned[PLAIN][:, place])]


def _ratio(results: Results, method: str) -> np.ndarray:
    """Return how many times as far apart the quartiles are beyond the training inputs as among them, (R,)."""
    found = [result["regression"]["methods"][method] for result in results]
    return np.array([one["outside"] / one["inside"] for one in found])


def _curve_parts(results: Results) -> list[Part]:
    what = "curve: spread among the training inputs over that beyond them, Bayes by backprop"
    ratio = _ratio(results, MIXTURE)
    return [
        below(what, 1 / ratio, 1 / FACTOR),
        below("curve: spread beyond the training inputs over that among them, single network",
              _ratio(results, NETWORK), LEVEL),
    ]  # fmt: skip


# --- tables


def _table(widths: Sequence[str], results: Results) -> Table:
    shown = {"error": "error, %", "mean_error": "error of the means, %", "nll": "NLL"}
    rows = []
    for width in widths:
        for method in results[0]["table"][width]:
            own = {key: mean_and_error(values(results, width, method, metric=key)) for key in shown}
            cells = [own[key] if key != "mean_error" or method in BAYES else None for key in shown]
            rows.append([width, method, *cells, PUBLISHED.get(width, {}).get(method)])
    return Table(
        ["units", "method", *shown.values(), "published error, %"],
        rows,
        "Test images: mean over seeds ± standard error. Bayes by backprop predicts with the average over draws; the "
        "error of the means is that of the one network whose weights are the posterior means. Dropout predicts with "
        "all units. Published: Blundell et al. (2015), 600 epochs.",
        better={"error, %": "low", "error of the means, %": "low", "NLL": "low"},
        formats={"error, %": ".2f", "error of the means, %": ".2f", "NLL": ".4f", "published error, %": ".2f"},
    )


def _pruning_table(width: str, results: Results) -> Table:
    shares = results[0]["shares"]
    columns = {f"{100 * share:g} %": place for place, share in enumerate(shares)}
    rows: list[list[Any]] = []
    for method in results[0]["table"][width]:
        for metric, label in (("pruned", "one network"), ("pruned_average", "average of draws")):
            if metric == "pruned" or method in BAYES:
                found = values(results, width, method, metric=metric)
                rows.append([method, label, *(mean_and_error(found[:, place]) for place in columns.values())])
    rows.append(["published, 1200 units", "", *(PUBLISHED_PRUNED.get(share) for share in shares)])
    return Table(
        ["removed", "predicts", *columns],
        rows,
        f"{width} units: test error in % when a share of the weights is set to zero, mean over seeds ± standard error. "
        f"With Bayes by backprop those of the lowest |μ|/σ go first, with SGD and dropout those of the lowest |w|. One "
        f"network: that of the posterior means.",
        formats=dict.fromkeys(columns, ".2f"),
    )


def _curve_table(results: Results) -> Table:
    rows = []
    for method in results[0]["regression"]["methods"]:
        found = [result["regression"]["methods"][method] for result in results]
        cells = [mean_and_error([one[key] for one in found]) for key in ("inside", "outside")]
        rows.append([_LABELS[method], *cells, mean_and_error(_ratio(results, method))])
    return Table(
        ["curve", "among the training inputs", "beyond them", "ratio"],
        rows,
        "Distance of the quartiles of the predicted target, averaged over inputs among the training inputs and at "
        "least 0.1 beyond them: mean over seeds ± standard error.",
        formats=dict.fromkeys(["among the training inputs", "beyond them"], ".4f") | {"ratio": ".2f"},
    )


# --- figures


def _pruning_picture(width: str, results: Results) -> Picture:
    return Picture(
        f"Pruning, {width} units",
        draw_pruning(width, results),
        "Left: test error without the weights of the lowest |μ|/σ (SGD and dropout: of the lowest |w|), mean over "
        "seeds with two standard errors; Bayes by backprop predicts with the one network of its posterior means. "
        "Right: where the weights of Bayes by backprop lie, and which share of them lies below; those below −40 dB, "
        "such as the weights of pixels that are always black, are in the share alone. Solid: scale mixture.",
    )


@house_style
def draw_pruning(width: str, results: Results) -> Figure:
    """Draw error against the share of removed weights, and the distribution of signal to noise.

    Args:
        width: of the hidden layers.
        results: the seeds' scores.

    Returns:
        The figure, two axes.
    """
    shares, methods = results[0]["shares"], list(results[0]["table"][width])
    figure = new_figure(7.4, 3.5)
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    drawn, places, handles = looks(methods), np.arange(len(shares)), {}
    for offset, method in enumerate(methods):
        found = values(results, width, method, metric="pruned")
        at = places + 0.06 * (offset - (len(methods) - 1) / 2)  # side by side
        style = {"color": drawn[method].colour, "marker": drawn[method].marker, "linewidth": 1.3}
        style |= {} if method in BAYES else {"linestyle": (0, (4, 2))}
        handles[method] = left.errorbar(at, found.mean(0), two_standard_errors(found), **style)
    left.set_xticks(places, [f"{100 * share:g} %" for share in shares])
    left.set_yscale("log")
    _plain_ticks(left)
    left.set_xlabel("share of the weights removed")
    left.set_ylabel("test error (%), log axis")
    _draw_loudness(right, {name: values(results, width, name, metric="loudness").mean(0) for name in BAYES}, drawn)
    legend_above(figure, handles)
    return figure


def _draw_loudness(axes: Axes, counts: Mapping[str, np.ndarray], drawn: Mapping[str, Look]) -> None:
    """Draw histograms of signal to noise, without what lies beyond the ends, and shares of the weights below."""
    share = axes.twinx()
    for method, inside in counts.items():
        edges = np.linspace(*LOUDNESS, len(inside) + 1)
        density = inside / inside.sum() / (edges[1] - edges[0])
        style: Any = {"color": drawn[method].colour, "linestyle": "-" if method == MIXTURE else (0, (4, 2))}
        axes.stairs(density[1:-1], edges[1:-1], linewidth=1.5, **style)
        share.plot(edges[1:], np.cumsum(inside) / inside.sum(), linewidth=0.8, **style)
    axes.set_xlabel("signal to noise of a weight, 10 log₁₀(|μ|/σ) (dB)")
    axes.set_ylabel("density (1/dB), thick")
    share.set_ylabel("share of the weights below, thin")
    share.set_ylim(0, 1.02)
    share.grid(visible=False)
    percent_axis(share.yaxis)


def _plain_ticks(axes: Axes) -> None:
    """Write numbers as they are on a logarithmic axis."""
    low, high = axes.get_ylim()
    ticks = [tick for tick in (0.5, 1, 1.5, 2, 3, 5, 7, 10, 20, 30, 50, 90) if low <= tick <= high]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def _curve_picture(results: Results) -> Picture:
    return Picture(
        "Regression",
        draw_curve(results[0]["regression"]),
        "Predicted target along the input, one seed: median, and between the quartiles the middle half of what is "
        "expected.",
    )


@house_style
def draw_curve(found: Mapping[str, Any]) -> Figure:
    """Draw median and quartiles of the predicted target, a panel for each method.

    Args:
        found: what `on_the_curve` returned.

    Returns:
        The figure.
    """
    methods = found["methods"]
    figure = new_figure(7.2, 3.3)
    grid = figure.subplots(1, len(methods), sharey=True, squeeze=False)[0]
    handles: dict[str, Any] = {}
    for axes, (name, look) in zip(grid, looks(methods).items(), strict=True):
        low, middle, high = methods[name]["quartiles"]
        band = axes.fill_between(found["grid"], low, high, color=look.colour, alpha=0.3, linewidth=0)
        handles.setdefault("between the quartiles", band)
        handles["median"] = axes.plot(found["grid"], middle, color=INK, linewidth=1.3)[0]
        rows = axes.plot(found["x"], found["y"], ".", color=INK, markersize=1.5, alpha=0.5)[0]
        handles["training rows"] = rows
        panel_title(axes, _LABELS[name], look)
        axes.margins(x=0)
        axes.set_xlabel("input x")
    grid[0].set_ylabel("target y")
    y = np.concatenate([found["y"], *(line for one in methods.values() for line in one["quartiles"])])
    low, high = min(found["y"]), max(found["y"])
    grid[0].set_ylim(max(y.min(), low - 1.5) - 0.1, min(y.max(), high + 2.2) + 0.1)
    legend_above(figure, handles)
    return figure
