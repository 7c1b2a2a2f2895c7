"""Lines against one quantity: the severity of corruption, epochs of training, or any other that was varied."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from torchbayes.checks import check_choice, check_kind, check_text, seen
from torchbayes.report.style import (
    INK,
    QUIET,
    Better,
    as_array,
    check_pairs,
    check_panels,
    house_style,
    label_ends,
    legend_above,
    looks,
    metric_label,
    new_figure,
    note_below,
    panel_grid,
    panel_title,
    percent_axis,
    share_axis,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Steps = tuple[Any, Any, Any]
"""Values at severities 0, 1, ..., and the lower and upper ends of their intervals, (S,) each, or None."""
Spread = Literal["std", "sem", "range"]
_SPREADS = {"std": "± one standard deviation", "sem": "± two standard errors", "range": "smallest to largest"}
_OTHERS = "#b4bac4"


def spread_of(values: np.ndarray, spread: Spread) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean, lower and upper end over the last axis of (..., R).

    `std` is one sample standard deviation, `sem` two standard errors of the mean, `range` from smallest to largest.
    """
    check_choice(tuple(_SPREADS), spread=spread)
    mean, repeats = values.mean(-1), values.shape[-1]
    if spread == "range":
        return mean, values.min(-1), values.max(-1)
    half = values.std(-1, ddof=1) if repeats > 1 else np.zeros_like(mean)
    half = half if spread == "std" else 2 * half / np.sqrt(repeats)
    return mean, mean - half, mean + half


@house_style
def severity_curves(
    methods: Mapping[str, Any],
    metric: str,
    *,
    over: str = "corruptions",
    spread: Spread = "sem",
    better: Better | None = None,
) -> Figure:
    """Draw a metric against the severity of corruption, from clean data (0) upwards, one line per method.

    Args:
        methods: name -> values of shape (severities, R), first row clean; R repeats are averaged.
        metric: Name of the metric; "NLL", "accuracy", "ECE", "Brier" are known with unit and direction.
        over: What the R repeats are: "corruptions", "seeds".
        spread: What the bands show.
        better: Direction of a metric that is not among the known ones.
    """
    check_panels(methods=methods)
    check_text(metric=metric, over=over)
    arrays = {name: as_array(values, 2, f"values of {name}") for name, values in methods.items()}
    lengths = {len(values) for values in arrays.values()}
    if len(lengths) != 1:
        raise ValueError(f"All methods must have the same number of severities; got {sorted(lengths) or 'none'}.")
    severities = np.arange(lengths.pop())
    figure = new_figure(5.4, 3.7)
    axes: Axes = figure.subplots()
    handles: dict[str, Any] = {}
    for name, look in looks(arrays).items():
        mean, low, high = spread_of(arrays[name], spread)
        if arrays[name].shape[1] > 1:
            axes.fill_between(severities, low, high, color=look.colour, alpha=0.13, linewidth=0)
        handles[name] = axes.plot(severities, mean, color=look.colour, marker=look.marker)[0]
    axes.set_xticks(severities, ["clean", *map(str, severities[1:])])
    axes.set_xlabel("severity of corruption")
    axes.set_ylabel(metric_label(metric, better).replace(", ", "\n"))
    share_axis(axes.yaxis, metric)
    repeats = {values.shape[1] for values in arrays.values()}
    if repeats != {1}:
        count = f"{min(repeats)}" if len(repeats) == 1 else f"{min(repeats)}-{max(repeats)}"
        axes.set_title(f"mean over {count} {over}; band {_SPREADS[spread]}", fontsize=8, color=QUIET, loc="left")
    legend_above(figure, handles)
    return figure


