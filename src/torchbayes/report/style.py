"""The one house style of all figures: colours and markers of methods, fonts, axis labels, saving.

Figures use matplotlib's objects only (`Figure` on an Agg canvas), never the global state of pyplot.
"""

from __future__ import annotations

import inspect
import io
import math
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

import numpy as np

from torchbayes.catalogue.entries import Look
from torchbayes.catalogue.methods import METHODS
from torchbayes.checks import check_choice, check_counts, check_entries, check_kind, check_object, seen
from torchbayes.posteriors.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Better = Literal["low", "high"]
P = ParamSpec("P")
R = TypeVar("R")

SHARES = ("accuracy", "error", "agreement", "confidence")
"""Metrics that are written as per cent wherever they stand, by the first word of their label."""
FAR = 4.0
"""Positive values whose largest is more than so many times the smallest would lie in one place of a linear axis."""

DPI = 160
INK, QUIET, FAINT = "#1f2430", "#6b7280", "#c9ced6"

_RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # shipped with matplotlib, so pictures are the same on every machine
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "figure.labelsize": 8.5,
    "axes.labelsize": 8.5,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": QUIET,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e7e9ee",
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.7,
    "lines.markersize": 5,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": 0.06,
    "figure.constrained_layout.w_pad": 0.06,
    "svg.hashsalt": "torchbayes",
}


# Hues of Okabe & Ito (2008), distinguishable under the common forms of colour blindness, and some more. A method with
# a look in the catalogue keeps it, so that a reader of two reports meets it in the same colour with the same marker.
_KNOWN: dict[str, Look] = {key: Look("#a3324b", "X") for key in ("vi", "mfvi", "variational")}
_COLOURS = (
    "#6b7280", "#0072b2", "#e69f00", "#d55e00", "#56b4e9", "#009e73", "#cc79a7", "#7a3e9d", "#8c6d1f", "#14606b",
    "#a3324b",
)  # fmt: skip
_MARKERS = ("h", "p", "<", ">", "d", "8", "P", "X", "o", "s", "D", "^", "v", "H", "*")


