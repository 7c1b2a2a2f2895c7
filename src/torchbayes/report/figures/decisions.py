"""Figures of decisions by a classifier: accuracy when doubtful inputs are referred, and which classes are confused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchbayes.checks import check_kind
from torchbayes.report.style import (
    FAINT,
    INK,
    QUIET,
    as_array,
    check_pairs,
    check_panels,
    house_style,
    legend_above,
    looks,
    new_figure,
    note_below,
    percent_axis,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEGIBLE = 12  # most characters of a class name beside a matrix


@house_style
def referral_curves(methods: Mapping[str, tuple[Any, Any]]) -> Figure:
    """Draw accuracy against the share of inputs that are kept when the least certain are referred.

    For a single method the best possible curve is drawn too: exactly the wrong predictions are referred first.

    Args:
        methods: name -> (share kept, increasing to 1; accuracy among them), (P,) each, as
            `torchbayes.metrics.selective_accuracy` gives them.
    """
    check_panels(methods=methods)
    check_pairs(2, methods=methods)
    figure = new_figure(5.4, 3.5)
    axes: Axes = figure.subplots()
    handles: dict[str, Any] = {}
    lowest = 1.0
    for name, look in looks(methods).items():
        kept, accuracy = (as_array(values, 1, f"curve of {name}", finite=True) for values in methods[name])
        if len(kept) != len(accuracy):
            raise ValueError(f"`methods`: {name!r} has {len(kept)} shares kept and {len(accuracy)} accuracies.")
        # the left end is cut off, where the curve depends on a handful of inputs
        sure = kept >= min(0.01, kept[-1])
        handles[name] = axes.plot(kept[sure], accuracy[sure], color=look.colour)[0]
        axes.plot(kept[-1], accuracy[-1], marker=look.marker, color=look.colour, clip_on=False)
        lowest = min(lowest, accuracy[sure].min())
        if len(methods) == 1:
            shares = np.linspace(0.01, 1, 200)
            best = np.minimum(1.0, accuracy[-1] / shares)
            handles["if the wrong ones were referred first"] = axes.plot(
                shares, best, color=QUIET, linewidth=1.0, linestyle=(0, (4, 2)), zorder=1
            )[0]
            handles["if referred at random"] = axes.axhline(
                accuracy[-1], color=QUIET, linewidth=1.0, linestyle=(0, (1, 2)), zorder=1
            )
    room = max(1.0 - lowest, 0.005)
    axes.set(xlim=(0, 1), ylim=(max(0.0, lowest - 0.12 * room), 1.0 + 0.06 * room))
    axes.set_ylabel("accuracy on the inputs kept")
    percent_axis(axes.xaxis)
    percent_axis(axes.yaxis)
    note_below(figure, "share of inputs kept, from the most certain on; the rest is referred")
    legend_above(figure, handles)
    return figure


@house_style
def confusion_matrix(counts: Any, class_names: Sequence[str]) -> Figure:
    """Draw how often each true class is predicted as each class: shaded by the share of the true class, with counts.

    Args:
        counts: (K, K), true classes by predicted ones.
        class_names: K names.
    """
    array = as_array(counts, 2, "counts", finite=True)
    check_kind((list, tuple), "names", class_names=class_names)
    classes = len(class_names)
    if array.shape != (classes, classes) or (array < 0).any():
        raise ValueError(
            f"`counts` must be ({classes}, {classes}) for {classes} `class_names`, nowhere negative; got shape "
            f"{array.shape}, smallest {array.min():g}."
        )
    rows = array.sum(1, keepdims=True)
    shares = np.divide(array, rows, out=np.zeros_like(array), where=rows > 0)
    names = [str(name) if len(str(name)) <= LEGIBLE else f"{str(name)[: LEGIBLE - 1]}…" for name in class_names]
    longest = max(map(len, names))
    cell = 0.42 if classes <= 12 else 0.34
    side = max(cell * classes, 1.7)
    slanted = 0.08 * longest > side / classes
    figure = new_figure(side + 0.075 * longest + 1.9, side + 0.9 + (0.06 * longest if slanted else 0))
    axes: Axes = figure.subplots()
    # a square root makes a handful of confusions visible beside a diagonal of hundreds
    image = axes.imshow(np.sqrt(shares), cmap="Blues", vmin=0, vmax=1, aspect="equal")
    for true, predicted in zip(*np.nonzero(array), strict=True):
        count = float(array[true, predicted])
        axes.text(
            predicted, true, f"{count:,.0f}" if count.is_integer() else f"{count:,.1f}", ha="center", va="center",
            fontsize=7 if count < 1000 else 5.5, color="white" if shares[true, predicted] > 0.3 else INK,
        )  # fmt: skip
    axes.set_xticks(range(classes), names, rotation=45 if slanted else 0, ha="right" if slanted else "center")
    axes.set_yticks(range(classes), names)
    axes.set_xticks(np.arange(-0.5, classes), minor=True)
    axes.set_yticks(np.arange(-0.5, classes), minor=True)
    axes.grid(visible=False)
    axes.grid(which="minor", color=FAINT, linewidth=0.5)
    axes.tick_params(which="both", length=0)
    axes.set(xlabel="predicted class", ylabel="true class")
    bar = figure.colorbar(image, ax=axes, aspect=18, pad=0.03, label="share of the true class")
    ticks = (0.0, 0.01, 0.05, 0.2, 0.5, 1.0)
    bar.set_ticks([np.sqrt(tick) for tick in ticks], labels=[f"{100 * tick:g} %" for tick in ticks])
    return figure