@house_style
def severity_panels(
    methods: Mapping[str, Steps],
    metric: str,
    *,
    reference: str | None = None,
    level: float | None = None,
    better: Better | None = None,
) -> Figure:
    """Draw a metric against the severity of corruption, from clean data (0) upwards, a panel for each method.

    Every panel shows the other methods as thin grey lines, and all have the same scales.

    Args:
        methods: name -> (values, lower ends, upper ends), (S,) each, the first of clean data; None for unknown ends.
        metric: Name of the metric; "NLL", "accuracy", "ECE", "Brier" are known with unit and direction.
        reference: A method that is drawn dashed in every panel.
        level: A level to compare with, dotted.
        better: Direction of a metric that is not among the known ones.
    """
    check_panels(methods=methods)
    check_pairs(3, methods=methods)
    check_text(metric=metric)
    check_kind((str, type(None)), "a name", reference=reference)
    check_kind((int, float, type(None)), "a number", level=level)
    if reference is not None and reference not in methods:
        raise ValueError(f"`reference` must be one of {', '.join(methods)}; got {reference!r}.")
    steps = {name: _checked(name, triple) for name, triple in methods.items()}
    lengths = {len(values) for values, *_ in steps.values()}
    if len(lengths) != 1:
        raise ValueError(f"All methods must have the same number of severities; got {sorted(lengths)}.")
    severities = np.arange(lengths.pop())
    figure, grid = panel_grid(len(steps), 5, each=(2.15, 2.05), beside=(0.4, 1.0), least=3.4, sharex=True, sharey=True)
    drawn, handles = looks(steps), {}
    for axes, (name, (values, low, high)) in zip(grid.flat, steps.items(), strict=False):
        for other in (other for other in steps if other not in {name, reference}):
            thin = axes.plot(severities, steps[other][0], color=_OTHERS, linewidth=0.8, zorder=1.5)
            handles["other methods"] = thin[0]
        if reference is not None and name != reference:
            dashed = axes.plot(severities, steps[reference][0], color=INK, linewidth=1.0, linestyle=(0, (4, 2)))
            handles[reference] = dashed[0]
        if level is not None:
            axes.axhline(level, color=QUIET, linewidth=1.0, linestyle=(0, (1, 2)), zorder=1)
        look = drawn[name]
        axes.fill_between(severities, low, high, color=look.colour, alpha=0.3, linewidth=0)
        axes.plot(severities, values, color=look.colour, marker=look.marker, markersize=3.8, linewidth=1.3)
        panel_title(axes, name, look)
    grid[0, 0].set_xticks(severities, [str(severity) for severity in severities])
    share_axis(grid[0, 0].yaxis, metric)
    label_ends(grid, len(steps))
    banded = [bool(np.isfinite(low).any()) for _, low, _ in steps.values()]
    band = ["band: 95 % interval over rows" if all(banded) else "band: 95 % interval over rows, where it is known"]
    figure.supylabel(metric_label(metric, better).replace(", ", "\n"), multialignment="center")
    note_below(figure, "severity of corruption (0: not corrupted)", *(band if any(banded) else []))
    if handles:
        legend_above(figure, handles)
    return figure


