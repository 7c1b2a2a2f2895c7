"""The figure of how the mean depends on columns of a table, one panel each."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchbayes.checks import check_text, seen
from torchbayes.report.style import (
    INK,
    QUIET,
    as_array,
    check_pairs,
    check_panels,
    house_style,
    legend_above,
    looks,
    note_below,
    panel_grid,
    percent_axis,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ENDS = (2.5, 97.5)  # percentiles of the band
_LONGEST = 14  # letters of a value at the axis


@house_style
def partial_dependence(
    panels: Mapping[str, tuple[Any, Any, Any]], curves: Sequence[str] = ("mean",), *, target_label: str = "target"
) -> Figure:
    """Draw partial dependence on columns: the mean over drawn functions, and a band that holds 95 % of them.

    Args:
        panels: column -> (values, functions, marks). The values (G,) are increasing numbers or dates, of
            which the last may be missing (NaN, NaT), or texts. The functions (S, G, K) are drawn. The marks are
            positions on the axis of numbers, drawn as ticks, or for texts a share of the rows for each.
        curves: names of the K curves.
        target_label: the vertical axis; shares where its first word is "probability".
    """
    check_panels(panels=panels)
    check_pairs(3, panels=panels)
    check_text(target_label=target_label)
    names = [] if isinstance(curves, str) or not isinstance(curves, Sequence) else list(curves)
    if not names or not all(isinstance(name, str) for name in names):
        raise TypeError(f"`curves` must be names, at least one; got {seen(curves)}.")
    functions = {name: as_array(each[1], 3, f"functions of {name}", finite=True) for name, each in panels.items()}
    for name, draws_SGK in functions.items():
        if draws_SGK.shape[1:] != (len(panels[name][0]), len(names)):
            raise ValueError(
                f"`panels`: functions of {name!r} must be (S, {len(panels[name][0])}, {len(names)}), for each of its "
                f"values and `curves`; got {draws_SGK.shape}."
            )
    figure, grid = panel_grid(len(panels), 3, each=(2.75, 2.5), beside=(0.4, 0.7), least=4.6, sharey=True)
    colours = ["#0072b2"] if len(names) == 1 else [look.colour for look in looks(names).values()]
    handles: dict[str, Any] = {}
    for axes, (name, (values, _, marks)) in zip(grid.flat, panels.items(), strict=False):
        panel = _names_panel if np.asarray(values).dtype.kind in "OU" else _numbers_panel
        for k, (curve, colour) in enumerate(zip(names, colours, strict=True)):
            low, high = np.percentile(functions[name][..., k], _ENDS, axis=0)
            middle = functions[name][..., k].mean(0)
            handles[curve] = panel(axes, np.asarray(values), (low, middle, high), colour, (k, len(names)))
        _mark(axes, np.asarray(values), np.asarray(marks))
        axes.set_title(textwrap.fill(name, 30), fontweight="bold")
    for axes in grid[:, 0]:
        axes.set_ylabel(textwrap.fill(target_label, 30))
    if target_label.startswith("probability"):
        percent_axis(grid[0, 0].yaxis)
    note_below(figure, "bands: 95 % of drawn functions; ticks: deciles of training rows; per cent: share of rows")
    if len(names) > 1:
        legend_above(figure, handles)
    return figure


_Ends = tuple[np.ndarray, np.ndarray, np.ndarray]


def _numbers_panel(axes: Axes, values: np.ndarray, ends: _Ends, colour: str, _: tuple[int, int]) -> Any:
    """Draw a line with its band; a last value that is missing stands to the right of them."""
    low, middle, high = ends
    there = ~(np.isnat(values) if values.dtype.kind == "M" else np.isnan(values))
    x = values[there]
    dots = {"marker": "o", "markersize": 3} if there.sum() < 8 else {}
    line = axes.plot(x, middle[there], color=colour, **dots)[0]
    axes.fill_between(x, low[there], high[there], color=colour, alpha=0.22, linewidth=0)
    if not there.all():
        place = x[-1] + (x[-1] - x[0]) * 0.15
        sides = np.clip([middle[-1:] - low[-1:], high[-1:] - middle[-1:]], 0, None)
        axes.set_xlim(x[0] - (x[-1] - x[0]) * 0.05, x[-1] + (x[-1] - x[0]) * 0.28)
        axes.errorbar([place], middle[-1:], sides, fmt="D", markersize=3.5, color=colour, elinewidth=1.2)
        axes.annotate(
            "missing", (place, 1), (0, -7), xycoords=("data", "axes fraction"), textcoords="offset points", ha="center",
            color=QUIET, fontsize=7,
        )  # fmt: skip
    return line


def _names_panel(axes: Axes, values: np.ndarray, ends: _Ends, colour: str, place: tuple[int, int]) -> Any:
    """Draw a point with its interval for each text, several curves side by side."""
    low, middle, high = ends
    k, curves = place
    x = np.arange(len(values)) + (k - (curves - 1) / 2) * 0.6 / curves
    sides = np.clip([middle - low, high - middle], 0, None)
    return axes.errorbar(x, middle, sides, fmt="o", markersize=4, color=colour, elinewidth=1.4)


def _mark(axes: Axes, values: np.ndarray, marks: np.ndarray) -> None:
    """Draw where the training rows are: ticks at their deciles, or the share of the rows that have a text."""
    if values.dtype.kind not in "OU":
        axes.plot(marks, np.zeros(len(marks)), "|", color=INK, markersize=9, transform=axes.get_xaxis_transform())
        if values.dtype.kind == "M":
            from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

            locator = AutoDateLocator(maxticks=5)
            axes.xaxis.set_major_locator(locator)
            axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
        return
    texts = [textwrap.shorten(f"{text}", _LONGEST, placeholder="…") or f"{text}"[:_LONGEST] for text in values]
    labels = [f"{text}\n{share:.0%}".replace("%", " %") for text, share in zip(texts, marks, strict=True)]
    slanted = sum(map(len, texts)) > 22
    axes.set_xticks(range(len(values)), labels, rotation=90 if slanted else 0)
    axes.set_xlim(-0.6, len(values) - 0.4)
    axes.grid(visible=False, axis="x")
