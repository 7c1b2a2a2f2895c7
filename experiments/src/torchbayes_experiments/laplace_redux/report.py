"""Verdict, tables and figures of `laplace_redux`, with the published numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from torchbayes.report import Picture, Table, figures, looks
from torchbayes.report.style import (
    FAINT,
    QUIET,
    grid_shape,
    house_style,
    legend_above,
    new_figure,
    note_below,
    panel_title,
    percent_axis,
    remove_spare,
)
from torchbayes_experiments.experiment import Findings
from torchbayes_experiments.laplace_redux.recipe import ENSEMBLE, METHODS, MODE, VARIANTS
from torchbayes_experiments.shared.classifiers import METRICS
from torchbayes_experiments.verdicts import Part, Verdict, below, interval, mean_and_error, two_standard_errors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


DETECTION = 0.01  # of AUROC: detection within it counts as unchanged
MARGINS = {"nll": 0.01, "ece": 0.01}  # nats and share: a method within them counts as not worse
SAME = 0.002  # of accuracy: within it accuracy counts as unchanged
SETS = {"fashion_mnist": "Fashion-MNIST", "kmnist": "KMNIST", "notmnist": "notMNIST"}

# Mean confidence and AUROC in % of LeNet trained on MNIST (Daxberger et al. 2021), means of five seeds: its table of
# averages over three foreign sets, and its table of the single sets. EMNIST is not among the sets here.
PUBLISHED: dict[str, dict[str, tuple[float, float]]] = {
    MODE: {"average": (75.0, 96.5), "EMNIST": (83.6, 93.5), "fashion_mnist": (64.2, 98.9), "kmnist": (77.3, 97.0)},
    "LA": {"average": (67.5, 96.2), "EMNIST": (74.8, 93.4), "fashion_mnist": (58.8, 98.5), "kmnist": (69.0, 96.6)},
    "LA*": {"average": (56.1, 96.4), "EMNIST": (62.0, 94.3), "fashion_mnist": (49.6, 98.3), "kmnist": (56.7, 96.6)},
    ENSEMBLE: {"average": (65.7, 97.5), "EMNIST": (75.8, 95.1), "fashion_mnist": (55.4, 99.2), "kmnist": (65.9, 98.3)},
}

Results = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class _Bins:
    """The bins of a reliability diagram."""

    confidence: np.ndarray
    accuracy: np.ndarray
    count: np.ndarray


def summarise(results: Results) -> Findings:
    """Turn the seeds' scores into verdict, tables and figures.

    Args:
        results: what `run` returned, one per seed.

    Returns:
        The findings.
    """
    sets = (_set_table(results, "confidence"), _set_table(results, "auroc"))
    tables = (_digits_table(results), _average_table(results), *sets)
    tables += (_ensemble_table(results),) if ENSEMBLE in methods_of(results) else ()
    return Findings(verdict(results), tables, _pictures(results))


def methods_of(results: Results) -> list[str]:
    """Return which of `METHODS` were scored: all, or all but the ensemble."""
    return [name for name in METHODS if name in results[0]["methods"]]


def inside(results: Results, method: str, metric: str) -> np.ndarray:
    """Return a metric on test images, (R,)."""
    return np.array([result["methods"][method]["test"][metric] for result in results])


def outside(results: Results, method: str, metric: str, *, of: str = "average") -> np.ndarray:
    """Return mean confidence or AUROC on a foreign set, or the average over all sets, (R,).

    Args:
        results: the seeds' scores.
        method: one of `METHODS`.
        metric: "confidence" or "auroc".
        of: name of the set.

    Returns:
        One value per seed.
    """
    each = [result["methods"][method]["foreign"] for result in results]
    names = list(each[0]) if of == "average" else [of]
    return np.array([np.mean([found[name][metric] for name in names]) for found in each])


def verdict(results: Results) -> Verdict:
    """Return the verdict of the seeds; claims and margins were set before any whole run.

    Args:
        results: the seeds' scores.

    Returns:
        The verdict.
    """
    mode = {metric: inside(results, MODE, metric) for metric in METRICS}
    confidence, auroc = (outside(results, MODE, metric) for metric in ("confidence", "auroc"))
    parts: list[Part] = [below("error of the MAP on test images", 1 - mode["accuracy"], 0.05, precondition=True)]
    for name in VARIANTS:
        parts.append(
            below(
                f"{name}: mean confidence on foreign images below the MAP's",
                outside(results, name, "confidence") - confidence,
            )
        )
        lost = auroc - outside(results, name, "auroc")
        parts.append(below(f"{name}: AUROC at most {DETECTION} below the MAP's", lost, DETECTION))
        for metric, margin in MARGINS.items():
            worse = inside(results, name, metric) - mode[metric]
            parts.append(below(f"{name}: test {_label(metric)} at most {margin} above the MAP's", worse, margin))
        moved = np.abs(inside(results, name, "accuracy") - mode["accuracy"])
        parts.append(below(f"{name}: test accuracy within {SAME} of the MAP's", moved, SAME))
    best = np.max([outside(results, name, "auroc") for name in VARIANTS], axis=0)
    if ENSEMBLE in methods_of(results):
        ahead = best - outside(results, ENSEMBLE, "auroc")
        parts.append(below("AUROC of the best Laplace variant below the ensemble's", ahead))
    return Verdict.of(parts)


def _named(name: str) -> str:
    return SETS.get(name, name)


def _label(metric: str) -> str:
    return {"nll": "NLL", "ece": "ECE"}.get(metric, metric)


def _digits_table(results: Results) -> Table:
    columns = ["accuracy", "NLL", "ECE"]

    def scale(name: str) -> Any:
        found = [result["prior_scale"].get(name) for result in results]
        return None if None in found else mean_and_error(found)

    return Table(
        ["test images", *columns, "prior scale"],
        [
            [name, *(mean_and_error(inside(results, name, metric)) for metric in METRICS), scale(name)]
            for name in methods_of(results)
        ],
        "Test images: mean over seeds ± standard error. LA: last layer, Kronecker factors of the Gauss-Newton matrix. "
        "LA*: last layer, dense empirical Fisher. All layers: like LA, over every weight. The prior scale is the one "
        "that the evidence chose for the random weights; the networks were trained under that of the MAP.",
        better={"accuracy": "high", "NLL": "low", "ECE": "low"},
        formats={"accuracy": ".4f", "NLL": ".4f", "ECE": ".4f", "prior scale": ".3f"},
    )


def _average_table(results: Results) -> Table:
    def row(name: str) -> list[Any]:
        found = [mean_and_error(100 * outside(results, name, metric)) for metric in ("confidence", "auroc")]
        return [name, *found, *PUBLISHED.get(name, {}).get("average", (None, None))]

    columns = ["confidence, %", "AUROC, %", "paper: confidence, %", "paper: AUROC, %"]
    return Table(
        ["average over foreign sets", *columns],
        [row(name) for name in methods_of(results)],
        f"Averages over {_listed(results)}: mean confidence (largest probability) and AUROC of the confidence, foreign "
        "images against test images; mean over seeds ± standard error. The paper's are averages over EMNIST, "
        "Fashion-MNIST and KMNIST for networks trained on all of MNIST for 100 epochs, five seeds; it has no row for "
        "all layers.",
        better={"confidence, %": "low", "AUROC, %": "high"},
        formats=dict.fromkeys(columns, ".1f"),
    )


def _set_table(results: Results, metric: str) -> Table:
    """Return mean confidence or AUROC on each foreign set."""
    names: list[str] = list(results[0]["methods"][MODE]["foreign"])
    published = [name for name in names if name in PUBLISHED[MODE]]
    label, better, which = {"confidence": ("Mean confidence", "low", 0), "auroc": ("AUROC", "high", 1)}[metric]
    columns = [_named(name) for name in names]
    beside = [f"paper: {_named(name)}" for name in published]

    def row(method: str) -> list[Any]:
        own = [mean_and_error(100 * outside(results, method, metric, of=each)) for each in names]
        return [method, *own, *(PUBLISHED[method][n][which] if method in PUBLISHED else None for n in published)]

    return Table(
        [f"{label}, %", *columns, *beside],
        [row(method) for method in methods_of(results)],
        f"{label} on each foreign set: mean over seeds ± standard error, beside the paper's where it has it.",
        better=dict.fromkeys(columns, better),  # type: ignore[arg-type]
        formats=dict.fromkeys([*columns, *beside], ".1f"),
    )


def _ensemble_table(results: Results) -> Table:
    """Return how all layers and the ensemble compare, with intervals."""
    one, two = VARIANTS[2], ENSEMBLE
    rows: list[list[Any]] = []
    pairs = {
        **{f"test {_label(m)}": tuple(inside(results, n, m) for n in (one, two)) for m in METRICS},
        "foreign: mean confidence": tuple(outside(results, n, "confidence") for n in (one, two)),
        "foreign: AUROC": tuple(outside(results, n, "auroc") for n in (one, two)),
    }
    for name, (a, b) in pairs.items():
        mean, low, high = interval(a - b)
        higher = name.endswith(("accuracy", "AUROC"))
        winner = "undecided" if low <= 0 <= high else one if (mean > 0) == higher else two
        rows.append([name, mean, low if len(a) > 1 else None, high if len(a) > 1 else None, winner])
    columns = ["difference", "from", "to"]
    return Table(
        ["all layers − ensemble", *columns, "better"],
        rows,
        "Laplace over all layers of one network against five networks: paired differences with the 95 % interval over "
        "seeds.",
        formats=dict.fromkeys(columns, ".4f"),
    )


def _listed(results: Results) -> str:
    names = [_named(name) for name in results[0]["methods"][MODE]["foreign"]]
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1]


def _pictures(results: Results) -> tuple[Picture, ...]:
    pooled = {name: _pooled(results, name) for name in methods_of(results)}
    return (
        Picture(
            "Confidence on foreign images and detection",
            _plane(results),
            "Mean confidence on foreign images against the AUROC that confidence gives: best is the upper left corner. "
            "Filled: this run, mean over seeds ± two standard errors. Hollow: the paper, whose average is over EMNIST, "
            "Fashion-MNIST and KMNIST.",
        ),
        Picture(
            "How sure each method is",
            _histograms(results),
            "Confidence on test images (grey) and on the foreign sets, pooled over seeds. A method that knows what it "
            "does not know moves the lines to the left and leaves the grey where it is.",
        ),
        Picture(
            "Calibration on test images",
            figures.reliability_diagram(pooled),
            "Accuracy against confidence in 15 bins, pooled over seeds; bars are Wilson intervals, which take the "
            "images of different seeds for independent. The ECE is that of the pooled bins, less than the mean of the "
            "seeds' own, as their chance deviations cancel.",
        ),
    )


def _pooled(results: Results, method: str) -> _Bins:
    """Return the bins of all seeds together."""
    each = [result["methods"][method]["reliability"] for result in results]
    counts = np.array([bins["count"] for bins in each])
    total = counts.sum(0)

    def mean(key: str) -> np.ndarray:
        return (counts * np.array([bins[key] for bins in each])).sum(0) / np.maximum(total, 1)

    return _Bins(mean("confidence"), mean("accuracy"), total)


@house_style
def _plane(results: Results) -> Figure:
    """Return confidence against AUROC, one panel for the average and one per foreign set."""
    names = ["average", *results[0]["methods"][MODE]["foreign"]]
    figure = new_figure(7.2, 3.0 * ((len(names) + 1) // 2) + 0.6)
    grid = figure.subplots((len(names) + 1) // 2, 2, squeeze=False)
    handles: dict[str, Any] = {}
    for axes, name in zip(grid.flat, names, strict=False):
        handles |= _plane_panel(axes, results, name)
        if name == "average":
            panel_title(axes, "average over the sets", below="paper: EMNIST for notMNIST")
        else:
            panel_title(axes, _named(name))
    remove_spare(grid, len(names))
    for row in grid:
        row[0].set_ylabel("AUROC of the confidence")
    legend_above(figure, dict(sorted(handles.items(), key=lambda item: item[0] not in METHODS)))  # the paper's last
    note_below(
        figure, "mean confidence on foreign images; better is left and up", "mean over seeds ± two standard errors"
    )
    return figure


def _plane_panel(axes: Axes, results: Results, name: str) -> dict[str, Any]:
    handles: dict[str, Any] = {}
    for method, look in looks(methods_of(results)).items():
        x, y = (outside(results, method, metric, of=name) for metric in ("confidence", "auroc"))
        style: dict[str, Any] = {"color": look.colour, "marker": look.marker, "linestyle": "none"}
        xerr, yerr = two_standard_errors(x), two_standard_errors(y)
        axes.errorbar(x.mean(), y.mean(), xerr=xerr, yerr=yerr, color=look.colour, elinewidth=1.2, zorder=3)
        handles[method] = axes.plot(x.mean(), y.mean(), markersize=7, zorder=4, **style)[0]
        theirs = PUBLISHED.get(method, {}).get(name)
        if theirs is not None and set(SETS) >= set(results[0]["methods"][MODE]["foreign"]):
            hollow = axes.plot(theirs[0] / 100, theirs[1] / 100, markerfacecolor="white", markersize=6, **style)[0]
            if method == MODE:
                handles["hollow: the paper"] = hollow
    for axis in (axes.xaxis, axes.yaxis):
        percent_axis(axis)
    axes.locator_params(nbins=6)
    axes.margins(0.12)
    return handles


@house_style
def _histograms(results: Results) -> Figure:
    """Return the shares of images by confidence, one panel per method."""
    sets = list(results[0]["methods"][MODE]["counts"])
    bins = len(results[0]["methods"][MODE]["counts"]["test"])
    edges = np.linspace(0.1, 1.0, bins + 1)
    methods = methods_of(results)
    rows, columns = grid_shape(len(methods), widest=3)
    figure = new_figure(2.53 * columns, 2.3 * rows + 0.6)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    handles: dict[str, Any] = {}
    styles = (("#7a3e9d", "-"), ("#b8860b", "--"), ("#14606b", "-."), ("#a3324b", ":"))
    for axes, (method, look) in zip(grid.flat, looks(methods).items(), strict=False):
        for index, name in enumerate(sets):
            counts = np.sum([result["methods"][method]["counts"][name] for result in results], axis=0)
            shares = counts / counts.sum()
            if name == "test":
                handles["test images"] = axes.stairs(
                    shares, edges, fill=True, facecolor=FAINT, edgecolor=QUIET, linewidth=0.8
                )
            else:
                colour, line = styles[(index - 1) % len(styles)]
                handles[_named(name)] = axes.stairs(
                    shares, edges, baseline=None, color=colour, linestyle=line, linewidth=1.5
                )
        panel_title(axes, method, look)
    remove_spare(grid, len(methods))
    for axes in grid.flat[len(methods) - columns : len(methods)]:
        axes.tick_params(labelbottom=True)  # no panel below has them
    first = grid[0, 0]
    first.set_yscale("function", functions=(lambda share: np.sqrt(np.maximum(share, 0)), np.square))
    first.set(xlim=(edges[0], 1.0), ylim=(0, 1.0), yticks=[0.01, 0.05, 0.2, 0.5, 1.0])
    percent_axis(first.yaxis)
    figure.supylabel("share of images (square-root axis)")
    note_below(figure, "confidence (largest predictive probability)")
    legend_above(figure, handles)
    return figure
