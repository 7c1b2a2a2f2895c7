"""Figures of predictions over a whole input space: bands in one dimension, maps in two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from torchbayes.checks import check_kind, check_object, check_text, seen
from torchbayes.report.style import (
    INK,
    QUIET,
    Look,
    as_array,
    check_panels,
    grid_shape,
    house_style,
    legend_above,
    looks,
    new_figure,
    note_below,
    panel_title,
    remove_spare,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from torchbayes.predictive.average import Predictive


EPISTEMIC_ALPHA, TOTAL_ALPHA = 0.34, 0.17


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
        arrays = [
            as_array(getattr(self, name), 1, name, finite=True) for name in ("x", "mean", "epistemic_std", "total_std")
        ]
        if len({len(array) for array in arrays}) > 1:
            raise ValueError(
                f"`x`, `mean`, `epistemic_std` and `total_std` must have one length; got "
                f"{', '.join(str(len(array)) for array in arrays)}."
            )
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
    check_kind(Band, "bands by name", **{f"methods[{name!r}]": band for name, band in bands.items()})
    check_text(target_name=target_name)
    below = _notes(notes, bands)
    line = [] if truth is None else _points_of("truth", truth)
    points = _points_of("train_x, train_y", (train_x, train_y))
    rows, columns = grid_shape(len(bands), widest=4)
    figure = new_figure(2.4 * columns + 0.4 if len(bands) > 1 else 5.4, (2.2 if len(bands) > 1 else 3.0) * rows + 0.6)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    drawn = any(band.draws is not None for band in bands.values())
    handles = _band_legend(QUIET if len(bands) > 1 else looks(bands)[next(iter(bands))].colour, draws=drawn)
    for axes, (name, look) in zip(grid.flat, looks(bands).items(), strict=False):
        _band_panel(axes, bands[name], look)
        if line:
            handles["true function"] = axes.plot(*line, color=INK, linewidth=1.1, linestyle=(0, (4, 2)))[0]
        handles["training data"] = axes.plot(*points, "o", color=INK, markersize=2.6, alpha=0.75, linewidth=0)[0]
        if name:
            panel_title(axes, name, look, below=below.get(name, ""))
    remove_spare(grid, len(bands))
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
    check_text(**{f"notes[{name!r}]": text for name, text in notes.items()})
    if strangers := [name for name in notes if name not in panels]:
        raise ValueError(f"`notes` must be of {', '.join(map(repr, panels))}; got one of {strangers[0]!r}.")
    return notes


def _points_of(name: str, pair: Any) -> list[np.ndarray]:
    """Return x and y of points, finite and of one length."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise TypeError(f"`{name}` must be a pair (x, y); got {seen(pair)}.")
    names = name.split(", ") if ", " in name else (name, name)
    points = [as_array(values, 1, argument, finite=True) for argument, values in zip(names, pair, strict=True)]
    if len(points[0]) != len(points[1]):
        raise ValueError(f"`{'` and `'.join(names)}` must have one length; got {len(points[0])} and {len(points[1])}.")
    return points


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
