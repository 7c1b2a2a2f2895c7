"""Verdict, tables and figures of `flat_regions`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import numpy as np

from torchbayes.report import Picture, Table, figures, looks
from torchbayes.report.style import INK, QUIET, house_style, legend_above, new_figure, note_below, percent_axis
from torchbayes_experiments import Findings, Part, Results, Rows, below, pivot, tidy
from torchbayes_experiments.basins.flat_regions.run import END, FILTERS, GRID, MATCHED, PLAIN, RAW
from torchbayes_experiments.tables import banded_line
from torchbayes_experiments.verdicts import mean_and_error, ranks_agree

NONE = 1e-9  # share of mistakes that counts as none
LEVELS = 1.05  # the largest loss on the clean rows may be so many times the smallest
SPREAD = 0.3  # by which the test error of the worst network must exceed that of the best
ORDERS = 1000.0  # of magnitude, between the volumes of the best and the worst
RANK = 0.9  # correlation of ranks that is called monotone
FALL = 0.75  # test loss of the widest network, in units of the largest over widths
FEWEST = 4.5  # widths that fit their rows, of which ranks are compared, must be more
TOGETHER = 0.7  # correlation of ranks above which two numbers are said to fall together

WHEN = {END: "after the whole training", MATCHED: "at equal training loss"}
SIZE, DASHED = "effective dimension", (0, (4, 2))
GEOMETRY = {
    "filters, volume": ("basins", FILTERS, "orders"),
    "filters, typical": ("basins", FILTERS, "typical"),
    "raw, volume": ("basins", RAW, "orders"),
    "raw, typical": ("basins", RAW, "typical"),
    SIZE: ("curvature", "effective"),
    "trace": ("curvature", "trace"),
    "learning coefficient": ("coefficient",),
}


def summarise(results: Results) -> Findings:
    pictures = (draw(results) for draw in (_volumes, _surfaces, _widths, _densities))
    return Findings.of([*_solution_parts(results), *_width_parts(results)], _tables(results), pictures)


def _at(network: Mapping[str, Any], keys: Iterable[Any]) -> Any:
    """Return what nested mappings hold under keys, from the outside in."""
    return reduce(lambda entry, key: entry[key], keys, network)


def _plain(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the networks of a seed that were trained in the plain way, in the order of their shares of poison."""
    return sorted((entry for entry in result["solutions"] if entry["name"] == PLAIN), key=lambda entry: entry["share"])


def _over_shares(results: Results, *keys: str) -> np.ndarray:
    """Return a number of all networks that `_plain` returns, (R, K)."""
    return np.array([[_at(network, keys) for network in _plain(result)] for result in results], dtype=np.float64)


def _accuracy_ranks(results: Results, keys: Iterable[str]) -> np.ndarray:
    """Return the rank correlation of a number and test accuracy over shares of poison, (R,)."""
    pairs = zip(_over_shares(results, *keys), 1 - _over_shares(results, "test_error"), strict=True)
    return np.array([ranks_agree(values, accuracy) for values, accuracy in pairs])


def _fitted(result: Mapping[str, Any], when: str) -> list[dict[str, Any]]:
    """Return the widths at which, after the whole training, no row is misclassified, with their numbers `when`."""
    rows = [entry for entry in result["widths"] if entry[END]["error"] <= NONE and entry[when] is not None]
    return [{"weights": entry["weights"], **entry[when]} for entry in rows]


def _width_ranks(results: Results, when: str, key: str, *, precision: int | None = None) -> np.ndarray:
    """Return the rank correlation of a number and the test loss over the widths that fit their training rows, (R,)."""
    keys = (key,) if precision is None else (key, precision)
    each = [_fitted(result, when) for result in results]
    return np.array([ranks_agree([_at(w, keys) for w in widths], [w["test_nll"] for w in widths]) for widths in each])


