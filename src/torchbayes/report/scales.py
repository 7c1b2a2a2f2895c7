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
    """Write a metric, given by name or label, as per cent if it is a share."""
    if metric.lower().startswith(SHARES):
        percent_axis(axis)


def told(value: float, measure: str) -> str:
    """Return a number as text: "97.5 %" for a share, else with three decimals."""
    text = f"{100 * value:.1f} %" if measure.lower().startswith(SHARES) else f"{value:.3f}"
    return text.replace("-", "−")


def far_apart(values: Iterable[float], ends: Iterable[float] = ()) -> bool:
    """Return whether values need a logarithmic axis, which they and the ends of their intervals must allow."""
    finite = [value for value in values if math.isfinite(value)]
    lowest = min([*finite, *(end for end in ends if math.isfinite(end))], default=0.0)
    return lowest > 0 and max(finite, default=0.0) > FAR * min(finite, default=0.0)


def log_scale(axes: Axes) -> None:
    """Make the horizontal axis logarithmic, with plain numbers at 1, 2 and 5 of each decade."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(lambda number, _position: f"{number:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def label_ends(grid: np.ndarray, used: int) -> None:
    """Write the ticks of a shared horizontal axis under those of the first `used` panels with no panel below them."""
    for axes in list(grid.flat)[max(used - grid.shape[1], 0) : used]:
        axes.tick_params(labelbottom=True)
