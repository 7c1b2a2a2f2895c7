"""Fully connected and small convolutional networks without normalisation layers, and checks of their shapes.

Weights and biases start as PyTorch's default for linear and convolutional layers, U(−1/√fan_in, 1/√fan_in).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import nn

from torchbayes.checks import check_choice, check_counts, check_each, check_share, is_whole, plain_value, seen

InputShape = int | Sequence[int]
ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "swish": nn.SiLU}


def mlp(
    input_shape: InputShape,
    num_outputs: int,
    *,
    hidden: Sequence[int] = (50, 50),
    activation: str = "relu",
    dropout: float = 0.0,
) -> nn.Sequential:
    """Return a multilayer perceptron; inputs of any shape are flattened first.

        h_0 = x,  h_l = φ(W_l h_{l-1} + b_l),  f = W_L h_{L-1} + b_L.

    With dropout each hidden h_l is multiplied by a random mask in training mode. Weights and biases start as PyTorch's
    default for linear layers, U(−1/√fan_in, 1/√fan_in).

    Args:
        input_shape: shape of one input without the batch axis, or the number of its features.
        num_outputs: K.
        hidden: widths of the hidden layers; empty for a linear model.
        activation: φ, one of `relu`, `tanh`, `swish`.
        dropout: probability that a hidden unit is dropped; no such layers if 0.

    Returns:
        A module (B, *input_shape) -> (B, K).

    Raises:
        ValueError: if a size is not positive, `dropout` is not in [0, 1), or the activation is unknown.
    """
    check_counts(num_outputs=num_outputs)
    check_choice(tuple(ACTIVATIONS), activation=activation)
    check_share(dropout=dropout)
    hidden = plain_value(hidden)
    check_each(check_counts, least=0, hidden=hidden)
    widths = [num_features(input_shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), ACTIVATIONS[activation](), *([nn.Dropout(dropout)] if dropout else [])]
    return nn.Sequential(*layers, nn.Linear(widths[-1], num_outputs))


def linear(input_shape: InputShape, num_outputs: int) -> nn.Sequential:
    """Return a linear model, f = W x + b: the multilayer perceptron without hidden layers.

    Args:
        input_shape: shape of one input without the batch axis, or the number of its features.
        num_outputs: K.

    Returns:
        A module (B, *input_shape) -> (B, K).

    Raises:
        ValueError: if a size is not positive.
    """
    return mlp(input_shape, num_outputs, hidden=())


def lenet(
    input_shape: InputShape,
    num_outputs: int,
    *,
    channels: Sequence[int] = (20, 50),
    hidden: int = 500,
    dropout: float = 0.0,
) -> nn.Sequential:
    """Return LeNet in its 20-50-500 form: 431,080 weights for 28x28 grey images and ten classes.

    Two 5x5 convolutions without padding, each with a 2x2 max-pool and ReLU, then a hidden layer. Source: LeCun et al.
    (1998); this form is the one of Louizos & Welling (2017), who take channels (192, 192) and 1000 hidden units for
    CIFAR-10.

    Args:
        input_shape: (channels, height, width) of one image, at least 16x16.
        num_outputs: K.
        channels: filters of the two convolutions.
        hidden: units of the hidden layer.
        dropout: probability that a feature before a dense layer is dropped in training mode; no such layers if 0.

    Returns:
        A module (B, *input_shape) -> (B, K).

    Raises:
        ValueError: if the input is not an image or too small, or a setting is out of its range.
    """
    check_counts(num_outputs=num_outputs, hidden=hidden)
    channels = plain_value(channels)
    check_each(check_counts, length=2, channels=channels)
    check_share(dropout=dropout)
    colours, *sides = image_shape(input_shape, smallest=16, network="lenet")
    height, width = (((side - 4) // 2 - 4) // 2 for side in sides)
    first, second = channels
    # ReLU and max commute, and ReLU after the pool has a quarter of the values.
    return nn.Sequential(
        nn.Conv2d(colours, first, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(first, second, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(),
        *([nn.Dropout(dropout)] if dropout else []),
        nn.Linear(second * height * width, hidden), nn.ReLU(),
        *([nn.Dropout(dropout)] if dropout else []),
        nn.Linear(hidden, num_outputs),
    )  # fmt: skip


def small_cnn(input_shape: InputShape, num_outputs: int, *, dropout: float = 0.0) -> nn.Sequential:
    """Return a network of about 10,000 weights for images from 8x8 to 32x32.

    Two 3x3 convolutions with padding (16 and 32 channels), each with ReLU and a max-pool. The second pool is wide
    enough to leave a grid of about 4x4, so that the size of the linear head hardly depends on that of the image.

    Args:
        input_shape: (channels, height, width) of one image, at least 8x8.
        num_outputs: K.
        dropout: probability that a channel between the convolutions, or a feature before the head, is dropped in
            training mode; no such layers if 0.

    Returns:
        A module (B, *input_shape) -> (B, K).

    Raises:
        ValueError: if the input is not an image or too small, or `dropout` is not in [0, 1).
    """
    check_counts(num_outputs=num_outputs)
    check_share(dropout=dropout)
    channels, *sides = image_shape(input_shape, smallest=8, network="small_cnn")
    height, width = (side // 2 for side in sides)
    pool = (height // 4, width // 4)
    features = 32 * (height // pool[0]) * (width // pool[1])
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(),
        *([nn.Dropout2d(dropout)] if dropout else []),
        nn.Conv2d(16, 32, 3, padding=1), nn.MaxPool2d(pool), nn.ReLU(),
        nn.Flatten(),
        *([nn.Dropout(dropout)] if dropout else []),
        nn.Linear(features, num_outputs),
    )  # fmt: skip


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


def _sizes(input_shape: Any) -> list[int]:
    """Return the sizes of a shape; empty if they are not all positive integers."""
    sizes = [input_shape] if is_whole(input_shape) else plain_value(input_shape)
    if not isinstance(sizes, Sequence) or not all(is_whole(size) and size > 0 for size in sizes):
        return []
    return [int(size) for size in sizes]
