"""Verdict, tables and figures of `laplace_redux`, with the published numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from torchbayes.report import Picture, Table, figures, looks, style
from torchbayes_experiments import Findings, Part, Results, Rows, Verdict, below, pivot, tidy
from torchbayes_experiments.evidence.laplace_redux.run import ENSEMBLE, METHODS, MODE, VARIANTS
from torchbayes_experiments.shared.classifiers import METRICS
from torchbayes_experiments.verdicts import interval, two_standard_errors

DETECTION = 0.01  # of AUROC: detection within it counts as unchanged
MARGINS = {"nll": 0.01, "ece": 0.01}  # nats and share: a method within them counts as not worse
SAME = 0.002  # of accuracy: within it accuracy counts as unchanged
SETS = {"fashion_mnist": "Fashion-MNIST", "kmnist": "KMNIST", "notmnist": "notMNIST"}
LABELS = {"nll": "NLL", "ece": "ECE"}
SCALE = "prior scale"

# Mean confidence and AUROC in % of LeNet trained on MNIST (Daxberger et al. 2021), means of five seeds: its table of
# averages over three foreign sets, and its table of the single sets. EMNIST is not among the sets here.
PUBLISHED: dict[str, dict[str, tuple[float, float]]] = {
    MODE: {"average": (75.0, 96.5), "EMNIST": (83.6, 93.5), "fashion_mnist": (64.2, 98.9), "kmnist": (77.3, 97.0)},
    "LA": {"average": (67.5, 96.2), "EMNIST": (74.8, 93.4), "fashion_mnist": (58.8, 98.5), "kmnist": (69.0, 96.6)},
    "LA*": {"average": (56.1, 96.4), "EMNIST": (62.0, 94.3), "fashion_mnist": (49.6, 98.3), "kmnist": (56.7, 96.6)},
    ENSEMBLE: {"average": (65.7, 97.5), "EMNIST": (75.8, 95.1), "fashion_mnist": (55.4, 99.2), "kmnist": (65.9, 98.3)},
}


def summarise(results: Results) -> Findings:
    rows, sets = _rows(results), [str(SETS.get(name, name)) for name in results[0]["methods"][MODE]["foreign"]]
    listed = ", ".join(sets[:-1]) + " and " * (len(sets) > 1) + sets[-1]
    tables = (_digits_table(rows), _average_table(rows, listed))
    tables += (_set_table(rows, "confidence"), _set_table(rows, "auroc"))
    tables += (_ensemble_table(rows),) if ENSEMBLE in rows.names("method") else ()
    return Findings(verdict(results), tables, _pictures(rows, results))


def _rows(results: Results) -> Rows:
    """Return method, images ("test", a foreign set, or "average" over these) and metric."""

    def images(name: str, scores: Mapping[str, Any], scales: Mapping[str, float]) -> dict[str, Any]:
        foreign = scores["foreign"].values()
        average = {metric: np.mean([each[metric] for each in foreign]) for metric in ("confidence", "auroc")}
        return {"test": scores["test"] | {SCALE: scales.get(name)}, "average": average, **scores["foreign"]}

    seeds = [{m: images(m, scores, r["prior_scale"]) for m, scores in r["methods"].items()} for r in results]
    return tidy(seeds, "method", "images", "metric").only(method=METHODS)


def verdict(results: Results) -> Verdict:
    """Return the verdict; claims and margins were set before any whole run."""
    rows = _rows(results)

    def above(name: str, images: str, metric: str) -> np.ndarray:
        scores = rows.where(images=images, metric=metric)
        return scores.values(method=name) - scores.values(method=MODE)

    errors = 1 - rows.values(method=MODE, images="test", metric="accuracy")
    parts: list[Part] = [below("error of the MAP on test images", errors, 0.05, precondition=True)]
    for name in VARIANTS:
        confidence, auroc = (above(name, "average", metric) for metric in ("confidence", "auroc"))
        moved = np.abs(above(name, "test", "accuracy"))
        parts += [
            below(f"{name}: mean confidence on foreign images below the MAP's", confidence),
            below(f"{name}: AUROC at most {DETECTION} below the MAP's", -auroc, DETECTION),
            *(
                below(f"{name}: test {LABELS[m]} at most {margin} above the MAP's", above(name, "test", m), margin)
                for m, margin in MARGINS.items()
            ),
            below(f"{name}: test accuracy within {SAME} of the MAP's", moved, SAME),
        ]
    aurocs = rows.where(images="average", metric="auroc").apart("method")
    if ENSEMBLE in aurocs:
        ahead = np.max([aurocs[name] for name in VARIANTS], axis=0) - aurocs[ENSEMBLE]
        parts.append(below("AUROC of the best Laplace variant below the ensemble's", ahead))
    return Verdict.of(parts)


def _digits_table(rows: Rows) -> Table:
    return pivot(
        rows.where(images="test"),
        "method",
        "metric",
        keep=(*METRICS, SCALE),
        heads=["test images"],
        labels=LABELS,
        digits=dict.fromkeys(("accuracy", "NLL", "ECE"), ".4f"),
        better={"accuracy": "high", "NLL": "low", "ECE": "low"},
        caption="Test images: mean over seeds ± standard error. LA: last layer, Kronecker factors of the Gauss-Newton "
        "matrix. LA*: last layer, dense empirical Fisher. All layers: like LA, over every weight. The prior scale is "
        "the one that the evidence chose for the random weights; the networks were trained under that of the MAP.",
    )


def _published(images: str, metric: str) -> Any:
    """Return method -> the paper's number, in %."""
    return lambda method: PUBLISHED.get(method, {}).get(images, (None, None))[metric == "auroc"]