def _solution_parts(results: Results) -> Iterator[Part]:
    solutions = [result["solutions"] for result in results]
    mistakes, losses = (np.array([[network[key] for network in s] for s in solutions]) for key in ("error", "loss"))
    errors, sizes = (_over_shares(results, *keys) for keys in (("test_error",), GEOMETRY[SIZE]))
    spread, ratio = errors[:, -1] - errors[:, 0], losses.max(1) / losses.min(1)
    yield below("largest share of mistakes on the clean rows: none", mistakes.max(1), NONE, precondition=True)
    yield below(f"largest over smallest loss on the clean rows below {LEVELS:g}", ratio, LEVELS, precondition=True)
    worse = f"test error of the most poisoned network above that of the good one by {100 * SPREAD:g} points"
    yield below(worse, SPREAD - spread, precondition=True)
    volumes = {
        "filter-normalised volume": "filters, volume",
        "filter-normalised volume of the typical direction": "filters, typical",
        "raw volume": "raw, volume",
    }
    for volume, column in volumes.items():
        orders = _over_shares(results, *GEOMETRY[column])
        by = f"the most poisoned network's smaller by more than {ORDERS:,.0f} orders of magnitude"
        yield below(f"{volume}: {by}", orders[:, -1] - orders[:, 0], -ORDERS)
    monotone = {
        "rank correlation of filter-normalised volume and test accuracy": "filters, volume",
        "the same of the volume of the typical direction": "filters, typical",
    }
    for ranks, column in monotone.items():
        yield below(f"{ranks} above {RANK:g}", RANK - _accuracy_ranks(results, GEOMETRY[column]))
    smaller = "effective dimension of the good network below that of the most poisoned one"
    yield below(smaller, sizes[:, 0] - sizes[:, -1])


def _width_parts(results: Results) -> Iterator[Part]:
    losses = np.array([[entry[END]["test_nll"] for entry in result["widths"]] for result in results])
    fall = losses[:, -1] / losses.max(1)
    counts = np.array([min(len(_fitted(result, when)) for when in WHEN) for result in results])
    together, matched = (_width_ranks(results, when, "effective", precision=0) for when in WHEN)
    ranks = "rank correlation of effective dimension and test loss above"
    of_weights = "past interpolation: rank correlation of the number of weights and test loss below 0"
    yield below("widths that fit their training rows: at least five", -counts, -FEWEST, precondition=True)
    yield below(f"test loss of the widest network below {FALL:g} of the largest over widths", fall, FALL)
    yield below(f"past interpolation: {ranks} {TOGETHER:g}", TOGETHER - together)
    yield below(of_weights, _width_ranks(results, END, "weights"))
    yield below(f"the same networks at equal training loss: {ranks} 0", -matched)


