"""Verdict, tables and figures of `subspace_inference`, with published numbers; bounds were set before any whole run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np

from torchbayes.report import Picture, Table, looks
from torchbayes.report.style import INK, house_style, legend_above, new_figure, note_below, panel_title
from torchbayes_experiments import Findings, Part, Results, Rows, below, differences, dots, pivot, tidy
from torchbayes_experiments.basins.subspace_inference import run
from torchbayes_experiments.verdicts import mean_and_error, two_standard_errors

MARGIN = 0.05  # nats: log likelihoods this close count as equally good
OPEN = 1.25  # by which a band must be wider between the clusters, and outside of them, than at the data
FAIR = 0.2  # share of the test images that the average of weights may take for something else

Numbers = dict[str, dict[str, tuple[float, float]]]


def _published(**sets: tuple[tuple[float, float], ...]) -> Numbers:
    methods = (run.SGD_POINT, run.ESS, run.VARIATIONAL, run.SWAG_POSTERIOR)
    return {name: dict(zip(methods, numbers, strict=True)) for name, numbers in sets.items()}


# Izmailov et al. (2019): mean and standard deviation over the 20 splits, tables 2 to 4 of the supplement, in the same
# order: test log likelihood of the normal distribution with the first two moments of the average, RMSE, and share of
# the targets in the central 95 % interval.
LOG_LIKELIHOOD = _published(
    boston=((-2.752, 0.132), (-2.719, 0.132), (-2.716, 0.133), (-2.761, 0.132)),
    concrete=((-3.178, 0.198), (-3.007, 0.086), (-2.994, 0.095), (-3.013, 0.086)),
    energy=((-1.736, 1.613), (-1.563, 1.243), (-1.715, 1.588), (-1.679, 1.488)),
    naval=((6.567, 0.185), (6.541, 0.095), (6.708, 0.105), (6.708, 0.105)),
    yacht=((-0.418, 0.426), (-0.225, 0.400), (-0.396, 0.419), (-0.404, 0.418)),
)
RMSE = _published(
    boston=((3.504, 0.975), (3.453, 0.953), (3.457, 0.951), (3.517, 0.981)),
    concrete=((5.194, 0.446), (5.194, 0.448), (5.142, 0.418), (5.233, 0.417)),
    energy=((1.602, 0.275), (1.598, 0.274), (1.587, 0.272), (1.594, 0.273)),
    naval=((0.001, 0.0),) * 4,
    yacht=((0.973, 0.374), (0.972, 0.375), (0.973, 0.375), (0.973, 0.375)),
)
COVERAGE = _published(
    boston=((0.986, 0.018), (0.985, 0.017), (0.984, 0.017), (0.986, 0.018)),
    concrete=((0.864, 0.029), (0.941, 0.021), (0.934, 0.019), (0.933, 0.024)),
    energy=((0.947, 0.026), (0.953, 0.027), (0.949, 0.027), (0.951, 0.027)),
    naval=((0.948, 0.051), (0.978, 0.006), (0.967, 0.008), (0.967, 0.008)),
    yacht=((0.895, 0.069), (0.948, 0.040), (0.898, 0.067), (0.898, 0.067)),
)
PUBLISHED = {"log likelihood": LOG_LIKELIHOOD, "RMSE": RMSE, "95 % coverage": COVERAGE}  # in the order of `METRICS`

# NLL and accuracy in % of elliptical slice sampling, PreResNet-164 on CIFAR-100: readme of the authors' repository; of
# the average of weights, supplement, tables 8 and 9.
IMAGE_NLL = {"SWA": 0.7370, "random": 0.6858, "PCA": 0.6652, "curve": 0.6493}
IMAGE_ACCURACY = {"SWA": 80.19, "random": 80.17, "PCA": 80.54, "curve": 81.55}


def summarise(results: Results) -> Findings:
    """The repeats of UCI sets are the splits, of scores averaged over the seeds that have them; else the seeds."""
    reports = {"regressions": _regressions, "toy": _bands, "images": _images}
    each = {key: [result[key] for result in results if key in result] for key in reports}
    findings = [reports[key](of_part) for key, of_part in each.items() if of_part]
    return Findings.of(*(chain.from_iterable(kind) for kind in zip(*findings, strict=True)))


Report = tuple[Iterable[Part], Iterable[Table], Iterable[Picture]]
LIKELIHOOD = "log likelihood"


def _regressions(results: Results) -> Report:
    rows = tidy(results, "set", "method", "metric").only(method=run.METHODS)
    frame = rows.frame
    likely = Rows(frame.assign(value=-frame["value"])[frame["metric"] == "nll_gaussian"])
    return _regression_parts(likely), _regression_tables(rows, likely), _regression_pictures(likely)


def _regression_pictures(likely: Rows) -> Iterator[Picture]:
    yield dots(
        likely,
        LIKELIHOOD,
        title="Test log likelihood on UCI regression",
        published={
            name: {f"{method}, as published": number for method, number in LOG_LIKELIHOOD[name].items()}
            for name in likely.names("set")
        },
        better="high",
        caption="Mean over splits with two standard errors, in the target's units; hollow, as published, with the "
        "standard deviation over splits. ESS and VI are in the subspace.",
    )


def _regression_tables(rows: Rows, likely: Rows) -> Iterator[Table]:
    import pandas as pd

    for metric, label in zip(run.METRICS, PUBLISHED, strict=True):
        yield _uci_table(likely if label == LIKELIHOOD else rows.where(metric=metric), label)
    with_mean = pd.concat([likely.frame, likely.frame.assign(set="mean of the sets")])  # which `differences` takes
    yield differences(
        Rows(with_mean),
        [(method, run.SGD_POINT) for method in (run.SWA_POINT, run.ESS, run.VARIATIONAL, run.SWAG_POSTERIOR)],
        index=("set",),
        labels={"mean": LIKELIHOOD},
        caption="Paired differences of the test log likelihood over splits with their 95 % t interval; above zero the "
        "first is better.",
    )


def _uci_table(rows: Rows, label: str) -> Table:
    body: list[list[Any]] = []
    for name, methods in rows.apart("set", "method", over="split").items():
        body.append([name, "here", *(mean_and_error(methods[method]) for method in run.METHODS)])
        body.append([name, "published", *map(PUBLISHED[label][name].get, run.METHODS)])
    return Table(
        [f"test {label}", "", *run.METHODS],
        body,
        "Here: mean over splits ± standard error, in the target's units. Published: Izmailov et al. (2019), ± standard "
        "deviation over splits. ESS and VI in the subspace of the principal components.",
    )


def _regression_parts(likely: Rows) -> Iterator[Part]:
    """Yield parts of each set, of their mean, and of what is published."""
    pairs = [(name, method) for name in likely.names("set") for method in (run.ESS, run.VARIATIONAL)]
    for name, method in pairs:
        statement = f"{name}: log likelihood of {method} at most {MARGIN} below that of SGD"
        yield below(statement, likely.less("method", run.SGD_POINT, method, "split", set=name), MARGIN)
    for method in (run.ESS, run.VARIATIONAL):
        statement = f"mean of the sets: log likelihood of {method} above that of SGD"
        yield below(statement, likely.less("method", run.SGD_POINT, method, "split"))
    for name, method in pairs:
        mean, spread = LOG_LIKELIHOOD[name][method]
        statement = f"{name}: NLL of {method} at most the published {-mean:g} + {spread:g}"
        yield below(statement, -likely.values("split", set=name, method=method), spread - mean)


def _bands(results: Results) -> Report:
    def numbers(band: Mapping[str, Any]) -> dict[str, float]:
        data, gaps, outside = band["data"], band["gaps"], band["outside"]
        spreads = {"at the data": data, "in the gaps": gaps, "outside": outside}
        return spreads | {"gaps/data": gaps / data, "outside/data": outside / data, "RMSE": band["rmse"]}

    rows = tidy([{name: numbers(r["spaces"][name]) for name in run.SPACES} for r in results], "subspace", "number")
    table = pivot(
        rows,
        "subspace",
        "number",
        caption="Standard deviation of the functions of ESS on the regression in one dimension, averaged over inputs "
        "in the clusters of data, between them, and outside; RMSE at the training rows; mean over seeds ± standard "
        "error.",
        digits=dict.fromkeys(("gaps/data", "outside/data"), ".2f"),
    )
    spreads = rows.apart("subspace", "number")
    parts = []
    for space in (run.PCA, run.CURVE):
        at_data = spreads[space]["at the data"]
        for region in ("in the gaps", "outside"):
            statement = f"bands: spread at the data over that {region}, {space}"
            parts.append(below(statement, at_data / spreads[space][region], 1 / OPEN))
    for space in (run.PCA, run.CURVE):
        ratio = spreads[run.RANDOM]["gaps/data"] / spreads[space]["gaps/data"]
        parts.append(below(f"bands: spread in the gaps over that at the data, random over {space}", ratio, 1.0))
    return parts, [table], map(_band_picture, results[:1])


def _images(results: Results) -> Report:
    rows = tidy(results, "images", "metric").only(images=(run.SWA_POINT, run.SWAG_POSTERIOR, *run.SPACES))
    nll, wrong = rows.where(metric="nll"), 1 - rows.values(images=run.SWA_POINT, metric="accuracy")
    pairs = [(run.PCA, run.RANDOM), (run.CURVE, run.PCA), *((space, run.SWA_POINT) for space in run.SPACES)]
    parts = [
        below("images: error of SWA", wrong, FAIR, precondition=True),
        *(below(f"images: NLL of {a} below that of {b}", nll.less("images", a, b)) for a, b in pairs),
    ]
    names: dict[Any, str] = {space: f"ESS, {space}" for space in run.SPACES}
    labels: dict[Any, str] = {"nll": "NLL", "accuracy": "accuracy, %", "ece": "ECE"}
    digits: dict[str, str] = dict.fromkeys(("NLL", "ECE", "published NLL"), ".4f")
    table = pivot(
        rows,
        "images",
        "metric",
        keep=labels,
        labels=names,
        scale={"accuracy": 100},
        beside={"published NLL": IMAGE_NLL.get, "published accuracy, %": IMAGE_ACCURACY.get},
        caption="Test images: mean over seeds ± standard error. Published: PreResNet-164 on CIFAR-100.",
        better={"NLL": "low", "accuracy, %": "high", "ECE": "low"},
        digits=digits | dict.fromkeys(("accuracy, %", "published accuracy, %"), ".2f"),
    )
    panels: dict[str, dict[Any, Any]] = {
        labels[metric]: {
            names.get(name, name): scale * values for name, values in rows.where(metric=metric).apart("images").items()
        }
        for metric, scale in (("nll", 1), ("accuracy", 100))
    }
    return parts, [table], map(_image_picture, [panels])


@house_style
def _band_picture(toy: Mapping[str, Any]) -> Picture:
    figure, handles = new_figure(7.4, 2.9), {}
    panels = figure.subplots(1, len(run.SPACES), sharex=True, sharey=True)
    grid = np.array(toy["grid"])
    for axes, (name, look) in zip(panels, looks(run.SPACES).items(), strict=True):
        band, colour = toy["spaces"][name], look.colour
        mean, std = np.array(band["mean"]), np.array(band["std"])
        ends = (mean - 2 * std, mean + 2 * std)
        handles["± 2 std of the functions"] = axes.fill_between(grid, *ends, color=colour, alpha=0.3, linewidth=0)
        for draw in band["draws"]:
            (handles["drawn functions"],) = axes.plot(grid, draw, color=colour, linewidth=0.5, alpha=0.6)
        (handles["mean"],) = axes.plot(grid, mean, color=colour)
        (handles["training rows"],) = axes.plot(toy["x"], toy["y"], "o", color=INK, markersize=1.8, linewidth=0)
        panel_title(axes, name, look)
        axes.margins(x=0)
    low, high = min(toy["y"]), max(toy["y"])
    panels[0].set(ylabel="y", ylim=(low - 0.5 * (high - low), high + 0.75 * (high - low)))
    note_below(figure, "x")
    legend_above(figure, handles)
    return Picture(
        "Bands of three subspaces",
        figure,
        "Elliptical slice sampling in a random subspace, in that of the principal components, both of the same size, "
        "and in the plane of a curve between two networks: mean, ± 2 standard deviations of the functions, and some "
        "of these; first seed.",
    )


@house_style
def _image_picture(panels: Mapping[str, Mapping[str, np.ndarray]]) -> Picture:
    figure = new_figure(7.2, 2.4)
    grid = figure.subplots(1, len(panels), sharey=True)
    names = list(next(iter(panels.values())))
    for axes, (metric, values) in zip(grid, panels.items(), strict=True):
        for place, (name, look) in enumerate(looks(names).items()):
            repeats, mean, half = values[name], values[name].mean(), two_standard_errors(values[name])
            axes.hlines(place, mean - half, mean + half, color=look.colour, linewidth=1.8)
            axes.plot(mean, place, color=look.colour, marker=look.marker, markersize=6)
            axes.plot(repeats, np.full(len(repeats), place + 0.25), "|", color=look.colour, markersize=4)
        panel_title(axes, metric)
    grid[0].set_yticks(range(len(names)), names)
    grid[0].set_ylim(len(names) - 0.4, -0.6)
    note_below(figure, "mean over seeds ± two standard errors; strokes: seeds")
    caption = "Test images: mean over seeds with two standard errors, small the seeds themselves."
    return Picture("Images by subspace", figure, caption)
