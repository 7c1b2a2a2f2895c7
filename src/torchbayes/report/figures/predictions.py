"""Figures of predictions: bands over inputs of one dimension, maps over two; and of new rows beside test rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from torchbayes.checks import check_entries, check_kind, check_object, check_text, seen
from torchbayes.report.style import (
    INK,
    QUIET,
    Look,
    as_array,
    as_columns,
    check_panels,
    house_style,
    legend_above,
    looks,
    new_figure,
    note_below,
    panel_grid,
    panel_title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from torchbayes.predictive.average import Predictive


EPISTEMIC_ALPHA, TOTAL_ALPHA = 0.34, 0.17
_NEW = "#0072b2"  # colour of new rows
_MOST_ROWS = 60  # most of them in the first panel


@dataclass(frozen=True)
class Band:
    """One method's predictions along a one-dimensional input; shapes (N,) by default.

    Attributes:
        x: Inputs, increasing.
        mean: Predictive mean.
        epistemic_std: Standard deviation of the drawn functions' means.
        total_std: Standard deviation of the target, noise included.
        draws: A few drawn functions, (S, N), or None.
    """

    x: Any
    mean: Any
    epistemic_std: Any
    total_std: Any
    draws: Any = None

    def __post_init__(self) -> None:
        arrays = as_columns({name: getattr(self, name) for name in ("x", "mean", "epistemic_std", "total_std")})
        for name, array in zip(("epistemic_std", "total_std"), arrays[2:], strict=True):
            if (array < 0).any():
                raise ValueError(f"`{name}` must not be negative; got {array.min():g}.")
        if self.draws is not None and as_array(self.draws, 2, "draws").shape[1] != len(arrays[0]):
            raise ValueError(f"`draws` must have {len(arrays[0])} columns, those of x; got {np.shape(self.draws)}.")

    @classmethod
    def of(cls, x: Any, prediction: Predictive) -> Band:
        """Return the band, without drawn functions, of a regression on one input, (N,), increasing.

        `prediction` is what `predict` gives at these inputs for one target. Raises TypeError for no prediction of a
        regression, ValueError for another number of rows, or more than one target.
        """
        check_object(
            ("mean", "epistemic", "variance"), "the result of `predict` for a regression", prediction=prediction
        )
        mean, epistemic, variance = prediction.mean, prediction.epistemic, prediction.variance
        if mean.numel() != len(mean):
            raise ValueError(f"`prediction` must be of one target; got {mean[0].numel()}. Draw a band for each.")
        return cls(x, mean.flatten(), epistemic.flatten().sqrt(), variance.flatten().sqrt())


@house_style
def predictive_band(
    methods: Mapping[str, Band] | Band,
    train_x: Any,
    train_y: Any,
    *,
    truth: tuple[Any, Any] | None = None,
    notes: Mapping[str, str] | None = None,
    target_name: str = "target",
) -> Figure:
    """Draw predictive mean, ± 2 standard deviations of the functions and of the target, and the data.

    Args:
        methods: name -> band, one panel each, or one band.
        train_x: Training inputs, (N,).
        train_y: Training targets, (N,).
        truth: (x, y) of the true function.
        notes: name -> a line of up to 36 characters under the title of that panel.
        target_name: Name of the target.
    """
    bands = {"": methods} if isinstance(methods, Band) else methods
    check_panels(methods=bands)
    check_entries({f"methods[{name!r}]": band for name, band in bands.items()}, check_kind, Band, "bands by name")
    check_text(target_name=target_name)
    below = _notes(notes, bands)
    line = [] if truth is None else _points_of(truth)
    points = as_columns({"train_x": train_x, "train_y": train_y})
    each = (2.4, 2.2) if len(bands) > 1 else (5.0, 3.0)
    figure, grid = panel_grid(len(bands), 4, each=each, beside=(0.4, 0.6), sharex=True, sharey=True)
    drawn = any(band.draws is not None for band in bands.values())
    handles = _band_legend(QUIET if len(bands) > 1 else looks(bands)[next(iter(bands))].colour, draws=drawn)
    for axes, (name, look) in zip(grid.flat, looks(bands).items(), strict=False):
        _band_panel(axes, bands[name], look)
        if line:
            handles["true function"] = axes.plot(*line, color=INK, linewidth=1.1, linestyle=(0, (4, 2)))[0]
        handles["training data"] = axes.plot(*points, "o", color=INK, markersize=2.6, alpha=0.75, linewidth=0)[0]
        if name:
            panel_title(axes, name, look, below=below.get(name, ""))
    grid[0, 0].set_ylim(*_view(bands, points[1]))
    note_below(figure, "input")
    figure.supylabel(target_name)
    legend_above(figure, handles)
    return figure


def _notes(notes: Mapping[str, str] | None, panels: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the notes of panels, checked."""
    if notes is None:
        return {}
    check_kind(Mapping, "a mapping from names", notes=notes)
    check_entries({f"notes[{name!r}]": text for name, text in notes.items()}, check_text)
    if strangers := [name for name in notes if name not in panels]:
        raise ValueError(f"`notes` must be of {', '.join(map(repr, panels))}; got one of {strangers[0]!r}.")
    return notes