def _rows(results: Results, columns: Mapping[str, Sequence[str]]) -> Rows:
    def by_network(result: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        labels = {f"{network['name']}, {100 * network['share']:g} %": network for network in result["solutions"]}
        return {label: {name: _at(n, keys) for name, keys in columns.items()} for label, n in labels.items()}

    return tidy(map(by_network, results), "network, poison", "column")


def _tables(results: Results) -> Iterator[Table]:
    columns = {"epochs": "epochs", "loss": "loss", "mistakes": "error", "mistakes on poison": "poison_error"}
    columns |= {"test error": "test_error", "test loss": "test_nll", "norm": "norm"}
    yield pivot(
        _rows(results, {name: (key,) for name, key in columns.items()}),
        "network, poison",
        "column",
        caption="Networks that fit the same rows: rows with wrong labels in % of the clean rows, epochs until the "
        "clean rows were fitted, mean loss (nats) and share of mistakes on these, mistakes on the rows with wrong "
        "labels, scores on test rows, and norm of all weights. Mean over seeds ± standard error.",
        digits={"epochs": ".0f", "loss": ".4f", "mistakes": ".4f", "norm": ".1f"},
    )
    geometry = pivot(
        _rows(results, GEOMETRY),
        "network, poison",
        "column",
        caption="log₁₀ of the volume of the basin as in the paper, log₁₀ E[r^D], and of the typical direction, D "
        "E[log₁₀ r], with radii in units of the network's filters and raw; effective dimension and trace of the "
        "Gauss-Newton matrix; local learning coefficient. All on the clean rows. Last row: of the networks that SGD "
        "trained. Mean over seeds ± standard error.",
        digits=",.0f",
    )
    cells = [np.atleast_1d(mean_and_error(_accuracy_ranks(results, keys))) for keys in GEOMETRY.values()]
    # correlations have two decimals, in columns of numbers with none
    ranks = [" ± ".join(f"{number:.2f}" for number in cell).replace("-", "−") for cell in cells]
    yield replace(geometry, rows=[*geometry.rows, ["rank correlation with test accuracy", *ranks]])
    yield _width_table(results)
    yield _rank_table(results)


def _width_table(results: Results) -> Table:
    columns = {"effective": SIZE, "loss": "training loss", "error": "mistakes"}
    columns |= {"test_nll": "test loss", "test_error": "test error"}
    numbers = (
        {w["units"]: {w["weights"]: w[END] | {"effective": w[END]["effective"][0]}} for w in result["widths"]}
        for result in results
    )
    return pivot(
        tidy(numbers, "units", "weights", "column"),
        ("units", "weights"),
        "column",
        keep=columns,
        caption="One hidden layer of growing width, after the whole training: effective dimension, mean loss (nats) "
        "and share of mistakes on the training rows with their noisy labels, and scores on test rows. Mean over seeds "
        "± standard error.",
        digits={"units": "d", "weights": ",d", SIZE: ".1f", "training loss": ".4f"},
    )


def _rank_table(results: Results) -> Table:
    heads = {f"effective dimension, α = {precision:g}": p for p, precision in enumerate(results[0]["precisions"])}
    ranks = {name: partial(_width_ranks, results, key="effective", precision=place) for name, place in heads.items()}
    ranks["number of weights"] = partial(_width_ranks, results, key="weights")
    ranks["training loss"] = partial(_width_ranks, results, key="loss")
    return Table(
        ["networks", *ranks],
        [[label, *(mean_and_error(rank(when=when)) for rank in ranks.values())] for when, label in WHEN.items()],
        "Rank correlation with the test loss over the widths at which no training row is misclassified after the whole "
        "training. Mean over seeds ± standard error.",
        formats=dict.fromkeys(ranks, ".2f"),
    )


def _poison(share: float) -> str:
    return f"{100 * share:g} % poison"


def _name(network: Mapping[str, Any]) -> str:
    return _poison(network["share"]) if network["name"] == PLAIN else network["name"]


@house_style
def _volumes(results: Results) -> Picture:
    figure, handles = new_figure(7.4, 3.6), {}
    styles = looks(_name(network) for network in results[0]["solutions"])
    panels = {"filter-normalised radii": "filters, volume", "raw radii": "raw, volume"}
    for axes, (title, column) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        for result in results:
            good = _at(_plain(result)[0], GEOMETRY[column])
            for (label, look), network in zip(styles.items(), result["solutions"], strict=True):
                point = 1 - network["test_error"], _at(network, GEOMETRY[column]) - good
                (handles[label],) = axes.plot(*point, look.marker, color=look.colour, linestyle="none", alpha=0.85)
        axes.set(title=title, ylabel="log₁₀ of the volume over the good one's")
        axes.yaxis.set_major_formatter(lambda value, _position: f"{value:,.0f}".replace("-", "−"))
        percent_axis(axes.xaxis)
    note_below(figure, "test accuracy")
    legend_above(figure, handles)
    return Picture(
        "Volumes of good and bad solutions",
        figure,
        "log₁₀ of the volume of each basin over that of the good network of the same seed, against test accuracy; a "
        "point for each network of each seed. Left: radii in units of the network's filters. Right: radii in weight "
        "space, which depend on the scale of the weights as well. All networks fit the same rows without a mistake, at "
        "about the same loss.",
    )


def _surfaces(results: Results) -> Picture:
    planes = results[0]["surfaces"]
    errors = {network["share"]: network["test_error"] for network in _plain(results[0])}
    titles = [f"{_poison(share)}: test error {100 * errors[share]:.0f} %" for share in planes["shares"]]
    grids = {title: np.array(grid) for title, grid in zip(titles, planes["nll"], strict=True)}
    return Picture(
        "A good and a bad solution",
        figures.loss_surfaces(grids, planes["x"], planes["y"], label="loss on the clean rows (nats)"),
        "Loss over the plane of two random directions, in units of the network's filters, around each of two networks "
        "that fit these rows; first seed.",
    )


@house_style
def _widths(results: Results) -> Picture:
    figure, handles = new_figure(9.0, 3.4), {}
    panels = {"training loss (nats)": ["loss"], "test loss (nats)": ["test_nll"]} | {SIZE: ["effective", 0]}
    grid, widths = figure.subplots(1, len(panels)), [result["widths"] for result in results]
    units, styles = np.array([entry["units"] for entry in widths[0]]), looks(WHEN.values())
    misses = np.array([[entry[END]["error"] > 0 for entry in of_seed] for of_seed in widths]).any(0)
    first = int(np.flatnonzero(misses).max(initial=-1)) + 1  # width from which on all seeds fit their training rows
    ticks = 2.0 ** np.arange(np.floor(np.log2(units[0])), np.ceil(np.log2(units[-1])) + 1)
    for axes, (title, keys) in zip(grid, panels.items(), strict=True):
        for when, label in WHEN.items():
            reached = [place for place in range(len(units)) if all(w[place][when] for w in widths)]
            if reached:
                values = np.array([[_at(w[place][when], keys) for place in reached] for w in widths])
                line = "-" if when == END else DASHED
                handles[label] = banded_line(axes, units[reached], values, styles[label], linestyle=line)
        place = float(units[first]) if first < len(units) else np.nan
        handles["no mistake on training rows"] = axes.axvline(place, color=QUIET, linestyle=":", linewidth=1.2)
        axes.set_title(title)
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    grid[0].set_yscale("log")
    note_below(figure, "hidden units", f"mean over {len(results)} seeds, band ± two standard errors")
    legend_above(figure, handles)
    return Picture(
        "Effective dimension and loss by width",
        figure,
        "Networks with one hidden layer on few rows with noisy labels: mean training loss, mean test loss, and "
        "effective dimension, after the whole training and at the first epoch at which the training loss had fallen to "
        "a given level. From the dotted line on no training row is misclassified, in any seed.",
    )


@house_style
def _densities(results: Results) -> Picture:
    figure, handles = new_figure(5.6, 3.6), {}
    axes = figure.subplots()
    names = [_name(network) for network in _plain(results[0])]
    styles = looks(_name(network) for network in results[0]["solutions"])
    for place in sorted({0, len(names) // 2, len(names) - 1}):  # the good network, the most poisoned one, one between
        mean = np.mean([_plain(result)[place]["curvature"]["density"] for result in results], axis=0)
        look, density = styles[names[place]], np.where(mean > 0.3, mean, np.nan)
        (handles[names[place]],) = axes.plot(
            10.0 ** np.array(GRID), density, color=look.colour, marker=look.marker, markevery=12, markersize=4
        )
    axes.set(xscale="log", yscale="log", xlabel="eigenvalue λ (nats per squared unit of the weights)")
    axes.set_ylabel("eigenvalues per decade")
    handles["α"] = axes.axvline(results[0]["precision"], color=INK, linestyle=":", linewidth=1.0)
    legend_above(figure, handles)
    return Picture(
        "Eigenvalues of good and bad solutions",
        figure,
        "Eigenvalues of the Gauss-Newton matrix of the clean rows per decade, smoothed, mean over seeds.",
    )
