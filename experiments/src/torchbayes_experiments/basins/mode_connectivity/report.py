"""Verdict, tables and figures of `mode_connectivity`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from torchbayes.report import Picture, Table, figures, looks
from torchbayes.report.style import QUIET, house_style, legend_above, new_figure, percent_axis
from torchbayes_experiments import Findings, Part, Results, below
from torchbayes_experiments.basins.mode_connectivity import run
from torchbayes_experiments.tables import banded_line
from torchbayes_experiments.verdicts import mean_and_error

LABELS = {
    run.IMAGES: "Fashion-MNIST, LeNet",
    run.RESIDUAL: "CIFAR-10, PreResNet-20",
    run.ALIGNMENT: "MNIST, perceptrons",
}
FAIR = {run.IMAGES: 0.15, run.RESIDUAL: 0.65, run.ALIGNMENT: 0.04}  # test errors of ends: a path then says nothing
HIGH_LOSS, HIGH_ERROR = 0.5, 0.1  # nats and share by which the straight line rises above the worse end, at least
LOSS_FACTOR = 1.2  # loss on a curve over that of the worse end; published: 1 for Bezier curves, at most 1.18 for chains
ERROR_MARGIN = 0.01  # of test error; published on CIFAR-10: 0.1 to 1.1 points
SHARE = 0.5  # of what two ends differ by, and gain together, that the middle of a curve must reach
BARRIER, BARRIER_BEFORE = 0.05, 0.2  # nats: barriers of aligned networks at most, of others at least
HALFWAY = 0.01  # test error halfway between aligned networks, above the mean of the ends
ENDS = [0, -1]  # places on a path
_BAND = "mean over seeds, band ± two standard errors"


def summarise(results: Results) -> Findings:
    each = {task: [result[task] for result in results if task in result] for task in LABELS}
    tasks = {task: some for task, some in each.items() if some}
    return Findings.of(_parts(tasks), _tables(tasks), _pictures(tasks))


def _parts(tasks: Mapping[str, Results]) -> Iterator[Part]:
    for task, results in tasks.items():
        yield from _alignment_parts(results) if task == run.ALIGNMENT else _path_parts(task, results)


def _tables(tasks: Mapping[str, Results]) -> Iterator[Table]:
    for task, results in tasks.items():
        if task == run.ALIGNMENT:
            yield _alignment_table(results)
        else:
            yield _paths_table(LABELS[task], results)
            yield _averages_table(LABELS[task], results)


def _pictures(tasks: Mapping[str, Results]) -> Iterator[Picture]:
    for task, results in tasks.items():
        if task == run.ALIGNMENT:
            yield _aligned(LABELS[task], results)
        else:
            yield _losses(LABELS[task], results)
            yield from _planes(LABELS[task], results)
            yield _diversity(LABELS[task], results)


def scores(results: Results, name: str, key: str, *, group: str = "paths") -> np.ndarray:
    """Return a score of the networks on a path, (R, T), or of a line as a whole, (R,)."""
    return np.array([result[group][name][key] for result in results], dtype=np.float64)


def averaged(results: Results, path: str, count: int, *, key: str) -> np.ndarray:
    """Return `error` or `nll` of the average of K networks on a path, (R,)."""
    return np.array([result["paths"][path]["averages"][str(count)][key] for result in results])


def _path_parts(task: str, results: Results) -> Iterator[Part]:
    def largest(path: str, key: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the largest score on a path, and the larger one of both ends."""
        values = scores(results, path, key)
        return values.max(1), values[:, ENDS].max(1)

    (loss, worse_loss), (error, worse) = (largest(run.SEGMENT, key) for key in ("loss", "error"))
    label = LABELS[task]
    rises = f"on the straight line the training loss rises by more than {HIGH_LOSS} nats above the worse end"
    yield below(f"{label}: test error of the worse end", worse, FAIR[task], precondition=True)
    yield below(f"{label}: {rises}", HIGH_LOSS - (loss - worse_loss))
    yield below(f"{label}: and the test error by more than {100 * HIGH_ERROR:g} points", HIGH_ERROR - (error - worse))
    for name in run.CURVES:
        (loss, worse_loss), (error, worse), curve = largest(name, "loss"), largest(name, "error"), f"{label}, {name}"
        yield below(f"{curve}: largest training loss over that of the worse end", loss / worse_loss, LOSS_FACTOR)
        yield below(f"{curve}: largest test error above that of the worse end", error - worse, ERROR_MARGIN)
    if task == run.IMAGES:  # where the ends are trained long enough for a curve to be no better than they are
        for name in run.CURVES:
            yield from _diversity_parts(results, name)


