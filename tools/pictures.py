"""The pictures at the top of the tutorials: what each page finds, drawn from the numbers that its code has computed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchbayes.report.style import INK, QUIET, house_style, legend_above, looks, new_figure, panel_title, percent_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE = "#0072b2", "#d55e00"
WIDE = 4.8  # inches, so that letters can be read on a phone


@house_style
def risks(curves: Mapping[str, tuple[Any, Any]]) -> Figure:
    """Draw the error rate of the rows that are decided over their share, the surest first."""
    figure, handles = new_figure(WIDE, 2.4), dict[str, Any]()
    axes = figure.subplots()
    for (name, (share, risk)), look in zip(curves.items(), looks(curves).values(), strict=True):
        handles[name] = axes.plot(share, risk, color=look.colour)[0]
    axes.set(xlabel="share of the digits that are decided", ylabel="error rate", xlim=(0.5, 1))
    percent_axis(axes.xaxis)
    percent_axis(axes.yaxis)
    legend_above(figure, handles)
    return figure


@house_style
def visited(points: Any, draws: Any) -> Figure:
    """Draw points, in their order, and draws, both less their mean, in the plane of the points' largest variance."""
    points, draws = np.asarray(points), np.asarray(draws)
    plane = np.linalg.svd(points, full_matrices=False)[2][:2].T
    figure = new_figure(WIDE, 2.8)
    axes = figure.subplots()
    handles = {
        "networks of the posterior": axes.plot(*(draws @ plane).T, ".", color=BLUE, alpha=0.35, markersize=4)[0],
        "networks of the loop": axes.plot(*(points @ plane).T, "o-", color=ORANGE, linewidth=1, markersize=4)[0],
    }
    axes.set(xlabel="first direction of the weights", ylabel="second direction")
    legend_above(figure, handles)
    return figure


@house_style
def solution(points: Any, draws_SN: Any, truth: Any, sensors: tuple[Any, Any], rates: Any, true_rate: float) -> Figure:
    """Draw the band of a solution with its sensors, and the draws of the coefficient of its equation."""
    figure, draws_SN = new_figure(7.0, 2.6), np.asarray(draws_SN)
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    mean, sd = draws_SN.mean(0), draws_SN.std(0)
    left.fill_between(points, mean - 2 * sd, mean + 2 * sd, color=BLUE, alpha=0.25, linewidth=0)
    left.plot(points, mean, color=BLUE)
    left.plot(points, truth, color=INK, linestyle="--", linewidth=1)
    left.plot(*sensors, "o", color=INK, markersize=4)
    left.set(xlabel="t", ylabel="u")
    right.hist(np.asarray(rates), bins=30, color=BLUE, alpha=0.6)
    right.axvline(true_rate, color=INK, linestyle="--", linewidth=1)
    right.set(xlabel="rate", yticks=[])
    return figure


@house_style
def surfaces(probs: Mapping[str, Any], side: Any, inputs: Any, targets: Any) -> Figure:
    """Draw the probability of one of two classes over a square, for each name."""
    figure = new_figure(WIDE, 2.5)
    grid, ends = figure.subplots(1, len(probs), sharey=True), (side[0], side[-1])
    for axes, (name, plane) in zip(grid, probs.items(), strict=True):
        axes.imshow(plane, origin="lower", extent=(*ends, *ends), cmap="RdBu_r", vmin=0, vmax=1)
        for kind, marker in ((0, "o"), (1, "^")):
            axes.plot(*np.asarray(inputs[targets == kind]).T, marker, color=INK, markersize=2, linewidth=0)
        axes.set(xlim=ends, ylim=ends)
        axes.grid(visible=False)
        panel_title(axes, name)
    figure.colorbar(grid[0].images[0], ax=grid, label="P(class 1)")
    return figure


@house_style
def doubts(x: Any, doubt: Any, known: Any, labels: tuple[str, str]) -> Figure:
    """Draw how unsure the function is of new rows over one input, whose values in the training rows are marked."""
    figure = new_figure(WIDE, 2.4)
    axes = figure.subplots()
    dots = axes.plot(x, doubt, "o", color=BLUE, markersize=4)[0]
    rows = axes.plot(known, np.zeros(len(known)), "|", color=INK, alpha=0.4, markersize=6)[0]
    axes.set(xlabel=labels[0], ylabel=labels[1])
    legend_above(figure, {"new houses": dots, "houses in the table": rows})
    return figure


