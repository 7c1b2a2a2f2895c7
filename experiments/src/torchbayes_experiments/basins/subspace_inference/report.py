"""Verdict, tables and figures of `subspace_inference`, with published numbers; bounds were set before any whole run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from torchbayes.report import Picture, Table, looks
from torchbayes.report.style import INK, house_style, legend_above, new_figure, note_below, panel_title
from torchbayes_experiments import Findings, Part, Results, Rows, below, dots, pivot, tidy
from torchbayes_experiments.basins.subspace_inference.run import (
    CURVE,
    ESS,
    METHODS,
    METRICS,
    PCA,
    RANDOM,
    SGD_POINT,
    SPACES,
    SWA_POINT,
    SWAG_POSTERIOR,
    VARIATIONAL,
)
from torchbayes_experiments.verdicts import interval, mean_and_error

MARGIN = 0.05  # nats: log likelihoods this close count as equally good
OPEN = 1.25  # by which a band must be wider between the clusters, and outside of them, than at the data
FAIR = 0.2  # share of the test images that the average of weights may take for something else

Numbers = dict[str, dict[str, tuple[float, float]]]


def _published(**sets: tuple[tuple[float, float], ...]) -> Numbers:
    return {
        name: dict(zip((SGD_POINT, ESS, VARIATIONAL, SWAG_POSTERIOR), of, strict=True)) for name, of in sets.items()
    }


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
    parts: list[Part] = []
    tables: list[Table] = []
    pictures: list[Picture] = []
    for key, report in (("regressions", _regressions), ("toy", _bands), ("images", _images)):
        some = [result[key] for result in results if key in result]
        if some:
            more_parts, more_tables, picture = report(some)
            parts, tables, pictures = [*parts, *more_parts], [*tables, *more_tables], [*pictures, picture]
    return Findings.of(parts, tables, pictures)


Report = tuple[list[Part], list[Table], Picture]


def _regressions(results: Results) -> Report:
    rows = tidy(results, "set", "method", "metric").only(method=METHODS)
    frame = rows.frame
    likely = Rows(frame.assign(value=-frame["value"])[frame["metric"] == "nll_gaussian"])
    label = "log likelihood"
    picture = dots(
        likely,
        label,
        title="Test log likelihood on UCI regression",
        published={
            name: {f"{method}, as published": number for method, number in LOG_LIKELIHOOD[name].items()}
            for name in results[0]
        },
        better="high",
        caption="Mean over splits with two standard errors, in the target's units; hollow, as published, with the "
        "standard deviation over splits. ESS and VI are in the subspace.",
    )
    tables = [
        _uci_table(likely if of == label else rows.where(metric=metric), of)
        for metric, of in zip(METRICS, PUBLISHED, strict=True)
    ]
    sets = {name: likely.where(set=name) for name in results[0]}
    return _regression_parts(likely, sets), [*tables, _difference_table(likely, sets)], picture


def _uci_table(rows: Rows, label: str) -> Table:
    body: list[list[Any]] = []
    for name, methods in rows.apart("set", "method", over="split").items():
        body.append([name, "here", *(mean_and_error(methods[method]) for method in METHODS)])
        body.append([name, "published", *map(PUBLISHED[label][name].get, METHODS)])
    return Table(
        [f"test {label}", "", *METHODS],
        body,
        "Here: mean over splits ± standard error, in the target's units. Published: Izmailov et al. (2019), ± standard "
        "deviation over splits. ESS and VI in the subspace of the principal components.",
        formats=dict.fromkeys(METHODS, ".3f"),
    )


def _lead(likely: Rows, method: str) -> np.ndarray:
    """Return by how much the log likelihood of a method is above that of SGD, mean over the sets, for each split."""
    return likely.values("split", method=method) - likely.values("split", method=SGD_POINT)


def _difference_table(likely: Rows, sets: Mapping[str, Rows]) -> Table:
    body = []
    for name, rows in (*sets.items(), ("mean of the sets", likely)):
        for method in (SWA_POINT, ESS, VARIATIONAL, SWAG_POSTERIOR):
            ends = [end if np.isfinite(end) else None for end in interval(_lead(rows, method))]
            body.append([name, f"{method} − SGD", *ends])
    numbers = ("log likelihood", "from", "to")
    return Table(
        ["set", "difference", *numbers],
        body,
        "Paired differences of the test log likelihood over splits with their 95 % t interval; above zero the first is "
        "better.",
        formats=dict.fromkeys(numbers, ".3f"),
    )


def _regression_parts(likely: Rows, sets: Mapping[str, Rows]) -> list[Part]:
    pairs = [(name, method) for name in sets for method in (ESS, VARIATIONAL)]
    parts = []
    for name, method in pairs:
        said = f"{name}: log likelihood of {method} at most {MARGIN} below that of SGD"
        parts.append(below(said, -_lead(sets[name], method), MARGIN))
    for method in (ESS, VARIATIONAL):
        said = f"mean of the sets: log likelihood of {method} above that of SGD"
        parts.append(below(said, -_lead(likely, method)))
    for name, method in pairs:
        mean, spread = LOG_LIKELIHOOD[name][method]
        said = f"{name}: NLL of {method} at most the published {-mean:g} + {spread:g}"
        parts.append(below(said, -sets[name].values("split", method=method), spread - mean))
    return parts


def _bands(results: Results) -> Report:
    def numbers(band: Mapping[str, Any]) -> dict[str, float]:
        data, gaps, outside = band["data"], band["gaps"], band["outside"]
        spreads = {"at the data": data, "in the gaps": gaps, "outside": outside}
        return spreads | {"gaps/data": gaps / data, "outside/data": outside / data, "RMSE": band["rmse"]}

    rows = tidy([{name: numbers(r["spaces"][name]) for name in SPACES} for r in results], "subspace", "number")
    table = pivot(
        rows,
        "subspace",
        "number",
        caption="Standard deviation of the functions of ESS on the regression in one dimension, averaged over inputs "
        "in the clusters of data, between them, and outside; RMSE at the training rows; mean over seeds ± standard "
        "error.",
        digits=dict.fromkeys(("gaps/data", "outside/data"), ".2f"),
    )
    spreads, parts = rows.apart("subspace", "number"), []
    for space in (PCA, CURVE):
        for region in ("in the gaps", "outside"):
            ratio = spreads[space]["at the data"] / spreads[space][region]
            parts.append(below(f"bands: spread at the data over that {region}, {space}", ratio, 1 / OPEN))
    for space in (PCA, CURVE):
        ratio = spreads[RANDOM]["gaps/data"] / spreads[space]["gaps/data"]
        said = f"bands: spread in the gaps over that at the data, random over {space}"
        parts.append(below(said, ratio, 1.0))
    return parts, [table], _band_picture(results[0])


def _images(results: Results) -> Report:
    rows = tidy(results, "images", "metric").only(images=(SWA_POINT, SWAG_POSTERIOR, *SPACES))
    nll = rows.where(metric="nll").apart("images")
    wrong = 1 - rows.values(images=SWA_POINT, metric="accuracy")
    pairs = [(PCA, RANDOM), (CURVE, PCA), *((space, SWA_POINT) for space in SPACES)]
    parts = [
        below("images: error of SWA", wrong, FAIR, precondition=True),
        *(below(f"images: NLL of {a} below that of {b}", nll[a] - nll[b]) for a, b in pairs),
    ]
    frame: Any = rows.frame
    names: dict[Any, str] = {space: f"ESS, {space}" for space in SPACES}
    frame = frame.assign(value=frame["value"].where(frame["metric"] != "accuracy", 100 * frame["value"]))
    labels: dict[Any, str] = {"nll": "NLL", "accuracy": "accuracy, %", "ece": "ECE"}
    digits: dict[str, str] = dict.fromkeys(("NLL", "ECE", "published NLL"), ".4f")
    table = pivot(
        Rows(frame),
        "images",
        "metric",
        keep=labels,
        labels=labels | names,
        beside={"published NLL": IMAGE_NLL.get, "published accuracy, %": IMAGE_ACCURACY.get},
        caption="Test images: mean over seeds ± standard error. Published: PreResNet-164 on CIFAR-100.",
        better={"NLL": "low", "accuracy, %": "high", "ECE": "low"},
        digits=digits | dict.fromkeys(("accuracy, %", "published accuracy, %"), ".2f"),
    )
    panels: dict[str, dict[Any, Any]] = {
        label: {names.get(name, name): values for name, values in Rows(frame).where(metric=m).apart("images").items()}
        for m, label in list(labels.items())[:2]
    }
    return parts, [table], _image_picture(panels)


@house_style
def _band_picture(toy: Mapping[str, Any]) -> Picture:
    figure, handles = new_figure(7.4, 2.9), {}
    panels = figure.subplots(1, len(SPACES), sharex=True, sharey=True)
    grid = np.array(toy["grid"])
    for axes, (name, look) in zip(panels, looks(SPACES).items(), strict=True):
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
            repeats, mean = values[name], values[name].mean()
            half = 2 * repeats.std(ddof=1) / len(repeats) ** 0.5 if len(repeats) > 1 else 0.0
            axes.hlines(place, mean - half, mean + half, color=look.colour, linewidth=1.8)
            axes.plot(mean, place, color=look.colour, marker=look.marker, markersize=6)
            axes.plot(repeats, np.full(len(repeats), place + 0.25), "|", color=look.colour, markersize=4)
        panel_title(axes, metric)
    grid[0].set_yticks(range(len(names)), names)
    grid[0].set_ylim(len(names) - 0.4, -0.6)
    note_below(figure, "mean over seeds ± two standard errors; strokes: seeds")
    caption = "Test images: mean over seeds with two standard errors, small the seeds themselves."
    return Picture("Images by subspace", figure, caption)
