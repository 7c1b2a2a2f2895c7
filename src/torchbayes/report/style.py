"""The one house style of all figures: colours and markers of methods, fonts, axis labels, saving.

Figures use matplotlib's objects only (`Figure` on an Agg canvas), never the global state of pyplot.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

import numpy as np

from torchbayes.catalogue.entries import Look
from torchbayes.catalogue.methods import METHODS
from torchbayes.checks import check_choice, check_counts, check_kind, check_object, seen
from torchbayes.posteriors.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

P = ParamSpec("P")
R = TypeVar("R")

DPI = 160
INK, QUIET, FAINT = "#1f2430", "#6b7280", "#c9ced6"

_RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same picture on every machine
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


# Hues of Okabe & Ito (2008), distinguishable under the common forms of colour blindness, and more where these run out.
# A method that has a look of its own in the catalogue keeps it, so that a reader of two reports meets the same method
# in the same colour, with the same marker.
_KNOWN: dict[str, Look] = {key: Look("#a3324b", "X") for key in ("vi", "mfvi", "variational")}
_COLOURS = (
    "#6b7280", "#0072b2", "#e69f00", "#d55e00", "#56b4e9", "#009e73", "#cc79a7", "#7a3e9d", "#8c6d1f", "#14606b",
    "#a3324b",
)  # fmt: skip
_MARKERS = ("h", "p", "<", ">", "d", "8", "P", "X", "o", "s", "D", "^", "v", "H", "*")


def _key(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def _own_looks() -> dict[str, Look]:
    """Return the looks of the catalogue by name, label and other names, without case, spaces and signs."""
    found = dict(_KNOWN)
    for entry in METHODS.values():
        if entry.look is not None:
            found |= {_key(name): entry.look for name in (entry.name, entry.label, *entry.also)}
    return found


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """Return colour and marker of each method.

    Names of the catalogue (MAP, deep ensemble, SWAG, MultiSWAG, HMC, ...; case, spaces and hyphens do not matter) look
    the same everywhere, the first of two that share a look. Others take the colours, and then the markers, that are
    used least, in order; give every figure of a report the same names in the same order to keep them the same. No two
    names have both in common.

    Args:
        methods: names, in the order of the legend.

    Returns:
        name -> look.

    Raises:
        TypeError: if there are no names.
    """
    names = [] if isinstance(methods, str) or not isinstance(methods, Iterable) else list(dict.fromkeys(methods))
    if not names or not all(isinstance(name, str) for name in names):
        raise TypeError(f"`methods` must be names, at least one; got {seen(methods)}.")
    own, found = _own_looks(), {}
    for name in names:
        look = own.get(_key(name))
        if look is not None and look not in found.values():
            found[name] = look
    for name in names:
        if name not in found:
            found[name] = _free(list(found.values()))
    return {name: found[name] for name in names}


def _free(taken: Sequence[Look]) -> Look:
    """Return a look that no method has yet: of the colours used least the first, with the first marker used least."""
    colours, markers = Counter(look.colour for look in taken), Counter(look.marker for look in taken)
    every = [Look(colour, marker) for colour in _COLOURS for marker in _MARKERS]
    return min(every, key=lambda look: (look in taken, colours[look.colour], markers[look.marker]))


def house_style(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function that draws under the house style, leaving matplotlib's settings as they were.

    Args:
        function: any function that makes or saves a figure.

    Returns:
        The function in style.
    """

    @wraps(function)
    def styled(*args: P.args, **kwargs: P.kwargs) -> R:
        import matplotlib as mpl

        with mpl.rc_context(_RC):
            return function(*args, **kwargs)

    return styled


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure on an Agg canvas.

    Args:
        width: inches.
        height: inches.

    Returns:
        The figure.
    """
    from torchbayes.report.notebook import NotebookFigure

    return NotebookFigure(figsize=(width, height))


def grid_shape(panels: int, widest: int = 4) -> tuple[int, int]:
    """Return (rows, columns) that hold a number of panels in rows of about equal length.

    Args:
        panels: how many.
        widest: most columns.

    Returns:
        (rows, columns).
    """
    rows = math.ceil(panels / widest)
    return rows, math.ceil(panels / rows)


def legend_above(figure: Figure, handles: Mapping[str, Any]) -> None:
    """Put one legend above all axes, where it covers nothing, in as few rows as the width allows.

    Args:
        figure: the figure.
        handles: label -> matplotlib artist.
    """
    widths = [0.066 * len(label) + 0.62 for label in handles]  # inches at the house's font size
    columns = len(widths)
    while columns > 1 and sum(map(max, np.array_split(widths, columns))) > figure.get_figwidth():
        columns -= 1
    columns = math.ceil(len(widths) / math.ceil(len(widths) / columns))
    figure.legend(list(handles.values()), list(handles), loc="outside upper center", ncols=columns)


def note_below(figure: Figure, *lines: str) -> None:
    """Write what all panels share, the horizontal axis first, under the figure, wrapped to its width.

    Args:
        figure: the figure.
        *lines: texts, one paragraph each.
    """
    width = int(figure.get_figwidth() / 0.064)
    figure.supxlabel("\n".join(textwrap.fill(line, width, break_on_hyphens=False) for line in lines))


def panel_title(axes: Axes, text: str, look: Look | None = None, *, below: str = "") -> None:
    """Title one panel, wrapped, in the colour of its method.

    Args:
        axes: the panel.
        text: the title.
        look: of the method; ink without one.
        below: a quiet second line.
    """
    if below:
        axes.text(0.5, 1.05, below, transform=axes.transAxes, ha="center", color=INK)
    axes.set_title(
        textwrap.fill(text, 24), color=look.colour if look else INK, fontweight="bold", pad=21 if below else 6
    )


def percent_axis(axis: Axis) -> None:
    """Write shares between 0 and 1 as per cent.

    Args:
        axis: an x or y axis.
    """
    axis.set_major_formatter(lambda share, _position: f"{100 * share:.6g} %".replace("-", "−"))


def remove_spare(grid: np.ndarray, used: int) -> None:
    """Remove the axes of a grid that hold no panel.

    Args:
        grid: axes in reading order.
        used: how many hold one.
    """
    for axes in list(grid.flat)[used:]:
        axes.remove()


_METRICS: dict[str, tuple[str, Literal["low", "high"] | None]] = {
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


def metric_label(metric: str, better: Literal["low", "high"] | None = None) -> str:
    """Return the axis label of a metric: what it is, its unit, and which way is better.

    Args:
        metric: a name such as "NLL"; unknown names stand for themselves.
        better: direction, for metrics the house does not know.

    Returns:
        For example "accuracy (higher is better)".
    """
    label, known = _METRICS.get(metric.lower(), (metric, None))
    if better is not None:
        check_choice(("low", "high"), better=better)
    direction = better or known
    return label if direction is None else f"{label}, {direction}er is better"


def check_panels(**mappings: Any) -> None:
    """Check what figures are made of: name -> values.

    Raises:
        TypeError: if one is not a mapping.
        ValueError: if one is empty.
    """
    for name, value in mappings.items():
        check_kind(Mapping, "a mapping from names", **{name: value})
        if not value:
            raise ValueError(f"`{name}` must hold at least one entry; got none.")


def check_pairs(length: int, **mappings: Mapping[str, Any]) -> None:
    """Check that every entry of mappings is a tuple of some length.

    Raises:
        TypeError: if one is not.
    """
    for name, mapping in mappings.items():
        for key, value in mapping.items():
            if not isinstance(value, tuple | list) or len(value) != length:
                raise TypeError(f"`{name}` must hold tuples of {length}; got {seen(value)} for {key!r}.")


def as_array(values: Any, ndim: int, name: str, *, finite: bool = False) -> np.ndarray:
    """Return tensors, arrays and lists as a float64 array after checking the number of axes.

    Args:
        values: a torch tensor on any device, an array or nested lists.
        ndim: number of axes it must have.
        name: for the message.
        finite: refuse NaN and infinity.

    Returns:
        A new or shared array.

    Raises:
        TypeError: if it holds anything but numbers.
        ValueError: if the number of axes is wrong, the array is empty, or a value is not finite where it must be.
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


@house_style
def png(figure: Figure, *, dpi: int = DPI) -> bytes:
    """Return a figure as a PNG file; the same figure gives the same bytes.

    Args:
        figure: the figure.
        dpi: dots per inch.

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
        figure: the figure.
        path: the file; its folder is made if needed.
        dpi: dots per inch.

    Returns:
        The path.
    """
    check_kind((str, PathLike), "a path", path=path)
    return write_whole(path, png(figure, dpi=dpi))
