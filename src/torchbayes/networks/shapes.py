"""Checks of the shapes a network is built for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torchbayes.checks import check_counts, is_whole, plain_value, seen

InputShape = int | Sequence[int]


def num_features(input_shape: InputShape) -> int:
    """Return the number of values in one input, the product of its sizes without the batch axis."""
    sizes = _sizes(input_shape)
    if not sizes:
        raise ValueError(
            f"`input_shape` must be one or more positive sizes, without the batch axis; got {seen(input_shape)}."
        )
    return math.prod(sizes)


def image_shape(input_shape: InputShape, *, smallest: int, network: str) -> tuple[int, int, int]:
    """Return `input_shape` as (channels, height, width) after checking that the network can take it.

    `smallest` is the least height and width in pixels; `network` is the name for the message.
    """
    sizes = _sizes(input_shape)
    if len(sizes) != 3:
        raise ValueError(
            f"`{network}` takes images: `input_shape` must be (channels, height, width); got {seen(input_shape)}. "
            "Use `mlp` for vectors."
        )
    channels, height, width = sizes
    if min(height, width) < smallest:
        smaller = "`small_cnn` (from 8x8) or `mlp`" if smallest > 8 else "`mlp`"
        raise ValueError(
            f"`{network}` needs an `input_shape` of at least {smallest}x{smallest} pixels; got {height}x{width}. "
            f"Use {smaller}."
        )
    return channels, height, width


def check_outputs(num_outputs: int) -> None:
    """Check the number of outputs K."""
    check_counts(num_outputs=num_outputs)


def _sizes(input_shape: Any) -> list[int]:
    """Return the sizes of a shape; empty if they are not all positive integers."""
    sizes = [input_shape] if is_whole(input_shape) else plain_value(input_shape)
    if not isinstance(sizes, Sequence) or not all(is_whole(size) and size > 0 for size in sizes):
        return []
    return [int(size) for size in sizes]