def _average_table(rows: Rows, sets: str) -> Table:
    labels = {"confidence": "confidence, %", "auroc": "AUROC, %"}
    beside = {f"paper: {label}": _published("average", metric) for metric, label in labels.items()}
    return pivot(
        rows.where(images="average"),
        "method",
        "metric",
        heads=["average over foreign sets"],
        labels=labels,
        scale=100,
        digits=dict.fromkeys([*labels.values(), *beside], ".1f"),
        beside=beside,
        better={"confidence, %": "low", "AUROC, %": "high"},
        caption=f"Averages over {sets}: mean confidence (largest probability) and AUROC of the confidence, foreign "
        "images against test images; mean over seeds ± standard error. The paper's are averages over EMNIST, "
        "Fashion-MNIST and KMNIST for networks trained on all of MNIST for 100 epochs, five seeds; it has no row for "
        "all layers.",
    )


def _set_table(rows: Rows, metric: str) -> Table:
    """Return mean confidence or AUROC on each foreign set."""
    label, better = {"confidence": ("Mean confidence", "low"), "auroc": ("AUROC", "high")}[metric]
    names = [name for name in rows.names("images") if name not in {"test", "average"}]
    beside = {f"paper: {SETS[name]}": _published(name, metric) for name in names if name in PUBLISHED[MODE]}
    return pivot(
        rows.where(metric=metric),
        "method",
        "images",
        keep=names,
        heads=[f"{label}, %"],
        labels=SETS,
        scale=100,
        digits=dict.fromkeys([*(str(SETS.get(name, name)) for name in names), *beside], ".1f"),
        beside=beside,
        better=better,
        caption=f"{label} on each foreign set: mean over seeds ± standard error, beside the paper's where it has it.",
    )


def _ensemble_table(rows: Rows) -> Table:
    """Return how all layers and the ensemble compare, with intervals."""
    pairs = {("test", metric): f"test {LABELS.get(metric, metric)}" for metric in METRICS}
    pairs |= {("average", "confidence"): "foreign: mean confidence", ("average", "auroc"): "foreign: AUROC"}
    body: list[list[Any]] = []
    for (images, metric), label in pairs.items():
        first, second = (rows.values(method=m, images=images, metric=metric) for m in (VARIANTS[2], ENSEMBLE))
        mean, *ends = interval(first - second)
        ahead = VARIANTS[2] if (mean > 0) == (metric in {"accuracy", "auroc"}) else ENSEMBLE
        ahead = "undecided" if ends[0] <= 0 <= ends[1] else ahead
        body.append([label, mean, *(end if np.isfinite(end) else None for end in ends), ahead])
    columns = ["difference", "from", "to"]
    return Table(
        ["all layers − ensemble", *columns, "better"],
        body,
        "Laplace over all layers of one network against five networks: paired differences with the 95 % interval over "
        "seeds.",
        formats=dict.fromkeys(columns, ".4f"),
    )


