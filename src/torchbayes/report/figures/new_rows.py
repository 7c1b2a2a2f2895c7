"""A figure of predictions of new rows, beside test rows whose quality is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from torchbayes.report.style import QUIET, house_style, legend_above, new_figure, note_below

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOUR = "#0072b2"
_SHOWN = 60  # most rows in the first panel


@house_style
def new_rows(
    new: Mapping[str, np.ndarray],
    test: Mapping[str, np.ndarray],
    *,
    level: float,
    target_name: str = "target",
    units: str = "units of the target",
) -> Figure:
    """Draw predictions of new rows (with intervals, or probabilities of the predicted class), and their uncertainty.

    Histograms show the uncertainty beside that of test rows.

    Args:
        new: Columns of predictions, as `predictive.written.columns_of` gives them.
        test: The same of test rows.
        level: Share of the targets that an interval should hold.
        target_name: Name of the target.
        units: Units of the target.
    """
    from matplotlib.patches import Patch

    figure = new_figure(8.2, 3.3)
    left, right = figure.subplots(1, 2)
    meaning = "Rows unlike the training data lie further right."
    if "prediction" in new:
        _classes(left, new)
        measure, label = "entropy", "entropy of the prediction (nats)"
    else:
        _intervals(left, new, level, target_name)
        measure = next(name for name in new if name.startswith("sd_of_function"))
        label = f"sd of the function ({units})"
        if not test[measure].any():  # a single network
            measure = measure.replace("sd_of_function", "sd")
            label = f"sd of {target_name} ({units})"
            meaning = "One network alone does not show which rows are unlike the training data."
    _histograms(right, new[measure], test[measure], label)
    shades = {"new rows": Patch(color=_COLOUR, alpha=0.55), "test rows": Patch(color=QUIET, alpha=0.45)}
    legend_above(figure, shades)
    count = len(next(iter(new.values())))
    shown = f"{count:,} new row{'' if count == 1 else 's'}" + (
        f", of which {_SHOWN} are shown on the left" if count > _SHOWN else ""
    )
    note_below(figure, f"{shown}; {len(test[measure]):,} test rows. {meaning}")
    return figure


def _chosen(order: np.ndarray) -> np.ndarray:
    """Return evenly spaced entries of an order, at most as many as are shown."""
    return order[np.unique(np.linspace(0, len(order) - 1, min(len(order), _SHOWN)).round().astype(int))]


def _intervals(axes: Axes, new: Mapping[str, np.ndarray], level: float, target_name: str) -> None:
    name = next(name for name in new if name.startswith("mean"))
    low, high = (next(column for column in new if column.startswith(f"{end}_")) for end in ("low", "high"))
    rows = _chosen(np.argsort(new[name], kind="stable"))
    mean = new[name][rows]
    sides = np.clip(np.stack([mean - new[low][rows], new[high][rows] - mean]), 0, None)
    axes.errorbar(np.arange(len(rows)), mean, sides, fmt="o", markersize=3, color=_COLOUR, ecolor=QUIET, elinewidth=0.8)
    axes.set_xlabel("new rows, in the order of their mean")
    axes.set_ylabel(f"{target_name}: mean and {level:.0%} interval".replace("%", " %"))
    axes.set_xticks([])


def _classes(axes: Axes, new: Mapping[str, np.ndarray]) -> None:
    probs = np.stack([values for name, values in new.items() if name.startswith("p(")])
    highest = probs.max(0)
    rows = _chosen(np.argsort(highest, kind="stable"))
    axes.plot(np.arange(len(rows)), highest[rows], "o", markersize=3, color=_COLOUR)
    axes.axhline(1 / len(probs), color=QUIET, linewidth=0.8, linestyle=":")
    # points lie above the line, and none is near its right end
    place = (len(rows) - 1, 1 / len(probs))
    axes.annotate("chance", place, (0, -2), textcoords="offset points", ha="right", va="top", color=QUIET)
    axes.set_ylim(0, 1.03)
    axes.set_xlabel("new rows, least certain first")
    axes.set_ylabel("probability of the predicted class")
    axes.set_xticks([])


def _histograms(axes: Axes, new: np.ndarray, test: np.ndarray, label: str) -> None:
    both = np.concatenate([new, test])
    edges = np.linspace(min(0.0, float(both.min())), max(float(both.max()), 1e-9), 31).tolist()
    for values, colour, alpha in ((test, QUIET, 0.45), (new, _COLOUR, 0.55)):
        axes.hist(values, edges, weights=np.full(len(values), 100 / len(values)), color=colour, alpha=alpha)
    axes.set_xlabel(label)
    axes.set_ylabel("share of the rows (%)")
