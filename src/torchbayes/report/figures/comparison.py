"""Figures that compare methods: under corruption, over data sets, during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from torchbayes.checks import check_choice, check_kind, check_numbers, check_text, seen
from torchbayes.report.scales import far_apart, log_scale, share_axis
from torchbayes.report.style import (
    FAINT,
    INK,
    QUIET,
    Look,
    as_array,
    check_panels,
    grid_shape,
    house_style,
    legend_above,
    looks,
    metric_label,
    new_figure,
    note_below,
    panel_title,
    remove_spare,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Better = Literal["low", "high"]
Spread = Literal["std", "sem", "range"]
_SPREADS = {"std": "± one standard deviation", "sem": "± two standard errors", "range": "smallest to largest"}


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
def metric_dots(
    datasets: Mapping[str, Mapping[str, Any]],
    metric: str,
    *,
    published: Mapping[str, Mapping[str, tuple[float, float]]] | None = None,
    over: str = "splits",
    better: Better | None = None,
) -> Figure:
    """Draw the mean of a metric and two standard errors for every method, one panel per data set.

    Methods are from top to bottom in the order given.

    Args:
        datasets: data set -> {method: values per split, shape (R,)}.
        metric: Name of the metric.
        published: data set -> {source: (value, half-width of its error bar as published)}, drawn hollow and below.
        over: What the R repeats are.
        better: Direction of a metric that is not among the known ones.
    """
    check_panels(datasets=datasets)
    check_panels(**{f"datasets[{name!r}]": values for name, values in datasets.items()})
    check_text(metric=metric, over=over)
    published = {} if published is None else published
    check_kind(Mapping, "a mapping", published=published)
    methods = list(dict.fromkeys(name for values in datasets.values() for name in values))
    sources = list(dict.fromkeys(name for values in published.values() for name in values))
    heights = {name: -index for index, name in enumerate([*methods, *sources])}
    drawn = looks(methods)
    longest = max(map(len, heights)) * 0.065
    rows, columns = grid_shape(len(datasets), widest=4)
    figure = new_figure(max(longest + 1.9 * columns, 4.0), rows * (0.23 * len(heights) + 0.65) + 0.45)
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for axes, (dataset, values) in zip(grid.flat, datasets.items(), strict=False):
        _dots_panel(axes, values, published.get(dataset, {}), heights, drawn)
        panel_title(axes, dataset)
    remove_spare(grid, len(datasets))
    grid[0, 0].set_yticks(list(heights.values()), list(heights))
    grid[0, 0].set_ylim(-len(heights) + 0.4, 0.6)
    bars = any(bar for values in published.values() for _, bar in values.values())
    hollow = [f"hollow: published value{' with its published error bar' if bars else ''}"] if sources else []
    note_below(figure, metric_label(metric, better), f"mean over {over} ± two standard errors", *hollow)
    return figure


def _dots_panel(
    axes: Axes,
    values: Mapping[str, Any],
    published: Mapping[str, tuple[float, float]],
    heights: Mapping[str, int],
    drawn: Mapping[str, Look],
) -> None:
    for name, repeats in values.items():
        look = drawn[name]
        mean, low, high = spread_of(as_array(repeats, 1, f"values of {name}"), "sem")
        axes.hlines(heights[name], low, high, color=look.colour, linewidth=1.8)
        axes.plot(mean, heights[name], color=look.colour, marker=look.marker, markersize=6)
    for name, (value, half) in published.items():
        axes.axvline(value, color=QUIET, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
        axes.hlines(heights[name], value - half, value + half, color=QUIET, linewidth=1.2)
        axes.plot(value, heights[name], color=QUIET, marker="D", markerfacecolor="white", markersize=5)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.12)
    axes.locator_params(axis="x", nbins=4)


@house_style
def fidelity_dots(
    panels: Mapping[str, Mapping[str, float]],
    *,
    floors: Mapping[str, Any] | None = None,
    better: Mapping[str, Better] | None = None,
    among: str = "ways to halve the chains of the reference",
    intervals: Mapping[str, Mapping[str, tuple[float, float]]] | None = None,
) -> Figure:
    """Draw how close each method is to a reference, one panel per measure, with the floor as a line.

    Methods are from top to bottom in the order given.

    Args:
        panels: measure -> {method: value}.
        floors: measure -> how near another sample of the reference would come, shape (R,): a line at their mean, a
            band from the smallest to the largest.
        better: measure -> which way is closer.
        among: What the R values of a floor are.
        intervals: measure -> {method: (low, high)}, drawn as lines.
    """
    floors, better, intervals = floors or {}, better or {}, intervals or {}
    check_panels(panels=panels)
    check_kind(Mapping, "a mapping", floors=floors, better=better, intervals=intervals)
    check_text(among=among)
    for measure, values in panels.items():
        check_panels(**{f"panels[{measure!r}]": values})
        check_numbers(**{f"panels[{measure!r}][{name!r}]": value for name, value in values.items()})
    for option, given in (("floors", floors), ("intervals", intervals)):
        if unknown := sorted(set(given) - set(panels)):
            raise ValueError(f"`panels` must hold the measures of `{option}`; got {option} of {', '.join(unknown)}.")
    methods = list(dict.fromkeys(name for values in panels.values() for name in values))
    drawn, heights = looks(methods), {name: -index for index, name in enumerate(methods)}
    width = max(map(len, methods), default=0) * 0.075 + 2.6 * len(panels)
    figure = new_figure(max(width, 5.4), 0.27 * len(methods) + 1.25)
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    handles: dict[str, Any] = {}
    for axes, (measure, values) in zip(grid, panels.items(), strict=True):
        if measure in floors:
            floor = as_array(floors[measure], 1, f"floor of {measure}")
            axes.axvspan(floor.min(), floor.max(), color=FAINT, alpha=0.6, linewidth=0)
            handles[f"floor: {len(floor)} {among}"] = axes.axvline(floor.mean(), color=INK, linewidth=1.3)
        for name, value in values.items():
            if name in intervals.get(measure, {}):
                axes.hlines(heights[name], *intervals[measure][name], color=drawn[name].colour, linewidth=1.6)
            axes.plot(value, heights[name], color=drawn[name].colour, marker=drawn[name].marker, markersize=6.5)
        axes.set_xlabel(metric_label(measure, better.get(measure)).replace(", ", "\n"))
        if far_apart(values.values(), [end for ends in intervals.get(measure, {}).values() for end in ends]):
            log_scale(axes)
            axes.set_xlabel(f"{axes.get_xlabel()}, log axis")
        else:
            axes.locator_params(axis="x", nbins=5)
        share_axis(axes.xaxis, measure)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.margins(x=0.12)
    grid[0].set_yticks(list(heights.values()), list(heights))
    grid[0].set_ylim(-len(methods) + 0.4, 0.6)
    if handles:
        legend_above(figure, handles)
    return figure


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
    rows, columns = grid_shape(len(keys), widest=3)
    figure = new_figure(max(3.1 * columns, 4.6), 2.6 * rows + 0.4)
    grid = figure.subplots(rows, columns, squeeze=False)
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
    remove_spare(grid, len(keys))
    legend_above(figure, handles)
    return figure