def _points_of(truth: Any) -> list[np.ndarray]:
    """Return x and y of the true function, finite and of one length."""
    if not isinstance(truth, tuple | list) or len(truth) != 2:
        raise TypeError(f"`truth` must be a pair (x, y); got {seen(truth)}.")
    return as_columns({"truth[0]": truth[0], "truth[1]": truth[1]})


def _band_panel(axes: Axes, band: Band, look: Look) -> None:
    x, mean, epistemic, total = (
        as_array(values, 1, field)
        for field, values in (
            ("x", band.x), ("mean", band.mean), ("epistemic_std", band.epistemic_std), ("total_std", band.total_std)
        )
    )  # fmt: skip
    axes.plot(x, mean, color=look.colour, zorder=3)
    for std, alpha in ((epistemic, EPISTEMIC_ALPHA), (total, TOTAL_ALPHA)):
        axes.fill_between(x, mean - 2 * std, mean + 2 * std, color=look.colour, alpha=alpha, linewidth=0)
    if band.draws is not None:
        axes.plot(x, as_array(band.draws, 2, "draws").T, color=look.colour, linewidth=0.5, alpha=0.55)
    axes.margins(x=0)


def _band_legend(colour: str, *, draws: bool) -> dict[str, Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    function = 1 - (1 - EPISTEMIC_ALPHA) * (1 - TOTAL_ALPHA)  # the two bands overlap
    handles: dict[str, Any] = {
        "mean": Line2D([], [], color=colour),
        "± 2 std of the function": Patch(color=colour, alpha=function, linewidth=0),
        "± 2 std of the target": Patch(color=colour, alpha=TOTAL_ALPHA, linewidth=0),
    }
    return handles | ({"drawn functions": Line2D([], [], color=colour, linewidth=0.6)} if draws else {})


def _view(bands: Mapping[str, Band], train_y: np.ndarray) -> tuple[float, float]:
    # All data and bands, but at most two data heights beyond the data: one wild extrapolation would hide the others.
    low, high = train_y.min(), train_y.max()
    room = 2.0 * max(high - low, 1e-12)
    ends = [as_array(b.mean, 1, "mean") + sign * 2 * as_array(b.total_std, 1, "std") for b in bands.values()
            for sign in (-1, 1)]  # fmt: skip
    lowest, highest = min(low, *(end.min() for end in ends)), max(high, *(end.max() for end in ends))
    pad = 0.04 * (min(highest, high + room) - max(lowest, low - room))
    return max(lowest, low - room) - pad, min(highest, high + room) + pad


@house_style
def classification_surface(methods: Mapping[str, Any], x: Any, y: Any, *, inputs: Any, targets: Any) -> Figure:
    """Draw P(class 1) and the predictive entropy over a plane, one column per method, with the data on top.

    Args:
        methods: name -> probability of class 1 on the grid, (len(y), len(x)).
        x: Horizontal positions of the grid, evenly spaced.
        y: Vertical positions of the grid, evenly spaced.
        inputs: Training inputs, (N, 2).
        targets: Training classes 0 or 1, (N,).
    """
    check_panels(methods=methods)
    x, y = as_array(x, 1, "x", finite=True), as_array(y, 1, "y", finite=True)
    points, classes = as_array(inputs, 2, "inputs"), as_array(targets, 1, "targets")
    if points.shape != (len(classes), 2):
        raise ValueError(f"`inputs` must have shape (N, 2) and `targets` (N,); got {points.shape}, {classes.shape}.")
    figure = new_figure(2.35 * len(methods) + 1.1, 5.0)
    grid = figure.subplots(2, len(methods), sharex=True, sharey=True, squeeze=False)
    kinds = (("P(class 1)", "PuOr_r", 1.0), ("entropy (nats)", "cividis", float(np.log(2))))
    images: list[Any] = []
    for column, (name, look) in enumerate(looks(methods).items()):
        probs = as_array(methods[name], 2, f"surface of {name}")
        if probs.shape != (len(y), len(x)):
            raise ValueError(
                f"`methods`: the surface of {name!r} must be {(len(y), len(x))} like the grid of `x` and `y`; got "
                f"{probs.shape}."
            )
        inner = np.clip(probs, 1e-12, 1 - 1e-12)
        surfaces = probs, -inner * np.log(inner) - (1 - inner) * np.log1p(-inner)
        images = [
            _surface(axes, surface, (x, y), cmap=cmap, highest=highest)
            for axes, surface, (_, cmap, highest) in zip(grid[:, column], surfaces, kinds, strict=True)
        ]
        if probs.min() < 0.5 < probs.max():
            grid[0, column].contour(x, y, probs, levels=[0.5], colors=[INK], linewidths=0.9)
        for axes in grid[:, column]:
            _points(axes, points, classes)
        panel_title(grid[0, column], name, look)
    for row, (image, (label, _, _)) in enumerate(zip(images, kinds, strict=True)):
        figure.colorbar(image, ax=list(grid[row]), label=label, aspect=18, pad=0.02)
    note_below(figure, "first input", "line: probability one half; points: training data, orange for class 1")
    figure.supylabel("second input")
    return figure


def _surface(
    axes: Axes, surface: np.ndarray, positions: tuple[np.ndarray, np.ndarray], *, cmap: str, highest: float
) -> Any:
    half = [(line[-1] - line[0]) / max(2 * (len(line) - 1), 1) for line in positions]
    (left, right), (bottom, top) = [
        (line[0] - step, line[-1] + step) for line, step in zip(positions, half, strict=True)
    ]
    axes.grid(visible=False)
    return axes.imshow(
        surface,
        origin="lower",
        extent=(left, right, bottom, top),
        aspect="auto",
        cmap=cmap,
        vmin=0,
        vmax=highest,
        interpolation="bilinear",
    )


def _points(axes: Axes, points: np.ndarray, classes: np.ndarray) -> None:
    for label, face in ((0, "#cdbfe6"), (1, "#ffd9a0")):
        chosen = points[classes == label]
        axes.plot(chosen[:, 0], chosen[:, 1], "o", markersize=2.8, color=face, markeredgecolor=INK, markeredgewidth=0.5)


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
    shades = {"new rows": Patch(color=_NEW, alpha=0.55), "test rows": Patch(color=QUIET, alpha=0.45)}
    legend_above(figure, shades)
    count = len(next(iter(new.values())))
    shown = f"{count:,} new row{'' if count == 1 else 's'}" + (
        f", of which {_MOST_ROWS} are shown on the left" if count > _MOST_ROWS else ""
    )
    note_below(figure, f"{shown}; {len(test[measure]):,} test rows. {meaning}")
    return figure


def _chosen(order: np.ndarray) -> np.ndarray:
    """Return evenly spaced entries of an order, at most as many as are shown."""
    return order[np.unique(np.linspace(0, len(order) - 1, min(len(order), _MOST_ROWS)).round().astype(int))]


def _intervals(axes: Axes, new: Mapping[str, np.ndarray], level: float, target_name: str) -> None:
    name = next(name for name in new if name.startswith("mean"))
    low, high = (next(column for column in new if column.startswith(f"{end}_")) for end in ("low", "high"))
    rows = _chosen(np.argsort(new[name], kind="stable"))
    mean = new[name][rows]
    sides = np.clip(np.stack([mean - new[low][rows], new[high][rows] - mean]), 0, None)
    axes.errorbar(np.arange(len(rows)), mean, sides, fmt="o", markersize=3, color=_NEW, ecolor=QUIET, elinewidth=0.8)
    axes.set_xlabel("new rows, in the order of their mean")
    axes.set_ylabel(f"{target_name}: mean and {level:.0%} interval".replace("%", " %"))
    axes.set_xticks([])


def _classes(axes: Axes, new: Mapping[str, np.ndarray]) -> None:
    probs = np.stack([values for name, values in new.items() if name.startswith("p(")])
    highest = probs.max(0)
    rows = _chosen(np.argsort(highest, kind="stable"))
    axes.plot(np.arange(len(rows)), highest[rows], "o", markersize=3, color=_NEW)
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
    for values, colour, alpha in ((test, QUIET, 0.45), (new, _NEW, 0.55)):
        axes.hist(values, edges, weights=np.full(len(values), 100 / len(values)), color=colour, alpha=alpha)
    axes.set_xlabel(label)
    axes.set_ylabel("share of the rows (%)")
