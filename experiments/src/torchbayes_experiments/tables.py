"""General tables and pictures, most of tidy rows, which most experiments share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from torchbayes.report import Picture, Table, figures
from torchbayes_experiments.rows import Rows
from torchbayes_experiments.verdicts import interval, mean_and_error, two_standard_errors

Labels = Mapping[Any, str]
LABELS: dict[Any, str] = {"nll": "NLL", "ece": "ECE", "rmse": "RMSE"}
BETTER = {"accuracy": "high", "NLL": "low", "ECE": "low"}  # of classifiers


def pivot(
    rows: Rows,
    index: str | Sequence[str],
    columns: str,
    *,
    caption: str,
    over: str = "seed",
    keep: Iterable[Any] | None = None,
    heads: Sequence[str] | None = None,
    labels: Labels | None = None,
    scale: float | Mapping[Any, float] = 1.0,
    digits: str | Mapping[str, str] = ".3f",
    beside: Mapping[str, Callable[..., Any]] | None = None,
    better: Any = None,
) -> Table:
    """Return means ± standard errors, a row for each combination of `index` and a column for each name of `columns`.

    Args:
        rows: the numbers.
        index: one or more levels.
        columns: the level whose names become columns.
        caption: what the table shows.
        over: the level of the repeats; the mean over all others comes first.
        keep: names of `columns`, in this order, or name -> how it is written; all there are if None. A cell without
            rows is empty.
        heads: of the columns of the index.
        labels: how names are written, of index and columns; those of `LABELS` if not said otherwise.
        scale: of all numbers, 100 for per cent, or of those of some names of `columns`.
        digits: format of all numbers, or of columns by label.
        beside: further columns, each with what it has for a combination of the index, such as published numbers; they
            are last but for those that `keep` names.
        better: column -> "low" or "high", if there is this column, or one of these for all columns of `columns`.
    """
    index = (index,) if isinstance(index, str) else tuple(index)
    labels = LABELS | dict(keep if isinstance(keep, Mapping) else {}) | dict(labels or {})
    beside = beside or {}
    factors = scale if isinstance(scale, Mapping) else dict.fromkeys(rows.names(columns), scale)
    names: list[Any] = list(rows.names(columns) if keep is None else keep)
    names += [name for name in beside if name not in names]
    written = {name: str(labels.get(name, name)) for name in names if name not in beside}
    body = []
    for place in rows.combinations(*index):
        at = rows.at(index, place)
        numbers = {name: factors.get(name, 1.0) * at.at([columns], [name]).values(over) for name in written}
        cells = {name: mean_and_error(array) if array.size else None for name, array in numbers.items()}
        cells |= {name: cell(*place) for name, cell in beside.items()}
        body.append([*(labels.get(name, name) for name in place), *(cells[name] for name in names)])
    best: Any = dict.fromkeys(written.values(), better) if isinstance(better, str) else better or {}
    heads = [*(heads or index), *(written.get(name, str(name)) for name in names)]
    return Table(
        heads,
        body,
        caption,
        better={column: direction for column, direction in best.items() if column in heads},
        formats=dict.fromkeys(written.values(), digits) if isinstance(digits, str) else digits,
    )


def differences(
    rows: Rows,
    pairs: Iterable[tuple[Any, Any]],
    *,
    caption: str,
    of: str = "method",
    index: Sequence[str] = ("set", "metric"),
    over: str = "split",
    labels: Labels | None = None,
    digits: str = ".3f",
) -> Table:
    """Return paired differences of names of a level with their 95 % interval: repeats differ far more than methods do.

    Args:
        rows: the numbers.
        pairs: (first, second): the differences are first − second.
        caption: what the table shows.
        of: the level.
        index: levels that make a row each.
        over: the level of the repeats.
        labels: how names are written, the column of means too; those of `LABELS` if not said otherwise.
        digits: format of the numbers.
    """
    labels, pairs = LABELS | dict(labels or {}), list(pairs)
    body = []
    for place in rows.combinations(*index):
        at = rows.at(index, place)
        for first, second in pairs:
            ends = interval(at.less(of, first, second, over))
            name = f"{labels.get(first, first)} − {labels.get(second, second)}"
            body.append([
                *(labels.get(level, level) for level in place),
                name,
                *(e if np.isfinite(e) else None for e in ends),
            ])
    numbers = [labels.get("mean", "mean"), "from", "to"]
    return Table([*index, "difference", *numbers], body, caption, formats=dict.fromkeys(numbers, digits))


def dots(
    rows: Rows,
    label: str,
    *,
    caption: str,
    title: str = "",
    panels: str = "set",
    lines: str = "method",
    over: str = "split",
    published: Mapping[str, Mapping[str, tuple[float, float]]] | None = None,
    better: Any = None,
    labels: Labels | None = None,
) -> Picture:
    """Return a picture of means with two standard errors, a panel for each name of a level, a line for each of another.

    Args:
        rows: the numbers of one metric.
        label: of the metric.
        caption: what is drawn.
        title: above it; "Test" and the label if empty.
        panels: the level of the panels.
        lines: the level of the lines.
        over: the level of the repeats.
        published: panel -> source -> (number, half-width of its bar).
        better: direction of a metric that `figures.metric_dots` does not know.
        labels: how the names of lines are written.
    """
    written = labels or {}
    numbers: dict[Any, dict[Any, Any]] = {
        panel: {written.get(line, line): values for line, values in of_lines.items()}
        for panel, of_lines in rows.apart(panels, lines, over=over).items()
    }
    drawn = figures.metric_dots(numbers, label, published=published, over=f"{over}s", better=better)
    return Picture(title or f"Test {label}", drawn, caption)


def banded_line(
    axes: Any,
    places: Sequence[float] | np.ndarray,
    values_RP: np.ndarray,
    look: Any,
    *,
    linestyle: Any = "-",
    markersize: float = 5,
    markevery: int = 1,
    least: float | None = None,
) -> Any:
    """Draw the mean over repeats with a band of two standard errors in the look of a method, and return the line.

    On a logarithmic axis, which has no room below zero, the band ends at `least` times the mean.
    """
    mean, half = values_RP.mean(0), two_standard_errors(values_RP)
    low = mean - half if least is None else np.maximum(mean - half, least * mean)
    axes.fill_between(places, low, mean + half, color=look.colour, alpha=0.15, linewidth=0)
    line = {"marker": look.marker, "markersize": markersize, "markevery": markevery, "linestyle": linestyle}
    return axes.plot(places, mean, color=look.colour, **line)[0]
