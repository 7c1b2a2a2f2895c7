"""Figures of `mode_connectivity`: losses along paths and over their planes, how networks differ, and aligned ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchbayes.report import Picture, figures, looks
from torchbayes.report.style import QUIET, house_style, legend_above, new_figure, percent_axis
from torchbayes_experiments.mode_connectivity.recipe import CURVES
from torchbayes_experiments.verdicts import two_standard_errors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Results = Sequence[Mapping[str, Any]]

_BAND = "mean over seeds, band ± two standard errors"
_DASHED = (0, (4, 2))


def losses(label: str, results: Results) -> Picture:
    """Return training loss and test error along every path.

    Args:
        label: data set and network.
        results: what the run has of paths, of each seed.

    Returns:
        The picture.
    """
    return Picture(
        f"{label}: along the paths",
        _losses(results),
        f"Loss of the training rows with the weight decay, and test error, of the networks at positions t on each path "
        f"between two networks, on logarithmic axes; {_BAND}. Dashed: the worse of the two ends, mean over seeds.",
    )


def planes(label: str, results: Results) -> list[Picture]:
    """Return the loss over the plane of each curve; none where no seed has surfaces.

    Args:
        label: data set and network.
        results: what the run has of paths, of each seed.

    Returns:
        The pictures.
    """
    surfaces = next((one["surfaces"] for one in results if one["surfaces"]), {})
    return [
        Picture(
            f"{label}: the plane of the {name}",
            figures.loss_surfaces(
                {f"plane of the {name}": found["loss"]},
                found["x"],
                found["y"],
                marks=dict(zip(("w₁", "w₂", "bend θ"), found["marks"], strict=True)),
                curve=found["curve"],
                label="training loss (nats)",
            ),
            "Loss of training rows with the weight decay over the plane through both ends and the bend, first seed. "
            "Distances are those between weights; the straight line is the axis from w₁ to w₂.",
        )
        for name, found in surfaces.items()
    ]


def diversity(label: str, results: Results) -> Picture:
    """Return how networks on curves differ from the first end, and what averages with them are worth.

    Args:
        label: data set and network.
        results: what the run has of paths, of each seed.

    Returns:
        The picture.
    """
    return Picture(
        f"{label}: networks on a curve differ",
        _diversity(results),
        f"Left: share of test images whose class differs between the networks at 0 and t. Middle: test NLL of the "
        f"average of these two; at t = 0 it is that of the first end alone, at t = 1 that of both ends. Right: test "
        f"NLL of the average of K networks, evenly spaced on a curve with both ends among them; K = 2 are the ends. "
        f"{_BAND.capitalize()}.",
    )


def aligned(label: str, results: Results) -> Picture:
    """Return loss and test error along the straight lines between networks, before and after their units are matched.

    Args:
        label: data set and network.
        results: what the run has of the alignment, of each seed.

    Returns:
        The picture.
    """
    return Picture(
        f"{label}: aligned networks",
        _aligned(results),
        f"NLL of training rows and test error along the straight line between two networks, as they were trained and "
        f"with the hidden units of the second in the order of those of the first; {_BAND}.",
    )


@house_style
def _losses(results: Results) -> Figure:
    figure = new_figure(7.2, 3.3)
    grid = figure.subplots(1, 2)
    positions, names = results[0]["positions"], list(results[0]["paths"])
    handles: dict[str, Any] = {}
    for axes, key, label in zip(grid, ("loss", "error"), ("training loss (nats)", "test error"), strict=True):
        for name, look in looks(names).items():
            values = np.array([one["paths"][name][key] for one in results])
            handles[name] = _line(axes, positions, values, look)
        ends = np.array([one["paths"][names[0]][key] for one in results])[:, [0, -1]]
        handles["worse end"] = axes.axhline(ends.max(1).mean(), color=QUIET, linewidth=1.0, linestyle=_DASHED)
        _log_axis(axes, percent=key == "error")
        axes.set(xlabel="position t on the path", ylabel=f"{label}, log axis", xlim=(-0.03, 1.03))
    legend_above(figure, handles)
    return figure


@house_style
def _diversity(results: Results) -> Figure:
    figure = new_figure(7.4, 2.9)
    left, middle, right = figure.subplots(1, 3)
    positions, names = results[0]["positions"], [name for name in results[0]["paths"] if name in CURVES]
    counts = [int(k) for k in results[0]["paths"][names[0]]["averages"]]
    handles: dict[str, Any] = {}
    for name, look in looks(names).items():
        own = [one["paths"][name] for one in results]
        handles[name] = _line(left, positions, np.array([one["differs"] for one in own]), look)
        _line(middle, positions, np.array([one["pair_nll"] for one in own]), look)
        averages = np.array([[found["nll"] for found in one["averages"].values()] for one in own])
        alone = np.array([(one["test_nll"][0] + one["test_nll"][-1]) / 2 for one in own])
        _line(right, [1, *counts], np.column_stack([alone, averages]), look, every=1)
    left.set(xlabel="position t", ylabel="test images of another\nclass than at t = 0", ylim=(0, None))
    percent_axis(left.yaxis)
    middle.set(xlabel="position t", ylabel="test NLL (nats),\naverage of φ(0) and φ(t)")
    right.set(xlabel="networks K, log axis", ylabel="test NLL (nats),\naverage of K on the curve", xscale="log")
    right.set_xticks([1, *counts], [str(k) for k in (1, *counts)])
    right.minorticks_off()
    legend_above(figure, handles)
    return figure


@house_style
def _aligned(results: Results) -> Figure:
    figure = new_figure(7.2, 3.2)
    grid = figure.subplots(1, 2)
    positions, names = results[0]["positions"], list(results[0]["lines"])
    handles: dict[str, Any] = {}
    for axes, key, label in zip(grid, ("nll", "error"), ("training NLL (nats)", "test error"), strict=True):
        for name, look in looks(names).items():
            values = np.array([one["lines"][name][key] for one in results])
            handles[name] = _line(axes, positions, values, look)
        _log_axis(axes, percent=key == "error")
        axes.set(xlabel="position λ on the straight line", ylabel=f"{label}, log axis", xlim=(-0.03, 1.03))
    legend_above(figure, handles)
    return figure


def _line(axes: Axes, places: Sequence[float], values_RT: np.ndarray, look: Any, *, every: int = 3) -> Any:
    """Return the line of the mean over repeats, drawn with its band."""
    mean, spread = values_RT.mean(0), two_standard_errors(values_RT)
    low = np.maximum(mean - spread, 0.2 * mean)  # a logarithmic axis has no room below zero
    axes.fill_between(places, low, mean + spread, color=look.colour, alpha=0.15, linewidth=0)
    marks = every if len(places) > 12 else 1
    return axes.plot(places, mean, color=look.colour, marker=look.marker, markevery=marks, markersize=4)[0]


def _log_axis(axes: Axes, *, percent: bool) -> None:
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
