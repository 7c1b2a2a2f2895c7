"""The pictures at the top of the tutorials: what each page finds, drawn from the numbers that its code has computed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchbayes.report.style import INK, QUIET, house_style, legend_above, looks, new_figure, note_below, panel_title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE = "#0072b2", "#d55e00"
WIDE = 4.8  # inches, so that letters can be read on a phone


@house_style
def letters(images: Any, probs: Mapping[str, Any]) -> Figure:
    """Draw images beside the probabilities of the ten digits by each method."""
    figure, handles = new_figure(WIDE, 2.2), dict[str, Any]()
    grid = figure.subplots(1, 2 * len(images), width_ratios=[1, 0.9] * len(images), squeeze=False)
    for number, (image, bars) in enumerate(grid.reshape(-1, 2)):
        image.imshow(np.asarray(images[number]).squeeze(), cmap="gray_r")
        image.set_axis_off()
        for shift, (name, look) in enumerate(looks(probs).items()):
            places = np.arange(10) + 0.4 * shift - 0.2
            handles[name] = bars.barh(places, np.asarray(probs[name][number]), 0.4, color=look.colour)
        bars.set(yticks=range(10), ylim=(9.6, -0.6), xlim=(0, 1), xticks=[0, 1], xticklabels=["0", "1"])
        bars.grid(visible=False)
    legend_above(figure, handles)
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
def scores(values: Mapping[str, tuple[float, float, float]], label: str) -> Figure:
    """Draw a number and its interval for each name, from top to bottom."""
    figure = new_figure(WIDE, 0.26 * len(values) + 0.7)
    axes = figure.subplots()
    for height, ((name, (value, low, high)), look) in enumerate(zip(values.items(), looks(values).values(), strict=True)):
        axes.hlines(-height, low, high, color=look.colour, linewidth=1.7)
        axes.plot([value], [-height], look.marker, color=look.colour, markersize=6)
    axes.set(yticks=-np.arange(len(values)), yticklabels=list(values))
    note_below(figure, label)
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
