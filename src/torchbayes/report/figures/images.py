"""Figures of the images that a model is least sure about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchbayes.checks import check_counts, check_kind
from torchbayes.report.style import (
    INK,
    QUIET,
    as_array,
    check_panels,
    house_style,
    legend_above,
    looks,
    new_figure,
    note_below,
    remove_spare,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_CLASSES = 10


def entropy(probs: np.ndarray) -> np.ndarray:
    """Return −Σ_k p_k log p_k over the last axis, in nats, with 0 log 0 = 0."""
    return -np.sum(probs * np.log(np.where(probs > 0, probs, 1.0)), axis=-1)


def displayable(images: np.ndarray) -> np.ndarray:
    """Return images (N, C, height, width) as grey (N, height, width) or colour (N, height, width, 3) values in [0, 1].

    Images that already lie in [0, 1] are kept; standardised ones are stretched channel by channel over all images. For
    C other than 1 or 3 the channels are averaged.
    """
    if images.min() < 0 or images.max() > 1:
        low, high = (edge(images, axis=(0, 2, 3), keepdims=True) for edge in (np.min, np.max))
        images = (images - low) / np.maximum(high - low, 1e-12)
    return np.moveaxis(images, 1, -1) if images.shape[1] == 3 else images.mean(1)


@house_style
def uncertain_images(
    images: Any,
    probs: Any | Mapping[str, Any],
    class_names: Sequence[str],
    *,
    targets: Any,
    count: int = 8,
    rank_by: str | None = None,
) -> Figure:
    """Draw the images of highest predictive entropy, each beside its predictive probabilities; the true class is bold.

    Axes come in pairs (image, bars), the most uncertain first.

    Args:
        images: (N, C, height, width).
        probs: (N, K), or method -> (N, K).
        class_names: K names.
        targets: (N,) true classes.
        count: How many images are drawn.
        rank_by: Method whose entropy ranks the images; the last one by default.
    """
    pictures, labels = as_array(images, 4, "images", finite=True), as_array(targets, 1, "targets").astype(int)
    check_counts(count=count)
    check_kind((list, tuple), "names", class_names=class_names)
    arrays = _checked_probs(probs, labels, (len(pictures), len(class_names)))
    ranked = list(arrays)[-1] if rank_by is None else rank_by
    if not isinstance(ranked, str) or ranked not in arrays:
        raise ValueError(f"`rank_by` must be one of {', '.join(arrays)}; got {ranked!r}.")
    uncertainty = entropy(arrays[ranked])
    chosen = np.argsort(-uncertainty, kind="stable")[:count]
    pictures = displayable(pictures)
    columns = min(4, len(chosen))
    rows = -(-len(chosen) // columns)
    figure = new_figure(2.55 * columns, (1.75 + 0.12 * (len(arrays) - 1)) * rows + 0.25 + 0.3 * (len(arrays) > 1))
    grid = figure.subplots(rows, 2 * columns, width_ratios=[1, 0.8] * columns, squeeze=False)
    cells = grid.reshape(rows * columns, 2)
    largest = max(values[chosen].max() for values in arrays.values())
    end = next(end for end in (0.25, 0.5, 1.0) if end >= largest or end == 1.0)
    for (picture, bars), index in zip(cells, chosen, strict=False):
        _image(picture, pictures[index], f"{ranked} {uncertainty[index]:.2f} nats".strip())
        _bars(bars, {name: values[index] for name, values in arrays.items()}, class_names, int(labels[index]))
        bars.set(xlim=(0, end), xticks=[0, end / 2, end], xticklabels=[f"{tick:g}" for tick in (0, end / 2, end)])
    remove_spare(cells, 2 * len(chosen))
    if len(arrays) > 1:
        legend_above(figure, dict(zip(arrays, cells[0, 1].containers, strict=True)))
    note_below(
        figure,
        "predictive probability of each class; the true class is bold",
        f"above each image: entropy of the average{f' of {ranked}' if ranked else ''}, by which they are ranked",
    )
    return figure


def _checked_probs(probs: Any, labels: np.ndarray, expected: tuple[int, int]) -> dict[str, np.ndarray]:
    """Return probabilities (N, K) of each method, checked against images, labels and class names."""
    methods = probs if isinstance(probs, Mapping) else {"": probs}
    check_panels(probs=methods)
    arrays = {
        name: as_array(values, 2, f"probs of {name}" if name else "probs", finite=True)
        for name, values in methods.items()
    }
    rows, classes = expected
    for name, values in arrays.items():
        if values.shape != expected or len(labels) != rows:
            raise ValueError(
                f"`probs` must have shape {expected} and `targets` {rows} rows, for {rows} `images` and {classes} "
                f"`class_names`; got {values.shape} {f'for {name} ' if name else ''}and {len(labels)}."
            )
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"`targets` must lie in 0..{classes - 1}; got {labels.min()} to {labels.max()}.")
    return arrays


def _image(axes: Axes, picture: np.ndarray, title: str) -> None:
    axes.imshow(picture, cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(True)
    axes.set_title(title, fontsize=7.5, color=QUIET)


def _short(name: str, longest: int = 16) -> str:
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


def _bars(axes: Axes, probs: Mapping[str, np.ndarray], class_names: Sequence[str], target: int) -> None:
    """Draw the probabilities of all classes or, of many, the likeliest ones and the true one."""
    classes = np.arange(len(class_names))
    if len(classes) > MOST_CLASSES:
        likeliest = np.argsort(-np.max(list(probs.values()), axis=0), kind="stable")[: MOST_CLASSES - 1]
        classes = np.unique([*likeliest, target])
    height = 0.8 / len(probs)
    for index, (name, look) in enumerate(looks(probs).items()):
        offset = (index - (len(probs) - 1) / 2) * height
        axes.barh(np.arange(len(classes)) + offset, probs[name][classes], height, color=look.colour)
    axes.set_yticks(np.arange(len(classes)), [_short(class_names[int(index)]) for index in classes])
    axes.set_ylim(len(classes) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.tick_params(labelsize=6, length=0)
    for index, label in zip(classes, axes.get_yticklabels(), strict=True):
        true = index == target
        label.set(fontweight="bold" if true else "normal", color=INK if true else QUIET)
