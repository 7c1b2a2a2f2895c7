"""Rows as points: two numbers of each, and which of them stand out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from torchbayes.checks import check_flags, check_text, seen
from torchbayes.report.style import (
    QUIET,
    as_columns,
    check_pairs,
    check_panels,
    house_style,
    label_ends,
    legend_above,
    looks,
    note_below,
    panel_grid,
    panel_title,
)  # fmt: skip

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 2000  # points of a panel
_MARKED = "#a3324b"


@house_style
def row_scatter(
    methods: Mapping[str, tuple[Any, Any, Any]], *, x: str, y: str, marks: tuple[str, str], level: bool = False
) -> Figure:
    """Draw two numbers of each row against each other, one panel per method; marked rows stand out.

    Of more than 2,000 rows, the marked ones and an even part of the others are drawn, 2,000 of each at most.

    Args:
        methods: name -> numbers along x and along y, and whether a row is marked, (N,) each.
        x: Label of the horizontal axis.
        y: Label of the vertical axis.
        marks: What rows are that are not marked, and what those are that are.
        level: Whether a dashed line shows where both numbers are equal.
    """
    check_panels(methods=methods)
    check_pairs(3, methods=methods)
    check_text(x=x, y=y)
    if not isinstance(marks, tuple | list) or len(marks) != 2 or not all(isinstance(mark, str) for mark in marks):
        raise TypeError(f"`marks` must be two texts, of rows that are not marked and of others; got {seen(marks)}.")
    check_flags(level=level)
    single = len(methods) == 1
    figure, grid = panel_grid(
        len(methods), 4, each=(4.6, 3.6) if single else (2.3, 2.2), beside=(0.6, 0.9), sharex=True, sharey=True
    )
    handles: dict[str, Any] = {}
    for axes, (name, look) in zip(grid.flat, looks(methods).items(), strict=False):
        columns = {f"methods[{name!r}][{place}]": values for place, values in enumerate(methods[name])}
        across, up, marked = as_columns(columns)
        groups = ((marks[0], marked == 0, QUIET, "o"), (marks[1], marked != 0, _MARKED, "x"))
        for label, chosen, colour, marker in groups:
            at = np.flatnonzero(chosen)
            if not len(at):
                continue
            at = at[np.unique(np.linspace(0, len(at) - 1, min(len(at), MOST)).astype(int))]
            drawn = axes.plot(
                across[at], up[at], marker, color=colour, markersize=3.2 if single else 2.4, alpha=0.7, linewidth=0
            )
            handles.setdefault(label, drawn[0])
        if level:
            ends = [across.min(), across.max()]
            axes.plot(ends, ends, color=QUIET, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        if not single:
            panel_title(axes, name, look)
    label_ends(grid, len(methods))
    legend_above(figure, handles)
    note_below(figure, x)
    figure.supylabel(y)
    return figure