def _diversity_parts(results: Results, name: str) -> Iterator[Part]:
    curve, most = f"{LABELS[run.IMAGES]}, {name}", len(results[0]["positions"])
    differs, pair, error, single = (scores(results, name, k) for k in ("differs", "pair_nll", "error", "test_nll"))
    gain = pair[:, [0]] - pair  # in NLL, over the first end alone
    nll, error_of_most = (averaged(results, name, most, key=key) for key in ("nll", "error"))
    share, gained = (SHARE - values[:, most // 2] / values[:, -1] for values in (differs, gain))
    above, mean = f"is above {SHARE:g}", f"of the average of {most} networks below that of"
    between = "share of test images that differ between 0 and ½, over that between the ends,"
    yield below(f"{curve}: {between} {above}", share)
    yield below(f"{curve}: gain in NLL of averaging the networks at 0 and ½, over that of the ends, {above}", gained)
    yield below(f"{curve}: NLL {mean} the best of them", nll - single.min(1))
    yield below(f"{curve}: error {mean} one end", error_of_most - error[:, ENDS].mean(1))
    yield below(f"{curve}: NLL {mean} the two ends", nll - averaged(results, name, 2, key="nll"))


def _alignment_parts(results: Results) -> Iterator[Part]:
    label, names = LABELS[run.ALIGNMENT], (run.BEFORE, *run.MATCHED)
    errors, heights = ({n: scores(results, n, key, group="lines") for n in names} for key in ("error", "height"))
    worse = errors[run.BEFORE][:, ENDS].max(1)
    yield below(f"{label}: test error of the worse end", worse, FAIR[run.ALIGNMENT], precondition=True)
    yield below(f"{label}: barrier as trained above {BARRIER_BEFORE} nats", BARRIER_BEFORE - heights[run.BEFORE])
    for name in run.MATCHED:
        halfway = errors[name][:, errors[name].shape[1] // 2] - errors[name][:, ENDS].mean(1)
        yield below(f"{label}, {name}: barrier in nats", heights[name], BARRIER)
        yield below(f"{label}, {name}: test error halfway above that of the ends", halfway, HALFWAY)


def _paths_table(label: str, results: Results) -> Table:
    def row(name: str, path: str, places: Any = slice(None)) -> list[Any]:
        loss, error, nll = (scores(results, path, key)[:, places] for key in ("loss", "error", "nll"))
        cells = (loss.min(1), loss.max(1), 100 * error.min(1), 100 * error.max(1), nll.max(1))
        return [name, *map(mean_and_error, cells)]

    losses, errors = ["least loss", "largest loss"], ["least error, %", "largest error, %"]
    return Table(
        [label, *losses, *errors, "largest NLL"],
        [row("ends", run.SEGMENT, ENDS), *(row(name, name) for name in results[0]["paths"])],
        "Networks along each path, both ends among them: training loss (NLL with the weight decay, nats), test error, "
        "and NLL of the training rows in nats; mean over seeds ± standard error.",
        formats=dict.fromkeys([*losses, "largest NLL"], ".4f") | dict.fromkeys(errors, ".2f"),
    )


def _averages_table(label: str, results: Results) -> Table:
    counts = [int(k) for k in results[0]["paths"][run.SEGMENT]["averages"]]
    rows = []
    for name in run.CURVES:
        for key, text, scale, single in (("nll", "NLL", 1, "test_nll"), ("error", "error, %", 100, "error")):
            alone = scale * scores(results, name, single)
            cells = [scale * averaged(results, name, k, key=key) for k in counts]
            rows.append([name, text, *map(mean_and_error, (alone[:, ENDS].mean(1), alone.min(1), *cells))])
    columns = ["one end", "best one", "two ends", *(f"{k} networks" for k in counts[1:])]
    return Table(
        [label, "of test images", *columns],
        rows,
        "Averages of networks that are evenly spaced on a curve, both ends among them; one end is the mean of the two, "
        "the best one that of all networks alone, chosen on the test images. Mean over seeds ± standard error.",
        formats=dict.fromkeys(columns, ".3f"),
    )


def _alignment_table(results: Results) -> Table:
    def row(name: str) -> list[Any]:
        height, excess, error = (scores(results, name, key, group="lines") for key in ("height", "excess", "error"))
        error *= 100
        return [name, *map(mean_and_error, (height, excess, error[:, ENDS].mean(1), error[:, error.shape[1] // 2]))]

    columns = ["barrier, nats", "excess, nats", "error of the ends, %", "error halfway, %"]
    return Table(
        [LABELS[run.ALIGNMENT], *columns],
        [row(name) for name in results[0]["lines"]],
        "The straight line between two networks: barrier of the training NLL above the mean of its ends (Ainsworth et "
        "al. 2022), and its largest excess over the line between them (Entezari et al. 2022); test errors. Mean over "
        "seeds ± standard error.",
        better=dict.fromkeys([*columns[:2], columns[3]], "low"),
        formats=dict.fromkeys(columns[:2], ".4f") | dict.fromkeys(columns[2:], ".2f"),
    )


def _losses(label: str, results: Results) -> Picture:
    panels = {"loss": "training loss (nats)", "error": "test error"}
    return Picture(
        f"{label}: along the paths",
        _on_log_axes(results, panels, "position t on the path", 3.3),
        f"Loss of the training rows with the weight decay, and test error, of the networks at positions t on each path "
        f"between two networks, on logarithmic axes; {_BAND}. Dashed: the worse of the two ends, mean over seeds.",
    )


def _aligned(label: str, results: Results) -> Picture:
    panels = {"nll": "training NLL (nats)", "error": "test error"}
    return Picture(
        f"{label}: aligned networks",
        _on_log_axes(results, panels, "position λ on the straight line", 3.2, group="lines"),
        f"NLL of training rows and test error along the straight line between two networks, as they were trained and "
        f"with the hidden units of the second in the order of those of the first; {_BAND}.",
    )


def _planes(label: str, results: Results) -> Iterator[Picture]:
    """Yield the loss over the plane of each curve, of the first seed that has surfaces."""
    surfaces = next((result["surfaces"] for result in results if result["surfaces"]), {})
    for name, over in surfaces.items():
        drawn = figures.loss_surfaces(
            {f"plane of the {name}": over["loss"]},
            over["x"],
            over["y"],
            label="training loss (nats)",
            marks=dict(zip(("w₁", "w₂", "bend θ"), over["marks"], strict=True)),
            curve=over["curve"],
        )
        yield Picture(
            f"{label}: the plane of the {name}",
            drawn,
            "Loss of training rows with the weight decay over the plane through both ends and the bend, first seed. "
            "Distances are those between weights; the straight line is the axis from w₁ to w₂.",
        )


@house_style
def _diversity(label: str, results: Results) -> Picture:
    figure, handles = new_figure(7.4, 2.9), {}
    left, middle, right = figure.subplots(1, 3)
    positions, names = results[0]["positions"], [name for name in results[0]["paths"] if name in run.CURVES]
    counts = [int(k) for k in results[0]["paths"][names[0]]["averages"]]
    for name, look in looks(names).items():
        handles[name] = _line(left, positions, scores(results, name, "differs"), look)
        _line(middle, positions, scores(results, name, "pair_nll"), look)
        single = scores(results, name, "test_nll")[:, ENDS].mean(1)
        averages = [averaged(results, name, k, key="nll") for k in counts]
        _line(right, [1, *counts], np.column_stack([single, *averages]), look, every=1)
    left.set(xlabel="position t", ylabel="test images of another\nclass than at t = 0", ylim=(0, None))
    percent_axis(left.yaxis)
    middle.set(xlabel="position t", ylabel="test NLL (nats),\naverage of φ(0) and φ(t)")
    right.set(xlabel="networks K, log axis", ylabel="test NLL (nats),\naverage of K on the curve", xscale="log")
    right.set_xticks([1, *counts], [str(k) for k in (1, *counts)])
    right.minorticks_off()
    legend_above(figure, handles)
    return Picture(
        f"{label}: networks on a curve differ",
        figure,
        f"Left: share of test images whose class differs between the networks at 0 and t. Middle: test NLL of the "
        f"average of these two; at t = 0 it is that of the first end alone, at t = 1 that of both ends. Right: test "
        f"NLL of the average of K networks, evenly spaced on a curve with both ends among them; K = 2 are the ends. "
        f"{_BAND.capitalize()}.",
    )


@house_style
def _on_log_axes(
    results: Results, panels: Mapping[str, str], position: str, height: float, *, group: str = "paths"
) -> Any:
    """Return a figure of scores along all paths or lines, with the worse end beside paths."""
    figure, handles = new_figure(7.2, height), {}
    for axes, (key, label) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        for name, look in looks(results[0][group]).items():
            handles[name] = _line(axes, results[0]["positions"], scores(results, name, key, group=group), look)
        if group == "paths":
            worse = scores(results, run.SEGMENT, key)[:, ENDS].max(1).mean()
            handles["worse end"] = axes.axhline(worse, color=QUIET, linewidth=1.0, linestyle=(0, (4, 2)))
        _log_axis(axes, percent=key == "error")
        axes.set(xlabel=position, ylabel=f"{label}, log axis", xlim=(-0.03, 1.03))
    legend_above(figure, handles)
    return figure


def _line(axes: Any, places: Sequence[float], values_RT: np.ndarray, look: Any, *, every: int = 3) -> Any:
    """Return the line of the mean over repeats, drawn with its band."""
    marks = every if len(places) > 12 else 1
    return banded_line(axes, places, values_RT, look, markersize=4, markevery=marks, least=0.2)


def _log_axis(axes: Any, *, percent: bool) -> None:
    """Make the vertical axis logarithmic, with plain numbers at it."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    ticks: list[float] = []
    for digits in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):  # the first that are enough
        ticks = [tick for e in range(-6, 4) for m in digits if low <= (tick := m * 10.0**e) <= high]
        if len(ticks) >= 4:
            break
    axes.set_yticks(ticks, [f"{100 * tick:g} %" if percent else f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
