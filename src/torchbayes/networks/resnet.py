"""Residual networks of 20 layers for small images, with filter response or batch normalisation.

Both have three stages of three blocks with w, 2w and 4w channels, w = 16 by default; the first block of the second and
third stage halves the image by stride. Convolutions and the head start as He et al. (2015), N(0, 2/fan_in), biases at
zero; normalisation layers start at scale one and shift zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack  # no public way says whether a transform is at work

from torchbayes.checks import check_counts, check_flags, check_positive
from torchbayes.networks.small import InputShape, image_shape

WIDTH = 16  # channels of the first stage; each further stage doubles them
STAGES = BLOCKS = 3


def _he_normal(layer: nn.Conv2d | nn.Linear) -> None:
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


class _Conv2d(nn.Conv2d):
    """A convolution that resets as in He et al. (2015)."""

    def reset_parameters(self) -> None:
        """Draw weights from N(0, 2/fan_in); set biases to zero."""
        _he_normal(self)


class _Linear(nn.Linear):
    """A linear layer that resets as in He et al. (2015)."""

    def reset_parameters(self) -> None:
        """Draw weights from N(0, 2/fan_in); set biases to zero."""
        _he_normal(self)


class _FilterResponse(torch.autograd.Function):
    """y = γ r x + β and r = 1/√(ν² + ε), differentiable any number of times.

    With g and h the gradients by y and r, and sums over the n places of a channel of an image, the one by x is

        γ r g − x (γ Σ g x + h) r³ / n.

    Autograd by itself passes over the images once for each use of x, and takes twice as long.
    """

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Return y and r; weight and bias are (C, 1, 1)."""
        inverse = torch.rsqrt(inputs.square().mean(dim=(-2, -1), keepdim=True) + eps)
        return torch.addcmul(bias, inputs, weight * inverse), inverse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, float], output: tuple[Tensor, Tensor]) -> None:
        """Keep the images and r, which as an output has a gradient when that of y is differentiated."""
        images, weight, _, _ = inputs
        ctx.save_for_backward(images, weight, output[1])
        ctx.save_for_forward(images, weight, output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Return the gradients by images, weight and bias."""
        (grad, grad_inverse), (images, weight, inverse) = gradients, ctx.saved_tensors
        along = (grad * images).sum(dim=(-2, -1), keepdim=True)
        by_power = (weight * along + grad_inverse) * inverse**3 / -_places(images)
        by_images = torch.addcmul(grad * (weight * inverse), images, by_power)
        return by_images, (along * inverse).sum_to_size(weight.shape), grad.sum_to_size(weight.shape), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, Tensor]:
        """Return the derivatives of y and r along tangents of images, weight and bias."""
        (images_t, weight_t, bias_t, _), (images, weight, inverse) = tangents, ctx.saved_tensors
        power_t = (images * images_t).sum(dim=(-2, -1), keepdim=True) / _places(images)
        inverse_t = -(inverse**3) * power_t
        scale_t = weight_t * inverse + weight * inverse_t
        return weight * inverse * images_t + scale_t * images + bias_t, inverse_t


class _Threshold(torch.autograd.Function):
    """max(y, τ); where the two are equal each gets half of the gradient, as with `torch.maximum`.

    The share of y is ½ (1 + sign(y − τ)), which is several times faster than the masks of autograd.
    """

    @staticmethod
    def forward(normed: Tensor, threshold: Tensor) -> Tensor:
        """Return the larger of both; the threshold is (C, 1, 1)."""
        return torch.maximum(normed, threshold)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Keep both."""
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients by both."""
        (grad,), (normed, threshold) = gradients, ctx.saved_tensors
        by_normed = grad * _share(normed, threshold)
        return by_normed, (grad - by_normed).sum_to_size(threshold.shape)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        """Return the derivative along tangents of both."""
        (normed_t, threshold_t), share = tangents, _share(*ctx.saved_tensors)
        return share * normed_t + (1 - share) * threshold_t


def _applied(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Return a function with its own backward pass, or without it where that does not pay.

    A compiler fuses autograd's operations. Under a transform, as for the curvature of a row, PyTorch takes longer to
    find a custom backward pass than the pass saves.
    """
    plain = torch.compiler.is_compiling() or peek_interpreter_stack() is not None
    return function.forward if plain else function.apply


def _share(normed: Tensor, threshold: Tensor) -> Tensor:
    """Return the share of a gradient by max(y, τ) that belongs to y: 0, ½ or 1."""
    return (torch.sign(normed - threshold) + 1) / 2


def _places(images: Tensor) -> int:
    """Return the number of places of an image."""
    return images.shape[-2] * images.shape[-1]


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
        weight, bias = self.weight[:, None, None], self.bias[:, None, None]
        normed, _ = _applied(_FilterResponse)(inputs, weight, bias, self.eps)
        return normed if self.threshold is None else _applied(_Threshold)(normed, self.threshold[:, None, None])


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


def _block_sizes(width: int) -> list[tuple[int, int, int]]:
    """Return (channels in, channels out, stride) of the nine blocks."""
    sizes, fan_in = [], width
    for stage in range(STAGES):
        fan_out = width << stage
        for block in range(BLOCKS):
            sizes.append((fan_in, fan_out, 2 if stage > 0 and block == 0 else 1))
            fan_in = fan_out
    return sizes


def _head(width: int, num_outputs: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), _Linear(width << STAGES - 1, num_outputs)]


def resnet20_frn(
    input_shape: InputShape, num_outputs: int, *, bias: bool = False, threshold: bool = False, width: int = WIDTH
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
        width: w, the channels of the first stage; the others have 2w and 4w.

    Returns:
        A module (B, *input_shape) -> (B, K).

    Raises:
        ValueError: if the input is not an image or too small, or the width is not positive.
    """
    check_counts(num_outputs=num_outputs)
    check_flags(bias=bias, threshold=threshold)
    check_counts(width=width)
    channels, *_ = image_shape(input_shape, smallest=8, network="resnet20_frn")
    stem = [
        _Conv2d(channels, width, 3, padding=1, bias=bias),
        FilterResponseNorm2d(width, threshold=threshold),
        nn.SiLU(),
    ]
    blocks = [_FilterResponseBlock(*sizes, bias=bias, threshold=threshold) for sizes in _block_sizes(width)]
    return nn.Sequential(*stem, *blocks, *_head(width, num_outputs))


def preresnet20(input_shape: InputShape, num_outputs: int, *, width: int = WIDTH) -> nn.Sequential:
    """Return the pre-activation ResNet-20 with batch normalisation and ReLU: 272,282 weights for CIFAR-10.

    Source: He et al. (2016), "Identity mappings in deep residual networks".

    Args:
        input_shape: (channels, height, width) of one image, at least 8x8.
        num_outputs: K.
        width: w, the channels of the first stage; the others have 2w and 4w.

    Returns:
        A module (B, *input_shape) -> (B, K).

    Raises:
        ValueError: if the input is not an image or too small, or the width is not positive.
    """
    check_counts(num_outputs=num_outputs, width=width)
    channels, *_ = image_shape(input_shape, smallest=8, network="preresnet20")
    stem = _Conv2d(channels, width, 3, padding=1, bias=False)
    blocks = [_PreActivationBlock(*sizes) for sizes in _block_sizes(width)]
    return nn.Sequential(stem, *blocks, nn.BatchNorm2d(width << STAGES - 1), nn.ReLU(), *_head(width, num_outputs))
