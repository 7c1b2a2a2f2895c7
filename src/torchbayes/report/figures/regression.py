"""Figures of predicted against observed numbers: intervals, their coverage, and errors beside the stated spread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from torchbayes.checks import check_counts, check_text, optional
from torchbayes.report.style import (
    FAINT,
    INK,
    QUIET,
    Look,
    as_columns,
    check_pairs,
    check_panels,
    house_style,
    legend_above,
    log_scale,
    looks,
    new_figure,
    note_below,
    percent_axis,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 500  # intervals that can be told apart
_OUTSIDE = "#a3324b"
_WIDE = 10  # ratio of standard deviations above which their axis is logarithmic
_PER_BIN, _BINS = 20, 10  # groups for root mean square errors
_PER_PIT_BIN, _MOST_PIT_BINS = 10, 20


@house_style
def predicted_observed(
    name: str, observed: Any, predicted: Any, *, low: Any, high: Any, target_label: str = "target"
) -> Figure:
    """Draw predictions with their intervals against what was observed; targets outside their interval stand out.

    Of more than 500 targets, 500 are drawn, evenly along the observed values.

    Args:
        name: Name of the method.
        observed: Targets, (N,).
        predicted: Predictions, (N,).
        low: Lower ends of the intervals, (N,).
        high: Upper ends, (N,).
        target_label: The target, with its units.
    """
    check_text(name=name, target_label=target_label)
    columns = {"observed": observed, "predicted": predicted, "low": low, "high": high}
    observed, predicted, low, high = as_columns(columns)
    if (low > high).any():
        raise ValueError(f"`low` is above `high` for {int((low > high).sum())} targets. Swap the two?")
    order = np.argsort(observed, kind="stable")
    shown = order[np.unique(np.linspace(0, len(order) - 1, min(len(order), MOST)).astype(int))]
    inside = ((low <= observed) & (observed <= high))[shown]
    look = looks([name])[name]
    figure = new_figure(5.0, 4.6)
    axes: Axes = figure.subplots()
    handles: dict[str, Any] = {}
    groups = (("inside its interval", inside, look.colour, look.marker), ("outside", ~inside, _OUTSIDE, "x"))
    for label, chosen, colour, marker in groups:
        if chosen.any():
            at = shown[chosen]
            axes.vlines(observed[at], low[at], high[at], color=colour, linewidth=0.9, alpha=0.35)
            handles[label] = axes.plot(
                observed[at], predicted[at], marker, color=colour, markersize=3.2, alpha=0.85, linewidth=0
            )[0]
    first, last = observed.min(), observed.max()
    room = 2 * (last - first) or np.inf  # one wild interval would hide the others
    ends = [max(low[shown].min(), first - room), min(high[shown].max(), last + room)]
    pad = 0.04 * (ends[1] - ends[0])
    handles["predicted = observed"] = axes.plot(
        [first, last], [first, last], color=QUIET, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1
    )[0]
    axes.set(ylabel=f"predicted {target_label}", ylim=(min(ends[0], first) - pad, max(ends[1], last) + pad))
    notes = [f"{len(shown):,} of {len(observed):,} targets"] if len(shown) < len(observed) else []
    notes += ["intervals that leave the picture are cut off"] if _cut(low[shown], high[shown], ends) else []
    note_below(figure, f"observed {target_label}", *notes)
    legend_above(figure, handles)
    return figure


@house_style
def coverage_curves(methods: Mapping[str, tuple[Any, Any]], count: int) -> Figure:
    """Draw the share of targets inside central intervals against their level.

    A band of two binomial standard errors lies around the diagonal.

    Args:
        methods: name -> (level, share of targets inside), (P,) each, between 0 and 1.
        count: Number of targets.
    """
    check_panels(methods=methods)
    check_pairs(2, methods=methods)
    check_counts(count=count)
    figure = new_figure(4.6, 4.3)
    axes: Axes = figure.subplots()
    levels = np.linspace(0, 1, 101)
    half = 2 * np.sqrt(levels * (1 - levels) / count)
    handles: dict[str, Any] = {}
    band = axes.fill_between(levels, levels - half, levels + half, color=FAINT, alpha=0.55, linewidth=0)
    axes.plot([0, 1], [0, 1], color=QUIET, linewidth=0.9, linestyle=(0, (4, 3)))
    for name, look in looks(methods).items():
        level, share = as_columns({f"level of {name}": methods[name][0], f"share of {name}": methods[name][1]})
        handles[name] = axes.plot(level, share, color=look.colour, clip_on=False)[0]
    handles[f"calibrated, ± two standard errors of {count:,} targets"] = band
    ticks = np.linspace(0, 1, 6)
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=ticks, yticks=ticks, ylabel="share of targets inside")
    percent_axis(axes.xaxis)
    percent_axis(axes.yaxis)
    note_below(figure, "level of the central interval", "below the diagonal: intervals too narrow; above: too wide")
    legend_above(figure, handles)
    return figure


@house_style
def pit_histogram(name: str, values: Any, *, bins: int | None = None, weights: Any = None) -> Figure:
    """Draw a histogram of the probability integral transform F(y).

    A band of two binomial standard errors lies around the share that each bin should have.

    Args:
        name: Name of the method.
        values: F(y) of each target, (N,), between 0 and 1, as `Evaluation.pit` holds them.
        bins: Number of bins of equal width; None chooses up to 20, ten targets or more in each.
        weights: How often each target counts, (N,), at least 0; once if None.
    """
    check_text(name=name)
    optional(check_counts, bins=bins)
    weights = np.ones(np.shape(values)) if weights is None else weights
    values, weights = as_columns({"values": values, "weights": weights})
    if values.min() < 0 or values.max() > 1:
        raise ValueError(f"`values` must lie in [0, 1]; got {values.min():.4g} to {values.max():.4g}. Pass F(y).")
    if weights.min() < 0 or not weights.sum() > 0:
        raise ValueError(f"`weights` must be at least 0 and not all 0; got a smallest of {weights.min():.4g}.")
    total = weights.sum()
    bins = bins or int(np.clip(total // _PER_PIT_BIN, 1, _MOST_PIT_BINS))
    count, edges = np.histogram(values, bins=bins, range=(0, 1), weights=weights)
    look = looks([name])[name]
    figure = new_figure(5.4, 3.5)
    axes: Axes = figure.subplots()
    half = 2 * np.sqrt((1 - 1 / bins) / bins / total)
    low, high = max(0.0, 1 / bins - half), 1 / bins + half
    band = axes.axhspan(low, high, color=FAINT, alpha=0.8, linewidth=0, zorder=1)
    bars = axes.bar(edges[:-1], count / total, 1 / bins, align="edge", color=look.colour, edgecolor="white", zorder=2)
    for share, style in ((low, "-"), (1 / bins, (0, (4, 3))), (high, "-")):  # in front, as the bars hide the band
        axes.axhline(share, color=QUIET, linewidth=0.9, linestyle=style, zorder=3)
    highest = max(high, (count / total).max())
    axes.set(xlim=(0, 1), ylim=(0, 1.08 * highest), xticks=np.linspace(0, 1, 6), ylabel="share of targets")
    percent_axis(axes.yaxis)
    note_below(
        figure,
        "predicted probability of values up to the target, F(y)",
        "high at both ends: too narrow; high in the middle: too wide; sloping: shifted",
    )
    legend_above(figure, {name: bars, f"uniform, ± two standard errors of {total:,.6g} targets": band})
    return figure


@house_style
def errors_by_scale(name: str, errors: Any, scale: Any, *, units: str = "units of the target") -> Figure:
    """Draw errors against the predicted standard deviation, with lines at one and two of these.

    For 40 targets or more, root mean square errors of groups of similar standard deviation are drawn too. They lie on
    the line of one standard deviation if the stated spread is right.

    Args:
        name: Name of the method.
        errors: Observed minus predicted, (N,).
        scale: Predicted standard deviation, (N,), positive.
        units: Units of both.
    """
    check_text(name=name, units=units)
    errors, scale = as_columns({"errors": errors, "scale": scale})
    if (scale <= 0).any():
        raise ValueError(f"`scale` must be positive; got {scale.min():g}.")
    look: Look = looks([name])[name]
    figure = new_figure(5.4, 3.9)
    axes: Axes = figure.subplots()
    handles: dict[str, Any] = {
        "test rows": axes.plot(
            scale, errors, look.marker, color=look.colour, markersize=3, alpha=min(0.8, 40 / len(scale) ** 0.5),
            linewidth=0, markeredgewidth=0,
        )[0]
    }  # fmt: skip
    low, high = scale.min(), scale.max()
    line = np.geomspace(low, high, 200)
    for times, dashes in ((1, (0, (4, 2))), (2, (0, (1, 1.5)))):
        label = f"± {times} predicted standard deviation{'s' if times > 1 else ''}"
        for sign in (-1, 1):
            handles[label] = axes.plot(
                line, sign * times * line, color=QUIET, linewidth=1.1, linestyle=dashes, zorder=1
            )[0]
    if len(scale) >= 2 * _PER_BIN:
        handles["root mean square error of a group"] = axes.plot(
            *_grouped(errors, scale), "o-", color=INK, markersize=4, linewidth=1.1, markerfacecolor="white"
        )[0]
    furthest = max(1.3 * np.abs(errors).max(), 2.4 * low)
    axes.set_ylim(-furthest, furthest)
    axes.axhline(0, color=QUIET, linewidth=0.7, zorder=1)
    if high / low > _WIDE:
        log_scale(axes, form=",g")
    axes.set_ylabel(f"observed − predicted\n({units})")
    note_below(figure, f"predicted standard deviation ({units})")
    legend_above(figure, handles)
    return figure


@house_style
def residuals(
    name: str, observed: Any, predicted: Any, *, low: Any, high: Any, scale: Any, units: str = "units of the target"
) -> Figure:
    """Draw what is left of the targets against what was predicted, with the spread that was predicted there.

    Of more than 500 targets, 500 are drawn, evenly along the predictions. All count in what is drawn of groups of
    similar prediction, if there are 40 targets or more: the mean of the residuals, and a band of two predicted standard
    deviations (their root mean square).

    Args:
        name: Name of the method.
        observed: Targets, (N,).
        predicted: Predictions, (N,).
        low: Lower ends of the intervals, (N,).
        high: Upper ends, (N,).
        scale: Predicted standard deviation, (N,), at least 0.
        units: Units of the targets.
    """
    check_text(name=name, units=units)
    columns = {"observed": observed, "predicted": predicted, "low": low, "high": high, "scale": scale}
    observed, predicted, low, high, scale = as_columns(columns)
    if (low > high).any() or (scale < 0).any():
        raise ValueError(
            f"`scale` and `high` − `low` must be at least 0; got {min(scale.min(), (high - low).min()):g}."
        )
    left, order = observed - predicted, np.argsort(predicted, kind="stable")
    shown = order[np.unique(np.linspace(0, len(order) - 1, min(len(order), MOST)).astype(int))]
    inside, look = ((low <= observed) & (observed <= high))[shown], looks([name])[name]
    figure = new_figure(5.4, 3.9)
    axes: Axes = figure.subplots()
    handles: dict[str, Any] = {}
    groups = np.array_split(order, min(_BINS, max(len(order) // _PER_BIN, 1)))
    if len(groups) > 1:
        x, mean = (np.array([column[rows].mean() for rows in groups]) for column in (predicted, left))
        half = 2 * np.sqrt([np.mean(scale[rows] ** 2) for rows in groups])
        across = np.array([predicted.min(), *x[1:-1], predicted.max()])
        handles["± 2 predicted standard deviations"] = axes.fill_between(
            across, -half, half, color=FAINT, alpha=0.55, linewidth=0, zorder=1
        )
        handles["mean of a group"] = axes.plot(
            x, mean, "o-", color=INK, markersize=4, linewidth=1.1, markerfacecolor="white", zorder=4
        )[0]
    for label, chosen, colour, marker in (
        ("inside its interval", inside, look.colour, look.marker), ("outside", ~inside, _OUTSIDE, "x")
    ):  # fmt: skip
        if chosen.any():
            at = shown[chosen]
            handles[label] = axes.plot(
                predicted[at], left[at], marker, color=colour, markersize=3.2, alpha=0.75, linewidth=0
            )[0]
    axes.axhline(0, color=QUIET, linewidth=0.9, linestyle=(0, (4, 3)), zorder=2)
    axes.set_ylabel(f"observed − predicted\n({units})")
    notes = [f"{len(shown):,} of {len(observed):,} targets"] if len(shown) < len(observed) else []
    note_below(figure, f"predicted ({units})", *notes)
    legend_above(figure, handles)
    return figure


def _grouped(errors: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return root mean squares of standard deviations and of errors, of groups of similar standard deviation."""
    groups = np.array_split(np.argsort(scale, kind="stable"), min(_BINS, len(scale) // _PER_BIN))
    predicted, observed = ([np.sqrt(np.mean(column[rows] ** 2)) for rows in groups] for column in (scale, errors))
    return np.array(predicted), np.array(observed)


def _cut(low: np.ndarray, high: np.ndarray, ends: list[float]) -> bool:
    return bool((low < ends[0]).any() or (high > ends[1]).any())
