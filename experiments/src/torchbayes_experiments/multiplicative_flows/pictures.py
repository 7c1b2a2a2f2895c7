"""Figures of `multiplicative_flows`: how entropies are distributed, and what becomes of a digit that is turned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torchbayes.report import Picture, figures, looks
from torchbayes.report.style import (
    FAINT,
    house_style,
    legend_above,
    new_figure,
    note_below,
    panel_title,
    percent_axis,
)
from torchbayes_experiments.multiplicative_flows.recipe import FLOWS, L2
from torchbayes_experiments.multiplicative_flows.run import rotated

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))
_LINES = 4  # labels of the turned digit that are drawn with a line of their own

Scores = Sequence[Mapping[str, Any]]


def entropies(photographs: Scores) -> Picture:
    """Return the distribution functions of the entropy on unseen and on seen classes.

    Args:
        photographs: method -> scores, of each seed.

    Returns:
        The picture.
    """
    return Picture(
        "Entropy on classes that were not seen, and on those that were",
        _distributions(photographs),
        "Share of test images whose entropy is at most that on the horizontal axis, pooled over seeds. A method that "
        "knows what it does not know is low on the left and high on the right. The dotted end of the axis is log 5, "
        "where all five classes are equally probable.",
    )


def turned(digits: Scores) -> list[Picture]:
    """Return what becomes of one digit that is turned, and of many.

    Args:
        digits: what `run` has of turned digits, of each seed.

    Returns:
        The pictures.
    """
    angles, names = digits[0]["angles"], list(digits[0]["methods"])
    panels = {
        title: {name: np.array([one["methods"][name][key] for one in digits]).T for name in names}
        for key, title in (("wrong", "share taken for another digit"), ("entropy", "mean entropy (nats)"))
    }
    return [
        Picture(
            "One digit that is turned",
            _one_digit(digits[0]),
            "Probabilities of the labels of one test digit, turned counter-clockwise: mean over draws, band ± their "
            "standard deviation, first seed. L2 is one network and has no spread.",
        ),
        Picture(
            "Many digits that are turned",
            figures.measure_curves(panels, angles, label="angle (degrees)", percent=("share taken for another digit",)),
            "The first test digits of the class: how many are taken for another digit, and the mean entropy of all.",
        ),
    ]


@house_style
def _distributions(photographs: Scores) -> Figure:
    figure = new_figure(7.2, 3.5)
    grid = figure.subplots(1, 2, sharex=True, sharey=True)
    names, handles = list(photographs[0]), {}
    for axes, of, title in zip(grid, ("unseen", "seen"), ("unseen classes", "seen classes"), strict=True):
        for style, (name, look) in zip(_STYLES, looks(names).items(), strict=False):
            counts = np.sum([one[name]["counts"][of] for one in photographs], axis=0)
            shares = np.concatenate([[0.0], np.cumsum(counts) / counts.sum()])
            places = np.linspace(0, np.log(5), len(shares))
            every = max(len(shares) // 8, 1)
            (handles[name],) = axes.plot(
                places, shares, color=look.colour, linestyle=style, marker=look.marker, markevery=every, markersize=4
            )
        panel_title(axes, title)
        axes.axvline(np.log(5), color=FAINT, linestyle=":")
    grid[0].set(xlim=(0, 1.02 * np.log(5)), ylim=(0, 1))
    grid[0].set_ylabel("share of test images")
    percent_axis(grid[0].yaxis)
    note_below(figure, "entropy of the average prediction (nats)")
    legend_above(figure, handles)
    return figure


@house_style
def _one_digit(digits: Mapping[str, Any]) -> Figure:
    """Return a panel for L2 and one for MNF, under a strip of the turned digit."""
    angles = np.array(digits["angles"])
    names = (L2, FLOWS)
    figure = new_figure(7.2, 4.4)
    top, *panels = figure.subplots(3, 1, height_ratios=(0.45, 1, 1))
    _strip(top, digits, angles)
    means = {name: np.array(digits["methods"][name]["mean"]) for name in names}
    largest = np.max([mean.max(0) for mean in means.values()], axis=0)
    shown = [int(label) for label in sorted(np.argsort(-largest)[:_LINES])]
    handles: dict[str, Any] = {}
    for axes, name in zip(panels, names, strict=True):
        spread = np.array(digits["methods"][name]["spread"])
        for style, (label, look) in zip(_STYLES, looks(f"“{k}”" for k in shown).items(), strict=False):
            k = int(label.strip("“”"))
            mean = means[name][:, k]
            low, high = np.clip(mean - spread[:, k], 0, 1), np.clip(mean + spread[:, k], 0, 1)
            axes.fill_between(angles, low, high, color=look.colour, alpha=0.15, linewidth=0)
            (handles[label],) = axes.plot(
                angles, mean, color=look.colour, linestyle=style, marker=look.marker, markersize=4
            )
        panel_title(axes, name)
        axes.set(xlim=(angles[0] - 4, angles[-1] + 4), ylim=(0, 1.02), ylabel="probability", xticks=angles[::3])
        percent_axis(axes.yaxis)
    panels[0].tick_params(labelbottom=False)
    note_below(figure, "angle (degrees)")
    legend_above(figure, handles)
    return figure


def _strip(axes: Axes, digits: Mapping[str, Any], angles: np.ndarray) -> None:
    """Draw the digit at every angle, above its place on the axis of angles."""
    image = torch.tensor(digits["pixels"], dtype=torch.float32)[None, None] / 255
    step = float(angles[1] - angles[0]) if len(angles) > 1 else 10.0
    for angle in angles:
        picture = rotated(image, float(angle))[0, 0].numpy()
        half = 0.48 * step
        axes.imshow(picture, cmap="gray_r", extent=(angle - half, angle + half, 0, 1), aspect="auto", vmin=0, vmax=1)
    axes.set(xlim=(angles[0] - 4, angles[-1] + 4), ylim=(0, 1))
    axes.set_axis_off()
