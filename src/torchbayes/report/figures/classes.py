"""Figures of a classifier: is its confidence right, low on foreign data, and a guide to decisions; what it confuses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from torchbayes.checks import (
    check_counts,
    check_each,
    check_entries,
    check_flags,
    check_kind,
    check_not_negative,
    check_object,
    check_text,
    optional,
)
from torchbayes.report.style import (
    FAINT,
    INK,
    QUIET,
    Look,
    as_array,
    check_pairs,
    check_panels,
    grid_shape,
    house_style,
    label_ends,
    legend_above,
    looks,
    new_figure,
    note_below,
    panel_grid,
    panel_title,
    percent_axis,
    remove_spare,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEW = 10  # a bin with fewer points is unreliable: it is drawn hollow and skipped by the curve
LEGIBLE = 12  # most characters of a class name beside a matrix
# colours of data sets differ from those of methods, so that no reader confuses the two
_FOREIGN = (("#7a3e9d", "-"), ("#b8860b", "--"), ("#14606b", "-."), ("#a3324b", ":"))


class Bins(Protocol):
    """What a reliability diagram needs, such as `torchbayes.metrics.Reliability`."""

    @property
    def confidence(self) -> Any:
        """Mean largest probability, (bins,)."""

    @property
    def accuracy(self) -> Any:
        """Share of right predictions, (bins,)."""

    @property
    def count(self) -> Any:
        """Number of points, (bins,); empty bins are left out."""


def wilson_interval(share: np.ndarray, count: np.ndarray, z: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    """Return the interval (lower, upper) of Wilson (1927) for shares p of n trials, z standard errors to each side.

    (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n)
    """
    centre = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return centre - half, centre + half


@house_style
def reliability_diagram(methods: Mapping[str, Bins], *, counts: bool = False) -> Figure:
    """Draw accuracy against confidence, one panel per method, with the share of inputs in each bin below.

    Error bars are Wilson intervals of about 95 %; the area between curve and diagonal is the calibration gap. Each
    title shows the expected calibration error Σ_b n_b/n |accuracy_b − confidence_b| of the same bins. Axes come in
    pairs (diagram, shares) per method.

    Args:
        methods: name -> bins.
        counts: Write the number of inputs over each share.
    """
    check_panels(methods=methods)
    check_flags(counts=counts)
    for name, bins in methods.items():
        entry = {f"methods[{name!r}]": bins}
        check_entries(entry, check_object, ("confidence", "accuracy", "count"), "metrics.reliability(...)")
    rows, columns = grid_shape(len(methods), widest=5)
    figure = new_figure(max((4.4 if counts else 2.2) * columns, 3.4), (4.6 if counts else 3.4) * rows + 0.45)
    grid = figure.subplots(
        2 * rows, columns, height_ratios=[3.6, 1.2 if counts else 1] * rows, sharex=True, squeeze=False
    )
    pairs = grid.reshape(rows, 2, columns).swapaxes(1, 2).reshape(-1, 2)
    for index, (name, look) in enumerate(looks(methods).items()):
        diagram, shares = pairs[index]
        _reliability_panel(diagram, shares, methods[name], name, look)
        if counts:
            _write_counts(shares, methods[name])
        diagram.tick_params(labelbottom=False)
        shares.tick_params(labelbottom=True)
        if index % columns == 0:
            diagram.set_ylabel("accuracy")
            shares.set_ylabel("share of\ninputs")
        else:
            diagram.tick_params(labelleft=False)
            shares.tick_params(labelleft=False)
    remove_spare(pairs, 2 * len(methods))
    note_below(
        figure,
        "confidence (largest predictive probability)",
        f"above the diagonal: under-confident; below: over-confident; hollow: fewer than {FEW} inputs",
    )
    return figure


def _reliability_panel(diagram: Axes, shares: Axes, bins: Bins, name: str, look: Look) -> None:
    confidence, accuracy, count = (
        as_array(values, 1, f"{field} of {name}")
        for field, values in (("confidence", bins.confidence), ("accuracy", bins.accuracy), ("count", bins.count))
    )
    filled = count > 0
    if not filled.any():
        raise ValueError(f"The bins of {name!r} hold no point at all. Evaluate on at least one input.")
    confidence, accuracy, count = confidence[filled], accuracy[filled], count[filled]
    share = count / count.sum()
    ece = float(np.sum(share * np.abs(accuracy - confidence)))
    panel_title(diagram, name, look, below=f"ECE {ece:.3f}")
    diagram.plot([0, 1], [0, 1], color=QUIET, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    sure = count >= FEW
    for chosen, alpha in ((sure, 0.7), (~sure, 0.3)):
        ends = wilson_interval(accuracy[chosen], count[chosen])
        diagram.vlines(confidence[chosen], *ends, color=look.colour, linewidth=1, alpha=alpha)
    diagram.fill_between(confidence[sure], confidence[sure], accuracy[sure], color=look.colour, alpha=0.16, linewidth=0)
    for chosen, face, line in ((sure, look.colour, "-"), (~sure, "white", "none")):
        if chosen.any():  # an empty line without clipping breaks matplotlib's layout
            diagram.plot(
                confidence[chosen], accuracy[chosen], color=look.colour, markerfacecolor=face, linestyle=line,
                marker=look.marker, markersize=4.2, linewidth=1.4, clip_on=False, zorder=3,
            )  # fmt: skip
    ticks = np.linspace(0, 1, 6)
    labels = ["0", ".2", ".4", ".6", ".8", "1"]
    diagram.set(xlim=(0, 1), ylim=(0, 1), xticks=ticks, yticks=ticks, xticklabels=labels, yticklabels=labels)
    shares.vlines(confidence, 0, share, color=look.colour, linewidth=4)
    shares.set(ylim=(0, 1), yticks=[0, 0.5, 1])
    percent_axis(shares.yaxis)


def _write_counts(shares: Axes, bins: Bins) -> None:
    """Write the number of points over the share of each bin."""
    confidence, count = as_array(bins.confidence, 1, "confidence"), as_array(bins.count, 1, "count")
    for centre, number in zip(confidence[count > 0], count[count > 0], strict=True):
        text = f"{number:,.0f}" if number < 10_000 else f"{number / 1000:,.0f}k"
        at = (centre, number / count.sum())
        shares.annotate(text, at, (0, 2), textcoords="offset points", ha="center", va="bottom", fontsize=6)


@house_style
def entropy_histograms(
    methods: Mapping[str, tuple[Any, Mapping[str, Any]]], num_classes: int, *, known: str = "in distribution"
) -> Figure:
    """Draw the predictive entropy on the test set and on foreign data, one panel per method.

    Entropies lie between 0 (certain) and log K (uniform). The better method has its foreign data further right without
    moving the test set. Shares have a square-root axis, because the first bin of a good classifier dwarfs the others.

    Args:
        methods: name -> (entropies of the test set, {foreign set: its entropies}), in nats, shapes (N,).
        num_classes: K.
        known: Name of the test set.
    """
    check_panels(methods=methods)
    check_pairs(2, methods=methods)
    check_counts(least=2, num_classes=num_classes)
    check_text(known=known)
    figure, grid = panel_grid(len(methods), 5, each=(2.2, 2.45), beside=(0, 0.5), least=4.2, sharex=True, sharey=True)
    edges = np.linspace(0, math.log(num_classes), 26)
    handles: dict[str, Any] = {}
    highest = 0.0
    for axes, (name, look) in zip(grid.flat, looks(methods).items(), strict=False):
        inside, foreign = methods[name]
        shares = _shares(inside, edges, known)
        highest = max(highest, shares.max())
        handles[known] = axes.stairs(shares, edges, fill=True, facecolor=FAINT, edgecolor=QUIET, linewidth=0.8)
        for index, (set_name, entropies) in enumerate(foreign.items()):
            colour, line = _FOREIGN[index % len(_FOREIGN)]
            shares = _shares(entropies, edges, set_name)
            highest = max(highest, shares.max())
            handles[set_name] = axes.stairs(shares, edges, baseline=None, color=colour, linestyle=line, linewidth=1.5)
        panel_title(axes, name, look)
    label_ends(grid, len(methods))
    first, top = grid[0, 0], min(1.0, 1.15 * highest)
    first.set_yscale("function", functions=(lambda share: np.sqrt(np.maximum(share, 0)), np.square))
    first.set(xlim=(0, edges[-1]), ylim=(0, top), yticks=[tick for tick in (0.01, 0.05, 0.2, 0.5, 1.0) if tick <= top])
    percent_axis(first.yaxis)
    figure.supylabel("share of inputs (square-root axis)")
    note_below(figure, f"predictive entropy (nats); uniform over {num_classes} classes: {edges[-1]:.2f}")
    legend_above(figure, handles)
    return figure


def _shares(entropies: Any, edges: np.ndarray, name: str) -> np.ndarray:
    """Return the share of inputs per bin; rounding may put a uniform prediction a hair beyond log K."""
    values = np.clip(as_array(entropies, 1, f"entropies of {name}", finite=True), edges[0], edges[-1])
    return np.histogram(values, edges)[0] / len(values)


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
def risk_curves(
    methods: Mapping[str, tuple[Any, Any]],
    *,
    limit: float | None = None,
    chosen: tuple[float, float] | None = None,
    loss: str = "mean loss",
) -> Figure:
    """Draw the mean loss of the inputs that are decided against their share, the surest first.

    Args:
        methods: name -> (share decided, increasing to 1; mean loss among them), (P,) each, as
            `torchbayes.metrics.risk_coverage` gives them.
        limit: A risk that is promised, drawn as a line.
        chosen: Share and mean loss at a threshold, drawn as a point.
        loss: Name of the loss.
    """
    check_panels(methods=methods)
    check_pairs(2, methods=methods)
    optional(check_not_negative, limit=limit)
    check_text(loss=loss)
    if chosen is not None:
        check_each(check_not_negative, length=2, chosen=chosen)
    figure = new_figure(5.4, 3.5)
    axes: Axes = figure.subplots()
    handles: dict[str, Any] = {}
    for name, look in looks(methods).items():
        kept, risk = (as_array(values, 1, f"curve of {name}", finite=True) for values in methods[name])
        if len(kept) != len(risk):
            raise ValueError(f"`methods`: {name!r} has {len(kept)} shares decided and {len(risk)} losses.")
        sure = kept >= min(0.01, kept[-1])
        handles[name] = axes.plot(kept[sure], risk[sure], color=look.colour)[0]
    if limit is not None:
        handles["promised"] = axes.axhline(limit, color=QUIET, linewidth=1.0, linestyle=(0, (4, 2)), zorder=1)
    if chosen is not None:
        handles["certified threshold"] = axes.plot(*chosen, marker="o", color=INK, linestyle="none", clip_on=False)[0]
    axes.set(xlim=(0, 1))
    axes.set_ylim(bottom=0)
    axes.set_ylabel(f"{loss} of the inputs decided")
    percent_axis(axes.xaxis)
    note_below(figure, "share of inputs decided, from the surest on; the rest is handed on")
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
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(np.arange(-0.5, classes), minor=True)
    axes.grid(visible=False)
    axes.grid(which="minor", color=FAINT, linewidth=0.5)
    axes.tick_params(which="both", length=0)
    axes.set(xlabel="predicted class", ylabel="true class")
    bar = figure.colorbar(image, ax=axes, aspect=18, pad=0.03, label="share of the true class")
    ticks = (0.0, 0.01, 0.05, 0.2, 0.5, 1.0)
    bar.set_ticks([np.sqrt(tick) for tick in ticks], labels=[f"{100 * tick:g} %" for tick in ticks])
    return figure
