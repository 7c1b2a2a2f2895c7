"""Axes of figures: shares as per cent, logarithms with plain numbers, ticks of grids that are not full."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from torchbayes.report.style import percent_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

SHARES = ("accuracy", "error", "agreement", "confidence")
"""Metrics that are written as per cent wherever they stand, by the first word of their label."""
FAR = 4.0
"""Positive values whose largest is more than so many times the smallest would lie in one place of a linear axis."""


def share_axis(axis: Axis, metric: str) -> None:
    """Write a metric as per cent if it is a share.

    Args:
        axis: an x or y axis.
        metric: its name or label, such as "agreement with HMC".
    """
    if metric.lower().startswith(SHARES):
        percent_axis(axis)


def told(value: float, measure: str) -> str:
    """Return a number as a sentence says it: "97.5 %" of a share, else with three decimals.

    Args:
        value: the number.
        measure: name or label of the metric.
    """
    text = f"{100 * value:.1f} %" if measure.lower().startswith(SHARES) else f"{value:.3f}"
    return text.replace("-", "−")


def far_apart(values: Iterable[float], ends: Iterable[float] = ()) -> bool:
    """Return whether values are better told apart on a logarithmic axis, which their intervals must allow.

    Args:
        values: what is drawn; what is not finite does not count.
        ends: of the intervals.
    """
    known = [value for value in values if math.isfinite(value)]
    lowest = min([*known, *(end for end in ends if math.isfinite(end))], default=0.0)
    return lowest > 0 and max(known, default=0.0) > FAR * min(known, default=0.0)


def log_scale(axes: Axes) -> None:
    """Make the horizontal axis logarithmic, with plain numbers at 1, 2 and 5 of each decade.

    Args:
        axes: the panel.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(lambda number, _position: f"{number:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def label_ends(grid: np.ndarray, used: int) -> None:
    """Write the ticks of a shared horizontal axis under the panels of a grid that have no panel below them.

    Args:
        grid: axes, (rows, columns).
        used: how many hold a panel, in reading order.
    """
    for axes in list(grid.flat)[max(used - grid.shape[1], 0) : used]:
        axes.tick_params(labelbottom=True)
