"""Small convolutional networks without normalisation layers.

Weights and biases start as PyTorch's default for linear and convolutional layers, U(−1/√fan_in, 1/√fan_in).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from torchbayes.checks import check_counts, check_each, check_share, plain_value
from torchbayes.networks.shapes import InputShape, check_outputs, image_shape


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
    check_outputs(num_outputs)
    channels = plain_value(channels)
    check_each(check_counts, length=2, channels=channels)
    check_counts(hidden=hidden)
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
    check_outputs(num_outputs)
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
