"""Small convolutional networks without normalisation layers.

Weights and biases start as PyTorch's default for linear and convolutional layers, U(−1/√fan_in, 1/√fan_in).
"""

from __future__ import annotations

from torch import nn

from torchbayes.checks import check_share
from torchbayes.networks.shapes import InputShape, check_outputs, image_shape


def lenet(input_shape: InputShape, num_outputs: int) -> nn.Sequential:
    """Return LeNet in its 20-50-500 form: 431,080 weights for 28x28 grey images and ten classes.

    Two 5x5 convolutions without padding (20 and 50 channels), each with a 2x2 max-pool and ReLU, then 500 hidden units.
    Source: LeCun et al. (1998); this form is the one of Louizos & Welling (2017).

    Args:
        input_shape: (channels, height, width) of one image, at least 16x16.
        num_outputs: K.

    Returns:
        A module (B, *input_shape) -> (B, K).

    Raises:
        ValueError: if the input is not an image or too small.
    """
    check_outputs(num_outputs)
    channels, *sides = image_shape(input_shape, smallest=16, network="lenet")
    height, width = (((side - 4) // 2 - 4) // 2 for side in sides)
    # ReLU and max commute; ReLU after the pool touches a quarter of the values.
    return nn.Sequential(
        nn.Conv2d(channels, 20, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(50 * height * width, 500), nn.ReLU(),
        nn.Linear(500, num_outputs),
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
        ValueError: if the input is not an image or too small, or a share is not one.
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