def _pictures(rows: Rows, results: Results) -> tuple[Picture, ...]:
    pooled = {name: _pooled([r["methods"][name]["reliability"] for r in results]) for name in rows.names("method")}
    return (
        Picture(
            "Confidence on foreign images and detection",
            _plane(rows),
            "Mean confidence on foreign images against the AUROC that confidence gives: best is the upper left corner. "
            "Filled: this run, mean over seeds ± two standard errors. Hollow: the paper, whose average is over EMNIST, "
            "Fashion-MNIST and KMNIST.",
        ),
        Picture(
            "How sure each method is",
            _histograms(results, rows.names("method")),
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


def _pooled(bins: Sequence[Mapping[str, Any]]) -> Any:
    """Return the bins of the reliability diagrams of all seeds together."""
    counts = np.array([each["count"] for each in bins])
    total = counts.sum(0)
    means = {
        key: (counts * np.array([each[key] for each in bins])).sum(0) / np.maximum(total, 1)
        for key in ("confidence", "accuracy")
    }
    return SimpleNamespace(**means, count=total)


@style.house_style
def _plane(rows: Rows) -> Any:
    """Return confidence against AUROC, one panel for the average and one per foreign set."""
    names = [name for name in rows.names("images") if name != "test"]
    count, compare = (len(names) + 1) // 2, set(names) <= {"average", *SETS}
    figure = style.new_figure(7.2, 3.0 * count + 0.6)
    grid = figure.subplots(count, 2, squeeze=False)
    handles: dict[str, Any] = {}
    for axes, name in zip(grid.flat, names, strict=False):
        for method, look in looks(rows.names("method")).items():
            x, y = (rows.values(method=method, images=name, metric=metric) for metric in ("confidence", "auroc"))
            drawn: dict[str, Any] = {"color": look.colour, "marker": look.marker, "linestyle": "none"}
            bars: dict[str, Any] = {"xerr": two_standard_errors(x), "yerr": two_standard_errors(y)}
            axes.errorbar(x.mean(), y.mean(), **bars, color=look.colour, elinewidth=1.2, zorder=3)
            handles[method] = axes.plot(x.mean(), y.mean(), markersize=7, zorder=4, **drawn)[0]
            theirs = PUBLISHED.get(method, {}).get(name)
            if theirs is not None and compare:
                hollow = axes.plot(theirs[0] / 100, theirs[1] / 100, markerfacecolor="white", markersize=6, **drawn)
                handles |= {"hollow: the paper": hollow[0]} if method == MODE else {}
        style.percent_axis(axes.xaxis)
        style.percent_axis(axes.yaxis)
        axes.locator_params(nbins=6)
        axes.margins(0.12)
        below_it = "paper: EMNIST for notMNIST" if name == "average" else ""
        style.panel_title(axes, "average over the sets" if below_it else str(SETS.get(name, name)), below=below_it)
    style.remove_spare(grid, len(names))
    for row in grid:
        row[0].set_ylabel("AUROC of the confidence")
    style.legend_above(figure, dict(sorted(handles.items(), key=lambda item: item[0] not in METHODS)))  # paper's last
    better = "mean confidence on foreign images; better is left and up"
    style.note_below(figure, better, "mean over seeds ± two standard errors")
    return figure


@style.house_style
def _histograms(results: Results, methods: Sequence[str]) -> Any:
    """Return the shares of images by confidence, one panel per method."""
    counts = results[0]["methods"][MODE]["counts"]
    edges = np.linspace(0.1, 1.0, len(counts["test"]) + 1)
    rows, columns = style.grid_shape(len(methods), widest=3)
    figure = style.new_figure(2.53 * columns, 2.3 * rows + 0.6)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    handles: dict[str, Any] = {}
    lines = (("#7a3e9d", "-"), ("#b8860b", "--"), ("#14606b", "-."), ("#a3324b", ":"))
    filled: dict[str, Any] = {"fill": True, "facecolor": style.FAINT, "edgecolor": style.QUIET, "linewidth": 0.8}
    for axes, (method, look) in zip(grid.flat, looks(methods).items(), strict=False):
        for index, name in enumerate(counts):
            pooled = np.sum([result["methods"][method]["counts"][name] for result in results], axis=0)
            colour, line = lines[(index - 1) % len(lines)]
            open_: dict[str, Any] = {"baseline": None, "color": colour, "linestyle": line, "linewidth": 1.5}
            label = "test images" if name == "test" else str(SETS.get(name, name))
            handles[label] = axes.stairs(pooled / pooled.sum(), edges, **(filled if name == "test" else open_))
        style.panel_title(axes, method, look)
    style.remove_spare(grid, len(methods))
    for axes in grid.flat[len(methods) - columns : len(methods)]:
        axes.tick_params(labelbottom=True)  # no panel below has them
    first = grid[0, 0]
    first.set_yscale("function", functions=(lambda share: np.sqrt(np.maximum(share, 0)), np.square))
    first.set(xlim=(edges[0], 1.0), ylim=(0, 1.0), yticks=[0.01, 0.05, 0.2, 0.5, 1.0])
    style.percent_axis(first.yaxis)
    figure.supylabel("share of images (square-root axis)")
    style.note_below(figure, "confidence (largest predictive probability)")
    style.legend_above(figure, handles)
    return figure
