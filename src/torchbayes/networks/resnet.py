"""Residual networks of 20 layers for small images, with filter response or batch normalisation.

Both have three stages of three blocks with 16, 32 and 64 channels; the first block of the second and third stage halves
the image by stride. Convolutions and the head start as He et al. (2015), N(0, 2/fan_in), biases at zero; normalisation
layers start at scale one and shift zero.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchbayes.checks import check_counts, check_flags, check_positive
from torchbayes.networks.shapes import InputShape, check_outputs, image_shape

WIDTHS = (16, 32, 64)
BLOCKS = 3


def _he_normal(layer: nn.Conv2d | nn.Linear) -> None:
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


class _Conv2d(nn.Conv2d):
    """A convolution whose own reset is the initialisation of He et al. (2015)."""

    def reset_parameters(self) -> None:
        """Draw weights from N(0, 2/fan_in); set biases to zero."""
        _he_normal(self)


class _Linear(nn.Linear):
    """A linear layer whose own reset is the initialisation of He et al. (2015)."""

    def reset_parameters(self) -> None:
        """Draw weights from N(0, 2/fan_in); set biases to zero."""
        _he_normal(self)


class FilterResponseNorm2d(nn.Module):
    """Filter response normalisation: no batch statistics, no buffers, one image at a time.

        y = γ x / √(ν² + ε) + β,    ν² = mean of x² over height and width,    then max(y, τ) if `threshold`.

    Source: Singh & Krishnan (2020), equations 1-4; τ is their thresholded linear unit.

    Args:
        channels: number of channels C.
        eps: ε.
        threshold: add the learned threshold τ per channel.
    """

    def __init__(self, channels: int, *, eps: float = 1e-6, threshold: bool = False) -> None:
        super().__init__()
        check_counts(channels=channels)
        check_positive(eps=eps)
        check_flags(threshold=threshold)
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(channels))
        self.bias = nn.Parameter(torch.empty(channels))
        self.threshold = nn.Parameter(torch.empty(channels)) if threshold else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set scale γ to one, shift β and threshold τ to zero."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)
        if self.threshold is not None:
            nn.init.zeros_(self.threshold)

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise each channel of each image.

        Args:
            inputs: (B, C, height, width).

        Returns:
            A tensor of the same shape.
        """
        power = inputs.square().mean(dim=(-2, -1), keepdim=True)
        scale = self.weight[:, None, None] * torch.rsqrt(power + self.eps)
        normed = torch.addcmul(self.bias[:, None, None], inputs, scale)
        return normed if self.threshold is None else torch.maximum(normed, self.threshold[:, None, None])


class _FilterResponseBlock(nn.Module):
    """φ(shortcut(x) + FRN(conv(φ(FRN(conv(x)))))), the shortcut a normalised 1x1 projection where the shape changes."""

    def __init__(self, fan_in: int, fan_out: int, stride: int, *, bias: bool, threshold: bool) -> None:
        super().__init__()
        self.activation = nn.SiLU()
        self.conv1 = _Conv2d(fan_in, fan_out, 3, stride, padding=1, bias=bias)
        self.norm1 = FilterResponseNorm2d(fan_out, threshold=threshold)
        self.conv2 = _Conv2d(fan_out, fan_out, 3, padding=1, bias=bias)
        self.norm2 = FilterResponseNorm2d(fan_out, threshold=threshold)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or fan_in != fan_out:
            self.shortcut = nn.Sequential(
                _Conv2d(fan_in, fan_out, 1, stride, bias=bias), FilterResponseNorm2d(fan_out, threshold=threshold)
            )

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.activation(self.norm1(self.conv1(inputs)))
        return self.activation(self.shortcut(inputs) + self.norm2(self.conv2(hidden)))


class _PreActivationBlock(nn.Module):
    """shortcut(x) + conv(φ(BN(conv(φ(BN(x)))))), the shortcut a 1x1 projection where the shape changes."""

    def __init__(self, fan_in: int, fan_out: int, stride: int) -> None:
        super().__init__()
        self.activation = nn.ReLU()
        self.norm1 = nn.BatchNorm2d(fan_in)
        self.conv1 = _Conv2d(fan_in, fan_out, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(fan_out)
        self.conv2 = _Conv2d(fan_out, fan_out, 3, padding=1, bias=False)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or fan_in != fan_out:
            self.shortcut = _Conv2d(fan_in, fan_out, 1, stride, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.conv1(self.activation(self.norm1(inputs)))
        return self.shortcut(inputs) + self.conv2(self.activation(self.norm2(hidden)))


def _block_sizes() -> list[tuple[int, int, int]]:
    """Return (channels in, channels out, stride) of the nine blocks."""
    sizes, fan_in = [], WIDTHS[0]
    for stage, fan_out in enumerate(WIDTHS):
        for block in range(BLOCKS):
            sizes.append((fan_in, fan_out, 2 if stage > 0 and block == 0 else 1))
            fan_in = fan_out
    return sizes


def _head(num_outputs: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), _Linear(WIDTHS[-1], num_outputs)]


def resnet20_frn(
    input_shape: InputShape, num_outputs: int, *, bias: bool = False, threshold: bool = False
) -> nn.Sequential:
    """Return ResNet-20 with filter response normalisation and swish: 272,474 weights for CIFAR-10.

    Without batch statistics the network is a function of its weights alone, which full-batch sampling needs. With
    `bias=True, threshold=True` it is, weight for weight, the 274,042-weight network behind the published HMC samples:
    their code has biases in the convolutions and the threshold of `FilterResponseNorm2d` before each swish.
    Source: Izmailov et al. (2021) and the code released with it (google-research, bnn_hmc/utils/models.py).

    Args:
        input_shape: (channels, height, width) of one image, at least 8x8.
        num_outputs: K.
        bias: give the convolutions biases.
        threshold: give the normalisation layers learned thresholds.

    Returns:
        A module (B, *input_shape) -> (B, K).

    Raises:
        ValueError: if the input is not an image or too small.
    """
    check_outputs(num_outputs)
    check_flags(bias=bias, threshold=threshold)
    channels, *_ = image_shape(input_shape, smallest=8, network="resnet20_frn")
    stem = [
        _Conv2d(channels, WIDTHS[0], 3, padding=1, bias=bias),
        FilterResponseNorm2d(WIDTHS[0], threshold=threshold),
        nn.SiLU(),
    ]
    blocks = [_FilterResponseBlock(*sizes, bias=bias, threshold=threshold) for sizes in _block_sizes()]
    return nn.Sequential(*stem, *blocks, *_head(num_outputs))


def preresnet20(input_shape: InputShape, num_outputs: int) -> nn.Sequential:
    """Return the pre-activation ResNet-20 with batch normalisation and ReLU: 272,282 weights for CIFAR-10.

    Source: He et al. (2016), "Identity mappings in deep residual networks".

    Args:
        input_shape: (channels, height, width) of one image, at least 8x8.
        num_outputs: K.

    Returns:
        A module (B, *input_shape) -> (B, K).

    Raises:
        ValueError: if the input is not an image or too small.
    """
    check_outputs(num_outputs)
    channels, *_ = image_shape(input_shape, smallest=8, network="preresnet20")
    stem = _Conv2d(channels, WIDTHS[0], 3, padding=1, bias=False)
    blocks = [_PreActivationBlock(*sizes) for sizes in _block_sizes()]
    return nn.Sequential(stem, *blocks, nn.BatchNorm2d(WIDTHS[-1]), nn.ReLU(), *_head(num_outputs))
