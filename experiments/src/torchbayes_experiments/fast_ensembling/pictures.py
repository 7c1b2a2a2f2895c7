"""Figure of `fast_ensembling`: what happens along one run of FGE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchbayes.report import looks
from torchbayes.report.style import INK, QUIET, house_style, legend_above, new_figure
from torchbayes_experiments.fast_ensembling.recipe import FAST, INDEPENDENT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BEFORE = 2  # epochs before the first network is kept whose errors are all in view
Records = Sequence[Mapping[str, Any]]


@house_style
def path_figure(path: Mapping[str, Records]) -> Figure:
    """Draw learning rate and test error along a run of FGE.

    Args:
        path: as `run` returns it.

    Returns:
        The figure: the learning rate above, test errors below.
    """
    figure = new_figure(6.4, 4.6)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2))
    colour = looks([FAST])[FAST].colour
    top.plot(*_columns(path["rates"], "lr"), color=colour, linewidth=1.2)
    top.set(ylabel="learning rate", ylim=(0, None))
    handles = _errors(bottom, path, colour)
    for axes in (top, bottom):
        for one in path["kept"]:
            axes.axvline(one["epoch"], color=QUIET, linewidth=0.6, linestyle=(0, (1, 2)), zorder=1)
    bottom.set(xlabel="epochs", ylabel="test error (%)", xlim=(0, path["ends"][-1]["epoch"] + 0.2))
    bottom.set_ylim(top=_highest(path))
    bottom.locator_params(axis="x", integer=True)
    legend_above(figure, handles)
    return figure


def _errors(axes: Axes, path: Mapping[str, Records], colour: str) -> dict[str, Any]:
    """Draw the errors.

    Returns:
        The legend: label -> artist.
    """
    handles: dict[str, Any] = {}
    moving = sorted([*path["ends"], *path["kept"]], key=lambda one: one["epoch"])
    (handles["network of FGE"],) = axes.plot(*_errors_of(moving), color=colour, linewidth=1.0, alpha=0.75)
    (handles["kept"],) = axes.plot(
        *_errors_of(path["kept"]), color=colour, marker="o", markerfacecolor="white", linestyle="", markersize=5
    )
    (handles["average of those kept"],) = axes.plot(
        *_errors_of(path["average"]), color=INK, marker="s", markersize=4, linewidth=1.9
    )
    look = looks([INDEPENDENT, FAST])[INDEPENDENT]
    (handles["independent network"],) = axes.plot(
        *_errors_of(path["independent"]), color=look.colour, linewidth=1.2, linestyle=(0, (4, 2))
    )
    return handles


def _highest(path: Mapping[str, Records]) -> float:
    """Return the end of the axis of errors: what the cycles need, as the first epochs are far above it."""
    since = path["kept"][0]["epoch"] - _BEFORE
    shown = [one for name in ("ends", "kept", "independent") for one in path[name] if one["epoch"] >= since]
    return 1.05 * max(_errors_of(shown)[1])


def _columns(records: Records, key: str) -> tuple[list[float], list[float]]:
    return [one["epoch"] for one in records], [one[key] for one in records]


def _errors_of(records: Records) -> tuple[list[float], list[float]]:
    epochs, accuracy = _columns(records, "accuracy")
    return epochs, [100 * (1 - value) for value in accuracy]