@house_style
def intervals(mean: Any, low: Any, high: Any, truth: Any, unit: str, *, count: int = 50) -> Figure:
    """Draw intervals of the first rows in the order of their means, and the targets that are outside of them."""
    order = np.argsort(np.asarray(mean)[:count])
    mean, low, high, truth = (np.asarray(values)[:count][order] for values in (mean, low, high, truth))
    inside, place = (low <= truth) & (truth <= high), np.arange(len(mean))
    figure = new_figure(WIDE, 2.6)
    axes = figure.subplots()
    bars = axes.vlines(place, low, high, color=BLUE, alpha=0.35, linewidth=3)
    hit = axes.plot(place[inside], truth[inside], "o", color=INK, markersize=3)[0]
    miss = axes.plot(place[~inside], truth[~inside], "X", color=ORANGE, markersize=6)[0]
    axes.set(xlabel="new rows, by their predicted mean", ylabel=unit, xticks=[])
    legend_above(figure, {"interval": bars, "target inside": hit, "target outside": miss})
    return figure


@house_style
def two_kinds(x: Any, epistemic: Any, aleatoric: Any, train_x: Any) -> Figure:
    """Draw both parts of the standard deviation over the inputs, and where the training rows are."""
    figure = new_figure(WIDE, 2.4)
    axes = figure.subplots()
    handles = {
        "epistemic: the function": axes.plot(x, epistemic, color=BLUE)[0],
        "aleatoric: the noise": axes.plot(x, aleatoric, color=ORANGE)[0],
        "training inputs": axes.plot(train_x, np.zeros(len(train_x)), "|", color=INK, markersize=7)[0],
    }
    axes.set(xlabel="input", ylabel="standard deviation", ylim=(-0.03, None))
    legend_above(figure, handles)
    return figure


@house_style
def survival(times: Any, curves: Mapping[str, tuple[Any, Any]]) -> Figure:
    """Draw the probability to last beyond each time, predicted and true, for some inputs."""
    figure, handles = new_figure(WIDE, 2.4), dict[str, Any]()
    axes = figure.subplots()
    for (name, (predicted, true)), look in zip(curves.items(), looks(curves).values(), strict=True):
        handles[name] = axes.plot(times, predicted, color=look.colour)[0]
        handles["the truth"] = axes.plot(times, true, color=INK, linewidth=1, linestyle=(0, (4, 2)))[0]
    axes.axvspan(0.8, float(times[-1]), color=QUIET, alpha=0.15, linewidth=0)
    axes.text(0.82, 0.93, "never observed", color=QUIET)
    axes.set(xlabel="time", ylabel="still alive", ylim=(0, 1), xlim=(0, float(times[-1])))
    legend_above(figure, {name: handles[name] for name in [*curves, "the truth"]})
    return figure


@house_style
def resumed(whole: Sequence[float], halves: Sequence[float], stopped: int) -> Figure:
    """Draw the loss of a run, and of one that was stopped after some epochs and resumed."""
    figure, epochs = new_figure(WIDE, 2.4), np.arange(1, len(whole) + 1)
    axes = figure.subplots()
    handles = {
        "without a break": axes.plot(epochs, whole, color=QUIET, alpha=0.35, linewidth=7)[0],
        f"stopped after epoch {stopped}": axes.plot(epochs[:stopped], halves[:stopped], "o-", color=BLUE)[0],
        "resumed": axes.plot(epochs[stopped:], halves[stopped:], "s--", color=ORANGE)[0],
    }
    axes.set(xlabel="epoch", ylabel="loss")
    legend_above(figure, handles)
    return figure


@house_style
def recorded_answers(page: Path) -> Figure:
    """Draw accuracy and entropy from the table that the tutorial on adapters has recorded."""
    rows = re.findall(r"^(places|colours|untold) +(\w+) +(.*)$", page.read_text("utf-8"), re.M)
    numbers = {(part, method): [float(value) for value in line.split()] for part, method, line in rows}
    parts, methods = dict.fromkeys(key[0] for key in numbers), dict.fromkeys(key[1] for key in numbers)
    names = {"map": "MAP", "laplace": "Laplace", "ensemble": "deep ensemble"}
    figure, handles = new_figure(WIDE, 2.4), dict[str, Any]()
    panels = {"right answers": 0, "doubt: entropy in nats": 3}
    for axes, (title, column) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        for shift, (method, look) in enumerate(zip(methods, looks(names.values()).values(), strict=True)):
            heights = [numbers[part, method][column] for part in parts]
            handles[names[method]] = axes.bar(np.arange(3) + 0.26 * (shift - 1), heights, 0.23, color=look.colour)
        axes.set_xticks(range(3), list(parts))
        axes.grid(axis="x", visible=False)
        panel_title(axes, title)
    legend_above(figure, handles)
    return figure