def _checked(name: str, given: Steps) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return values and ends as arrays of one length, NaN for unknown ends."""
    values = as_array(given[0], 1, f"values of {name}")
    ends = [np.full(len(values), np.nan) if end is None else as_array(end, 1, f"values of {name}") for end in given[1:]]
    if any(len(end) != len(values) for end in ends):
        raise ValueError(
            f"`methods`: {name!r} has {len(values)} values, and ends of {' and '.join(str(len(e)) for e in ends)} "
            f"intervals. Give as many of each."
        )
    return values, ends[0], ends[1]


@house_style
def measure_curves(
    panels: Mapping[str, Mapping[str, Any]],
    places: Sequence[float] | Sequence[str],
    *,
    label: str = "",
    over: str = "seeds",
    levels: Mapping[str, tuple[str, float]] | None = None,
    percent: Collection[str] = (),
    mark: tuple[str, float | str] | None = None,
) -> Figure:
    """Draw measures of several models at the same places, the mean over repeats with a band of two standard errors.

    Args:
        panels: measure -> {model: values of shape (P, R)}; R repeats are averaged.
        places: Positions of the P values: numbers, or names that are spaced evenly.
        label: What the places are.
        over: What the R repeats are.
        levels: measure -> (name, value) of a level to compare with, drawn dashed.
        percent: Measures that are shares, written as per cent from 0 on; include the label if the places are shares.
        mark: (name, place) of a place to point out in every panel, drawn dotted.
    """
    levels = {} if levels is None else levels
    check_panels(panels=panels)
    check_kind(Mapping, "a mapping", levels=levels)
    check_text(label=label, over=over)
    check_kind((list, tuple, set, frozenset), "measures", percent=percent)
    check_kind((Sequence, np.ndarray), "numbers or names", places=places)
    unknown = sorted({*levels, *percent} - {*panels, label})
    if unknown:
        raise ValueError(f"`panels` must hold every measure of `levels` and `percent`; missing: {', '.join(unknown)}.")
    drawn = looks(name for values in panels.values() for name in values)
    figure, grid = panel_grid(len(panels), 3 if len(panels) % 2 else 2, each=(3.2, 2.5), beside=(0, 0.9), least=4.8)
    handles: dict[str, Any] = {}
    repeats: set[int] = set()
    for axes, (measure, values) in zip(grid.flat, panels.items(), strict=False):
        for name, repeated in values.items():
            array = as_array(repeated, 2, f"{measure} of {name}")
            if len(array) != len(places):
                raise ValueError(f"{measure} of {name} must have {len(places)} `places`; got {len(array)}.")
            repeats.add(array.shape[1])
            handles[name] = _line(axes, places, array, drawn[name])
        if measure in levels:
            title, level = levels[measure]
            handles[title] = axes.axhline(level, color=QUIET, linewidth=1.1, linestyle=(0, (4, 2)))
        if mark is not None:
            name, at = _place(places, mark)
            handles[name] = axes.axvline(at, color=QUIET, linewidth=1.1, linestyle=(0, (1, 2)))
        axes.set_ylabel(measure.replace(", ", "\n"))
        if measure in percent:
            percent_axis(axes.yaxis)
            axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        if label in percent:
            percent_axis(axes.xaxis)
    notes = [label] if label else []
    if repeats != {1}:
        notes.append(f"mean over {max(repeats)} {over}, band ± two standard errors")
    note_below(figure, *notes)
    legend_above(figure, handles)
    return figure


def _place(places: Sequence[float] | Sequence[str], mark: tuple[str, float | str]) -> tuple[str, float]:
    """Return the name of a marked place, and its position on the horizontal axis."""
    if not isinstance(mark, tuple) or len(mark) != 2 or not isinstance(mark[0], str):
        raise TypeError(f"`mark` must be a name and one of the `places`, such as ('peak', 3); got {mark!r}.")
    name, wanted = mark
    if wanted not in places:
        raise ValueError(f"`mark` must be at one of the `places`, {', '.join(map(str, places))}; got {wanted!r}.")
    return name, float(list(places).index(wanted) if isinstance(wanted, str) else wanted)


def _line(axes: Axes, places: Sequence[float] | Sequence[str], array: np.ndarray, look: Any) -> Any:
    """Draw and return the line of one model; names of places become ticks."""
    named = isinstance(places[0], str)
    at = np.arange(len(places), dtype=float) if named else np.asarray(places, dtype=float)
    mean, low, high = spread_of(array, "sem")
    if array.shape[1] > 1:
        axes.fill_between(at, low, high, color=look.colour, alpha=0.13, linewidth=0)
    if named:
        axes.set_xticks(at, [str(place) for place in places])
        axes.margins(x=0.1)
    return axes.plot(at, mean, color=look.colour, marker=look.marker)[0]


@house_style
def training_curves(
    runs: Mapping[str, Sequence[Mapping[str, Any]]], keys: Sequence[str] = ("loss",), *, x: str = "epoch"
) -> Figure:
    """Draw logged numbers during training, one panel per key: thin lines for members, a thick one for their mean.

    Args:
        runs: method -> records of its log; each holds some of `keys`, a number or one number per member, and `x`.
        keys: What to draw; records without the key are skipped.
        x: Key of the horizontal axis.
    """
    check_panels(runs=runs)
    check_text(x=x)
    if isinstance(keys, str) or not isinstance(keys, Sequence) or not keys:
        raise TypeError(f"`keys` must be keys of the log, at least one; got {seen(keys)}.")
    for name, records in runs.items():
        if not isinstance(records, Sequence) or not all(isinstance(record, Mapping) for record in records):
            raise TypeError(f"`runs` must hold the records of each log; got {seen(records)} for {name!r}.")
    figure, grid = panel_grid(len(keys), 3, each=(3.1, 2.6), beside=(0, 0.4), least=4.6)
    handles: dict[str, Any] = {}
    for axes, key in zip(grid.flat, keys, strict=False):
        for name, look in looks(runs).items():
            records = [record for record in runs[name] if key in record]
            if not records:
                continue
            if incomplete := [record for record in records if x not in record]:
                raise ValueError(
                    f"`x` must be a key of every record that is drawn; {len(incomplete)} of {len(records)} records of "
                    f"{name!r} with {key!r} have no {x!r}. Choose among {', '.join(map(str, incomplete[0]))}."
                )
            steps = [record[x] for record in records]
            values = np.stack([as_array(np.atleast_1d(record[key]), 1, key) for record in records])
            if values.shape[1] > 1:
                axes.plot(steps, values, color=look.colour, linewidth=0.6, alpha=0.4)
            handles[name] = axes.plot(steps, values.mean(1), color=look.colour)[0]
        if not axes.lines:
            raise ValueError(f"No record of `runs` has {key!r} of `keys`. Choose among the keys of the log.")
        axes.set(xlabel=x, ylabel=metric_label(key).replace(", ", "\n"))
        axes.locator_params(axis="x", integer=True)
    legend_above(figure, handles)
    return figure