def _key(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def _own_looks() -> dict[str, Look]:
    """Return the looks of the catalogue by name, label and other names, in lower case without spaces and signs."""
    by_key = dict(_KNOWN)
    for entry in METHODS.values():
        if entry.look is not None:
            by_key |= {_key(name): entry.look for name in (entry.name, entry.label, *entry.also)}
    return by_key


_PAGE: ContextVar[dict[str, Look] | None] = ContextVar("page", default=None)


@contextmanager
def one_page() -> Iterator[None]:
    """Let a name look the same in every figure inside the `with`, whichever other names a figure has."""
    token = _PAGE.set({})
    try:
        yield
    finally:
        _PAGE.reset(token)


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """Return colour and marker of each method.

    Names of the catalogue (MAP, deep ensemble, SWAG, MultiSWAG, HMC, ...; case, spaces and hyphens do not matter) look
    the same everywhere; if two share a look, the first keeps it. Other names take the least used colours, then the
    least used markers, in order, so give every figure of a report the same names in the same order, or draw all of them
    in `one_page`. No two names have both in common.

    Args:
        methods: Names, in the order of the legend.

    Returns:
        name -> look.

    Raises:
        TypeError: There are no names.
    """
    names = [] if isinstance(methods, str) or not isinstance(methods, Iterable) else list(dict.fromkeys(methods))
    if not names or not all(isinstance(name, str) for name in names):
        raise TypeError(f"`methods` must be names, at least one; got {seen(methods)}.")
    catalogue, page = _own_looks(), _PAGE.get()
    page = {} if page is None else page
    chosen = {name: page[name] for name in names if name in page}
    for name in names:
        look = catalogue.get(_key(name))
        if name not in chosen and look is not None and look not in {*chosen.values(), *page.values()}:
            chosen[name] = look
    for name in names:
        if name not in chosen:
            chosen[name] = _free(list(chosen.values()), list(page.values()))
    page.update(chosen)
    return {name: chosen[name] for name in names}


def _free(taken: Sequence[Look], elsewhere: Sequence[Look]) -> Look:
    """Return a look that no method has yet: the first least used colour, with the first least used marker.

    `taken` are those of a figure, `elsewhere` those of all figures of its page, which count less.
    """
    colours, markers = Counter(look.colour for look in taken), Counter(look.marker for look in taken)
    others, used = Counter(look.colour for look in elsewhere), {*taken, *elsewhere}
    every = [Look(colour, marker) for colour in _COLOURS for marker in _MARKERS]
    return min(every, key=lambda look: (look in used, colours[look.colour], others[look.colour], markers[look.marker]))


def house_style(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function that draws or saves run in the house style, and leave matplotlib's settings as they were."""
    if inspect.isgeneratorfunction(function):
        raise TypeError(f"{function.__name__} must return what it draws: it would yield it after the style is left.")

    @wraps(function)
    def styled(*args: P.args, **kwargs: P.kwargs) -> R:
        import matplotlib as mpl
        from matplotlib.figure import Figure

        with mpl.rc_context(_RC):
            result = function(*args, **kwargs)
        if isinstance(result, Figure):
            _show_as_written(result)
        return result

    return styled


def _show_as_written(figure: Figure) -> None:
    """Show texts as they are: in the name of a column or a class two dollar signs are no formula."""
    from matplotlib.text import Text
    from matplotlib.ticker import LogFormatter

    for text in figure.findobj(Text):
        text.set_parse_math(False)
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        powers = isinstance(axis.get_major_formatter(), LogFormatter)  # they are written as formulas
        for label in (*axis.get_majorticklabels(), *axis.get_minorticklabels()):
            label.set_parse_math(powers)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches, on an Agg canvas."""
    from torchbayes.report.notebook import NotebookFigure

    return NotebookFigure(figsize=(width, height))


def grid_shape(panels: int, widest: int = 4) -> tuple[int, int]:
    """Return (rows, columns) that hold a number of panels in rows of about equal length, at most `widest` columns."""
    rows = math.ceil(panels / widest)
    return rows, math.ceil(panels / rows)


def panel_grid(
    count: int, widest: int, *, each: tuple[float, float], beside: tuple[float, float], least: float = 0.0, **how: Any
) -> tuple[Figure, np.ndarray]:
    """Return a figure with a number of panels, in rows of at most `widest`, and their axes (rows, columns).

    Width and height in inches are those of `each` panel, and of what lies `beside` them all; `least` is that of the
    width. `how` is as in `Figure.subplots`. The axes after the first `count`, in reading order, are removed.
    """
    rows, columns = grid_shape(count, widest)
    figure = new_figure(max(each[0] * columns + beside[0], least), each[1] * rows + beside[1])
    grid = figure.subplots(rows, columns, squeeze=False, **how)
    remove_spare(grid, count)
    return figure, grid


def legend_above(figure: Figure, handles: Mapping[str, Any]) -> None:
    """Put one legend (label -> artist) above all axes, in as few rows as the width allows."""
    widths = [0.066 * len(label) + 0.62 for label in handles]  # inches at the house font size
    columns = len(widths)
    while columns > 1 and sum(map(max, np.array_split(widths, columns))) > figure.get_figwidth():
        columns -= 1
    columns = math.ceil(len(widths) / math.ceil(len(widths) / columns))
    figure.legend(list(handles.values()), list(handles), loc="outside upper center", ncols=columns)


def note_below(figure: Figure, *lines: str) -> None:
    """Write lines below the figure, a paragraph each, wrapped to its width; the first names the horizontal axis."""
    width = int(figure.get_figwidth() / 0.064)
    figure.supxlabel("\n".join(textwrap.fill(line, width, break_on_hyphens=False) for line in lines))


def panel_title(axes: Axes, text: str, look: Look | None = None, *, below: str = "") -> None:
    """Title one panel, wrapped, in the colour of its method, with a quiet second line `below`."""
    if below:
        axes.text(0.5, 1.05, below, transform=axes.transAxes, ha="center", color=INK)
    axes.set_title(
        textwrap.fill(text, 24), color=look.colour if look else INK, fontweight="bold", pad=21 if below else 6
    )


def percent_axis(axis: Axis) -> None:
    """Write shares between 0 and 1 as per cent."""
    axis.set_major_formatter(lambda share, _position: f"{100 * share:.6g} %".replace("-", "−"))


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


def log_scale(axes: Axes, form: str = "g") -> None:
    """Make the horizontal axis logarithmic, with plain numbers, in this `form`, at 1, 2 and 5 of each decade."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(lambda number, _position: f"{number:{form}}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def label_ends(grid: np.ndarray, used: int) -> None:
    """Write the ticks of a shared horizontal axis under those of the first `used` panels with no panel below them."""
    for axes in list(grid.flat)[max(used - grid.shape[1], 0) : used]:
        axes.tick_params(labelbottom=True)


def remove_spare(grid: np.ndarray, used: int) -> None:
    """Remove the axes of a grid after the first `used`, in reading order."""
    for axes in list(grid.flat)[used:]:
        axes.remove()


_METRICS: dict[str, tuple[str, Better | None]] = {
    "nll": ("negative log likelihood (nats)", "low"),
    "accuracy": ("accuracy", "high"),
    "error": ("error rate", "low"),
    "brier": ("Brier score", "low"),
    "ece": ("expected calibration error", "low"),
    "rmse": ("RMSE (units of the target)", "low"),
    "auroc": ("AUROC", "high"),
    "aupr": ("AUPR", "high"),
    "fpr95": ("false positive rate at 95 % recall", "low"),
    "loss": ("loss per row (nats)", "low"),
    "log_density": ("log density (nats)", None),
    "log_likelihood": ("log likelihood (nats)", None),
}


def metric_label(metric: str, better: Better | None = None) -> str:
    """Return the axis label of a metric: its name, unit, and which way is better, such as "accuracy, higher is better".

    Unknown names stand for themselves; `better` gives their direction.
    """
    label, usual = _METRICS.get(metric.lower(), (metric, None))
    if better is not None:
        check_choice(("low", "high"), better=better)
    direction = better or usual
    return label if direction is None else f"{label}, {direction}er is better"


def check_panels(**mappings: Any) -> None:
    """Check that arguments are non-empty mappings."""
    for name, value in mappings.items():
        check_entries({name: value}, check_kind, Mapping, "a mapping from names")
        if not value:
            raise ValueError(f"`{name}` must hold at least one entry; got none.")


def check_pairs(length: int, **mappings: Mapping[str, Any]) -> None:
    """Check that every entry of mappings is a tuple of some length."""
    for name, mapping in mappings.items():
        for key, value in mapping.items():
            if not isinstance(value, tuple | list) or len(value) != length:
                raise TypeError(f"`{name}` must hold tuples of {length}; got {seen(value)} for {key!r}.")


def as_array(values: Any, ndim: int, name: str, *, finite: bool = False) -> np.ndarray:
    """Return a tensor on any device, an array or nested lists as a non-empty float64 array with `ndim` axes.

    The array may share memory. Raises TypeError for anything but numbers, ValueError for a wrong shape or, where they
    must be finite, values that are not.
    """
    try:
        plain = values.detach().cpu().double().numpy() if hasattr(values, "detach") else values
        array = np.asarray(plain, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"`{name}` must be numbers; got {seen(values)}.") from error
    if array.ndim != ndim or array.size == 0:
        raise ValueError(f"`{name}` must have {ndim} axes and not be empty; got shape {array.shape}.")
    if finite and not np.isfinite(array).all():
        raise ValueError(f"`{name}` must be finite; got {np.sum(~np.isfinite(array))} values that are NaN or infinite.")
    return array


def as_columns(columns: Mapping[str, Any]) -> list[np.ndarray]:
    """Return columns, by their names in messages, as finite arrays of one length."""
    arrays = [as_array(column, 1, name, finite=True) for name, column in columns.items()]
    if len({len(array) for array in arrays}) > 1:
        lengths = ", ".join(str(len(array)) for array in arrays)
        raise ValueError(f"`{'`, `'.join(columns)}` must have one length; got {lengths}.")
    return arrays


def as_positions(name: str, values: Any) -> np.ndarray:
    """Return positions along an axis, finite and increasing."""
    array = as_array(values, 1, name, finite=True)
    if not (np.diff(array) > 0).all():
        raise ValueError(f"`{name}` must increase; got values that do not. Sort them.")
    return array


@house_style
def png(figure: Figure, *, dpi: int = DPI) -> bytes:
    """Return a figure as a PNG file; the same figure gives the same bytes.

    Args:
        figure: The figure.
        dpi: Dots per inch.

    Returns:
        The bytes of the file.
    """
    check_object(("savefig",), "what the functions of `figures` give", figure=figure)
    check_counts(dpi=dpi)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=dpi, metadata={"Software": None}, facecolor="white")
    return stream.getvalue()


def savefig(figure: Figure, path: str | Path, *, dpi: int = DPI) -> Path:
    """Save a figure as PNG, completely or not at all.

    Args:
        figure: The figure.
        path: The file; its folder is made if needed.
        dpi: Dots per inch.

    Returns:
        The path.
    """
    check_kind((str, PathLike), "a path", path=path)
    return write_whole(path, png(figure, dpi=dpi))
