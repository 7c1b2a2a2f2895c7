"""Image corruptions at severities 1 to 5, after CIFAR-10-C.

Hendrycks and Dietterich (2019), Benchmarking Neural Network Robustness to Common Corruptions and Perturbations. The
constants are those published for CIFAR-10-C. Lengths given there in pixels of 32-pixel images are scaled with the
image, so that a corruption means the same for 8, 28 or 224 pixels. Rotation and translation have no published scale;
this library turns by 15 to 75 degrees to either side and shifts by 5 to 25 % of the size in a random direction, black
where nothing is left. Differences from the published code: only JPEG rounds to bytes, brightness works on any number
of channels, and motion blur and fog follow the stated formulas in exact arithmetic. By those constants severities 3
and 4 of `motion_blur` differ only in the far tail of the kernel, and two severities of `pixelate` are the same where
an image is too small to tell their block counts apart.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from torchbayes.checks import as_seed, check_counts, check_kind, check_name, check_tensor, is_whole, optional, seen
from torchbayes.data.base import Data, Pair
from torchbayes.native.process import undisturbed
from torchbayes.randomness.seeds import Purpose, generator

_REFERENCE = 32  # pixels of the images that the published lengths refer to


@undisturbed
def corrupt(images: Tensor, name: str, severity: int, *, seed: int = 0) -> Tensor:
    """Corrupt images.

    The same seed gives the same randomness (noise field, directions, clouds) at every severity. The work is done on
    the CPU with float32 draws, so device and dtype change the result by rounding only.

    Args:
        images: Values in [0, 1], shape (B, C, H, W), any C, H, W.
        name: One of `CORRUPTIONS`.
        severity: 1 (weak) to 5 (strong).
        seed: Seed of all randomness.

    Returns:
        Values in [0, 1], of the shape, dtype and device of `images`.

    Raises:
        ValueError: The severity or the name is unknown, or the images have another shape or range.
        TypeError: The images are not floating point.
    """
    check_name("corruption", name, _TABLE)
    if not is_whole(severity) or severity not in range(1, 6):
        raise ValueError(f"`severity` must be 1, 2, 3, 4 or 5; got {seen(severity)}.")
    check_tensor(images=images)
    if images.ndim != 4:
        raise ValueError(f"`images` must have the shape (B, C, H, W); got {tuple(images.shape)}. Add the missing axes.")
    if not images.is_floating_point():
        raise TypeError(f"`images` must be floating point in [0, 1]; got {images.dtype}. Divide byte images by 255.")
    if not images.numel():
        return images.clone()
    low, high = (float(value) for value in images.detach().aminmax())
    if not (low >= 0 and high <= 1):
        raise ValueError(
            f"`images` must lie in [0, 1]; got values from {low:.4g} to {high:.4g}. Undo their standardisation first."
        )
    function, settings = _TABLE[name]
    exact = torch.promote_types(images.dtype, torch.float32)
    work = images.detach().to("cpu", exact)
    source = generator(Purpose.CORRUPTION, as_seed(seed))
    return function(work, settings[int(severity) - 1], source).clamp_(0, 1).to(images.device, images.dtype)


@undisturbed
def corrupt_data(data: Data, name: str, severity: int, *, seed: int = 0, limit: int | None = None) -> Pair:
    """Corrupt the test images of a data set and standardise them again with its training statistics.

    Args:
        data: A data set of images.
        name: One of `CORRUPTIONS`.
        severity: 1 (weak) to 5 (strong).
        seed: Seed of all randomness.
        limit: Only the first `limit` test rows; all by default.

    Returns:
        Corrupted, standardised inputs and their targets.

    Raises:
        ValueError: The data set has no images.
    """
    check_kind(Data, "a data set, as `load` gives it", data=data)
    optional(check_counts, limit=limit)
    if not data.is_image:
        raise ValueError(f"Corruptions are for images; `{data.name}` has rows of shape {data.input_shape}.")
    inputs, targets = data.test.inputs[:limit], data.test.targets[:limit]
    images = data.standardise.inverse(inputs).clamp_(0, 1)  # rounding can leave the range by 1e-7
    return Pair(data.standardise(corrupt(images, name, severity, seed=seed)), targets)


# --- noise ---------------------------------------------------------------------------------------------------------


def _gaussian_noise(images: Tensor, scale: float, generator: Generator) -> Tensor:
    """Return x + scale * e, e ~ N(0, 1)."""
    return images + scale * torch.randn(images.shape, generator=generator, dtype=torch.float32)


def _shot_noise(images: Tensor, photons: float, generator: Generator) -> Tensor:
    """Return counted photons: Poisson(photons * x) / photons."""
    return torch.poisson(images * photons, generator=generator).div_(photons)


def _impulse_noise(images: Tensor, amount: float, generator: Generator) -> Tensor:
    """Return images with a share `amount` of the values replaced by 0 or 1, with equal chance."""
    hit = torch.rand(images.shape, generator=generator, dtype=torch.float32) < amount
    salt = torch.rand(images.shape, generator=generator, dtype=torch.float32) < 0.5
    return torch.where(hit, salt.to(images.dtype), images)


# --- blur ----------------------------------------------------------------------------------------------------------


def _defocus_blur(images: Tensor, disc: tuple[float, float], _: Generator) -> Tensor:
    """Return images convolved with a softened disc; edges are mirrored."""
    height, width = images.shape[2:]
    kernel = defocus_kernel(*disc, min(height, width) / _REFERENCE).to(images.dtype)
    reach = len(kernel) // 2
    mode = "reflect" if reach < min(height, width) else "replicate"
    padded = F.pad(images, (reach,) * 4, mode=mode)
    return F.conv2d(padded.flatten(0, 1)[:, None], kernel[None, None]).view(images.shape)


def defocus_kernel(radius: float, softness: float, ratio: float) -> Tensor:
    """Return the kernel of defocus, odd, square, of sum 1: a disc convolved with a Gaussian cut at 1 reference pixel.

    `radius` of the disc and `softness` (standard deviation of the Gaussian) are in reference pixels; `ratio` is the
    size of this image over that of the reference image. The kernel is laid out on the lattice of the reference image
    (or of this image, if that is finer), which at ratio 1 is the published kernel. Its points are then shared
    bilinearly among the pixels of this image.
    """
    fineness = max(1.0, ratio)  # lattice points to a reference pixel
    steps = int(radius * fineness + 1e-9) + int(fineness + 1e-9)
    ticks = torch.arange(-steps, steps + 1, dtype=torch.float64) / fineness
    disc = (ticks[:, None] ** 2 + ticks**2 <= radius**2).double()
    apart = ticks[:, None] - ticks
    soften = torch.where(apart.abs() <= 1 + 1e-9, torch.exp(-0.5 * (apart / softness) ** 2), 0.0)
    reach = math.ceil(steps / fineness * ratio - 1e-9)
    pixels = torch.arange(-reach, reach + 1, dtype=torch.float64)
    share = (1 - (pixels[:, None] - ticks * ratio).abs()).clamp(min=0)
    spread = share @ soften
    kernel = spread @ disc @ spread.T
    return kernel / kernel.sum()


def _motion_blur(images: Tensor, streak: tuple[float, float], generator: Generator) -> Tensor:
    """Return means along a one-sided Gaussian streak, within 45 degrees of the horizontal; edges are continued."""
    radius, scale = streak
    height, width = images.shape[2:]
    ratio = min(height, width) / _REFERENCE
    angle = ((torch.rand(len(images), generator=generator, dtype=torch.float32) - 0.5) * (math.pi / 2)).to(images.dtype)
    step = 1 / max(1.0, ratio)
    # beyond 5 standard deviations a tap weighs less than 4e-6
    taps = torch.arange(0, min(2 * radius, 5 * scale) + 1e-9, step, dtype=images.dtype)
    weights = torch.softmax(-0.5 * (taps / scale) ** 2, dim=0)
    direction = torch.stack([angle.cos() / width, angle.sin() / height], dim=1)  # one pixel, in units of the size
    grid = _grid(torch.eye(2).expand(len(images), 2, 2), images)
    blurred = torch.zeros_like(images)
    for tap, weight in zip(taps, weights, strict=True):
        moved = grid + (2 * ratio * tap) * direction[:, None, None, :]
        blurred += weight * F.grid_sample(images, moved, padding_mode="border", align_corners=False)
    return blurred


# --- light ---------------------------------------------------------------------------------------------------------


def _contrast(images: Tensor, factor: float, _: Generator) -> Tensor:
    """Return (x - mean) * factor + mean, with the mean of each channel of each image."""
    mean = images.mean(dim=(2, 3), keepdim=True)
    return (images - mean) * factor + mean


def _brightness(images: Tensor, amount: float, _: Generator) -> Tensor:
    """Return pixels whose value (largest channel) is raised, hue and saturation kept: for grey, x + amount."""
    value = images.amax(dim=1, keepdim=True)
    brighter = (value + amount).clamp(max=1)
    return torch.where(value > 0, images * (brighter / value.clamp(min=torch.finfo(images.dtype).tiny)), brighter)


def _fog(images: Tensor, fog: tuple[float, float], generator: Generator) -> Tensor:
    """Return (x + amount * cloud) * m / (m + amount), with m the maximum of the image."""
    amount, decay = fog
    height, width = images.shape[2:]
    cloud = plasma(len(images), max(height, width), decay, generator=generator)[:, None, :height, :width].to(
        images.dtype
    )
    brightest = images.amax(dim=(1, 2, 3), keepdim=True)
    return (images + amount * cloud) * (brightest / (brightest + amount))


def plasma(count: int, size: int, decay: float, *, generator: Generator) -> Tensor:
    """Draw plasma fractals in [0, 1] with the diamond-square algorithm on a torus.

    Each halving of the step adds uniform noise whose amplitude shrinks by decay^2, as in the published fog. The shape
    is (count, side, side), with side the next power of two from `size`.
    """
    side = 1 << max(1, math.ceil(math.log2(size)))
    field = torch.zeros(count, side, side, dtype=torch.float32)
    step, amplitude = side, 1.0

    def noise(like: Tensor) -> Tensor:
        return (torch.rand(like.shape, generator=generator, dtype=torch.float32) * 2 - 1) * amplitude

    while step > 1:
        half = step // 2
        corners = field[:, ::step, ::step]
        rows = corners + corners.roll(-1, 1)  # sum of a corner and the one below it
        centres = (rows + rows.roll(-1, 2)) / 4
        field[:, half::step, half::step] = centres = centres + noise(centres)
        above = (corners + corners.roll(-1, 2) + centres + centres.roll(1, 1)) / 4
        field[:, ::step, half::step] = above + noise(above)
        beside = (rows + centres + centres.roll(1, 2)) / 4
        field[:, half::step, ::step] = beside + noise(beside)
        step, amplitude = half, amplitude / decay**2
    low, high = field.amin((1, 2), keepdim=True), field.amax((1, 2), keepdim=True)
    return (field - low) / (high - low)


# --- digital -------------------------------------------------------------------------------------------------------


def _pixelate(images: Tensor, share: float, _: Generator) -> Tensor:
    """Return images shrunk to a share of the pixels along each axis and enlarged again, both by the box filter."""
    vertical, horizontal = (_there_and_back(size, max(1, int(size * share))) for size in images.shape[2:])
    return torch.einsum("ij,ncjk,lk->ncil", vertical.to(images.dtype), images, horizontal.to(images.dtype))


def _there_and_back(size: int, blocks: int) -> Tensor:
    """Return the (size, size) matrix of resampling a line to `blocks` values and back."""
    return _box_filter(blocks, size) @ _box_filter(size, blocks)


def _box_filter(size_in: int, size_out: int) -> Tensor:
    """Return the (out, in) matrix of box resampling: the mean of the pixels whose centres lie under each output."""
    scale = size_in / size_out
    centres = (torch.arange(size_out, dtype=torch.float64) + 0.5) * scale
    offset = (torch.arange(size_in, dtype=torch.float64) - centres[:, None] + 0.5) / max(scale, 1.0)
    weights = ((offset > -0.5) & (offset <= 0.5)).double()
    return weights / weights.sum(1, keepdim=True)


def _jpeg(images: Tensor, quality: int, _: Generator) -> Tensor:
    """Return images after a round trip through JPEG, in colour or in grey; other channel counts one by one."""
    import numpy as np
    from PIL import Image

    mode = "RGB" if images.shape[1] == 3 else "L"
    pictures = images if mode == "RGB" else images.flatten(0, 1)[:, None]
    coded = (pictures * 255).round().to(torch.uint8).permute(0, 2, 3, 1).squeeze(-1 if mode == "L" else 0).numpy()
    decoded = np.empty_like(coded)
    for i, pixels in enumerate(coded):
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=quality)
        decoded[i] = np.asarray(Image.open(buffer))
    restored = torch.from_numpy(decoded).to(images.dtype).div_(255)
    return (restored.permute(0, 3, 1, 2) if mode == "RGB" else restored).reshape(images.shape)


# --- geometry ------------------------------------------------------------------------------------------------------


def _rotation(images: Tensor, degrees: float, generator: Generator) -> Tensor:
    """Return images turned by `degrees` to a random side."""
    side = torch.randint(2, (len(images),), generator=generator) * 2.0 - 1
    return rotate(images, side * degrees)


def rotate(images: Tensor, degrees_B: Tensor) -> Tensor:
    """Turn images (B, C, H, W) anticlockwise about their centre, bilinearly, black outside."""
    angle = torch.deg2rad(degrees_B.to(images.dtype))
    height, width = images.shape[2:]
    cos, sin = angle.cos(), angle.sin()
    # map from an output place to its source place, in units of half the width and half the height
    rows = [torch.stack([cos, -sin * height / width], 1), torch.stack([sin * width / height, cos], 1)]
    grid = _grid(torch.stack(rows, 1), images)
    return F.grid_sample(images, grid, align_corners=False)


def _translation(images: Tensor, share: float, generator: Generator) -> Tensor:
    """Return images shifted by a share of their size in a random direction."""
    angle = torch.rand(len(images), generator=generator, dtype=torch.float32).to(images.dtype) * (2 * math.pi)
    distance = share * min(images.shape[2:])
    return translate(images, distance * angle.cos(), distance * angle.sin())


def translate(images: Tensor, right_B: Tensor, down_B: Tensor) -> Tensor:
    """Shift images (B, C, H, W) by pixels, bilinearly, black outside."""
    height, width = images.shape[2:]
    shift = torch.stack([right_B * 2 / width, down_B * 2 / height], dim=1)
    grid = _grid(torch.eye(2).expand(len(images), 2, 2), images) - shift[:, None, None, :]
    return F.grid_sample(images, grid, align_corners=False)


def _grid(matrix: Tensor, images: Tensor) -> Tensor:
    """Return the sampling grid (B, H, W, 2) of linear maps (B, 2, 2) about the centre."""
    theta = F.pad(matrix.to(images.dtype), (0, 1))
    return F.affine_grid(theta, list(images.shape), align_corners=False)


_TABLE: dict[str, tuple[Callable[[Tensor, Any, Generator], Tensor], tuple[Any, ...]]] = {
    "gaussian_noise": (_gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot_noise": (_shot_noise, (500, 250, 100, 75, 50)),
    "impulse_noise": (_impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "defocus_blur": (_defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "motion_blur": (_motion_blur, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
    "contrast": (_contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "brightness": (_brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "fog": (_fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    "pixelate": (_pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
    "jpeg": (_jpeg, (80, 65, 58, 50, 40)),
    "rotation": (_rotation, (15, 30, 45, 60, 75)),
    "translation": (_translation, (0.05, 0.1, 0.15, 0.2, 0.25)),
}
CORRUPTIONS: tuple[str, ...] = tuple(_TABLE)
