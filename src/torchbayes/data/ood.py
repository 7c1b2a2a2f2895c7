"""Out-of-distribution images for a data set: another set's test images, drawn letters, or patches of photographs."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from torchbayes.checks import as_seed, check_counts, check_kind, check_name, optional
from torchbayes.data.base import Data, unit_images
from torchbayes.data.files import data_root
from torchbayes.data.images import IMAGE_SETS, STRANGERS
from torchbayes.native.process import undisturbed
from torchbayes.randomness.seeds import Purpose, generator

_MADE_ROWS = 1000  # rows of the sets made here, unless `limit` says otherwise
_SUPERSAMPLE = 4  # letters are drawn this much larger and averaged down
_NEEDS_NO_FILE = ("letters", "patches")
_DEFAULTS = {
    "mnist": ("fashion_mnist", "kmnist", "notmnist"),
    "fashion_mnist": ("mnist", "kmnist", "notmnist"),
    "kmnist": ("mnist", "fashion_mnist", "notmnist"),
    "cifar10": ("cifar100_ood",),
}


def ood_names() -> dict[str, str]:
    """Return every name that `out_of_distribution` knows, with one line on what it is."""
    return {
        "letters": "letters A-J in the DejaVu fonts, turned and shifted, no file",
        "patches": "patches of two photographs, no file",
        **{name: f"test images of {entry.source}" for name, entry in IMAGE_SETS.items()},
        "notmnist": "letters A-J of many fonts, 10,000 (Bulatov 2011)",
        "cifar100_ood": "25 test images of each class of CIFAR-100 (Krizhevsky 2009)",
    }


@undisturbed
def out_of_distribution(
    data: Data,
    name: str | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Return images of something else, in the form of `data.test.inputs`: same size, channels and standardisation.

    Without `name`, these are other sets of the same kind that are found, or letters and patches if there are none. The
    images are resized with antialiasing; colour becomes grey by luma, grey is repeated over channels. For data loaded
    with some `classes` of a set, that set's name gives the test images of the other classes.

    Args:
        data: The data set whose model is tested; must be images.
        name: One of `ood_names()`, or None for the defaults.
        root: Local data folder, as in `load`.
        limit: Keep at most this many rows per set, drawn at random; also how many letters or patches are made (1,000
            by default).
        seed: Seed of all draws.

    Returns:
        Standardised inputs by name, each (N, C, H, W).

    Raises:
        ValueError: `data` has no images, the name is unknown or that of the data, or `limit` is not positive.
    """
    check_kind(Data, "a data set, as `load` gives it", data=data)
    if not data.is_image:
        raise ValueError(f"Out-of-distribution sets are images; `{data.name}` has rows of shape {data.input_shape}.")
    optional(check_counts, limit=limit)
    seed = as_seed(seed)
    if name is not None:
        check_name("out-of-distribution set", name, ood_names())
    if name == data.name and not _left_out(data):
        raise ValueError(f"`{name}` is the data set itself. Choose another of: {', '.join(ood_names())}.")
    wanted = (name,) if name is not None else _DEFAULTS.get(data.name, _NEEDS_NO_FILE)
    folder = data_root(root) if root is not None or not set(wanted) <= set(_NEEDS_NO_FILE) else None
    if name is not None:
        return {name: _make(data, name, folder, limit, seed)}
    images: dict[str, Tensor] = {}
    for default in wanted:
        try:
            images[default] = _make(data, default, folder, limit, seed)
        except FileNotFoundError:
            continue
    return images or {made: _make(data, made, folder, limit, seed) for made in _NEEDS_NO_FILE}


def _make(data: Data, name: str, root: Path | None, limit: int | None, seed: int) -> Tensor:
    """Return one set, read or drawn, in the form of `data`."""
    source = generator(Purpose.FOREIGN, seed)
    channels, height, width = data.input_shape
    if name == "letters":
        images = letters(limit or _MADE_ROWS, max(height, width), source)
    elif name == "patches":
        images = patches(limit or _MADE_ROWS, (height, width), source)
    else:
        pixels, labels = IMAGE_SETS[name].read("test", root) if name in IMAGE_SETS else STRANGERS[name]("test", root)
        if name == data.name:
            pixels = pixels[np.isin(labels, _left_out(data))]
        if limit is not None:
            pixels = pixels[torch.randperm(len(pixels), generator=source)[:limit].numpy()]
        images = unit_images(pixels, 255)
    return data.standardise(conform(images, channels, (height, width)))


def _left_out(data: Data) -> list[int]:
    """Return the labels of the classes that were not loaded."""
    classes = IMAGE_SETS[data.name].classes if data.name in IMAGE_SETS else ()
    partial = set(data.classes) < set(classes)
    return [label for label, each in enumerate(classes) if partial and each not in data.classes]


def conform(images: Tensor, channels: int, size: tuple[int, int]) -> Tensor:
    """Convert images (N, C, H, W) in [0, 1] to another number of channels and another (height, width)."""
    if images.shape[1] == 3 and channels != 3:
        luma = torch.tensor([0.299, 0.587, 0.114], dtype=images.dtype)  # ITU-R BT.601
        images = torch.einsum("nchw,c->nhw", images, luma)[:, None]
    if images.shape[1] != channels:
        images = images.mean(1, keepdim=True).expand(-1, channels, -1, -1)
    if tuple(images.shape[2:]) != size:
        images = F.interpolate(images, size, mode="bilinear", antialias=True, align_corners=False)
    return images.clamp(0, 1)


def letters(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Draw letters A-J, white on black, shape (count, 1, size, size) in [0, 1].

    Each has a random font of the DejaVu family, is turned by up to 15 degrees, scaled and shifted.
    """
    glyphs = _glyphs(size * _SUPERSAMPLE)
    which = torch.randint(len(glyphs), (count,), generator=generator)
    angle, zoom, right, down = torch.rand(4, count, generator=generator, dtype=torch.float32)
    angle = torch.deg2rad(30 * angle - 15)
    zoom = 0.9 + 0.25 * zoom  # how many times smaller than the glyph as drawn
    theta = torch.empty(count, 2, 3, dtype=torch.float32)
    theta[:, 0, 0] = theta[:, 1, 1] = zoom * angle.cos()
    theta[:, 0, 1], theta[:, 1, 0] = -zoom * angle.sin(), zoom * angle.sin()
    theta[:, 0, 2], theta[:, 1, 2] = 0.2 * right - 0.1, 0.2 * down - 0.1  # of half the size
    small = torch.empty(count, 1, size, size, dtype=torch.float32)
    for rows in torch.arange(count).split(512):  # the enlarged images of a few rows at a time
        drawn = glyphs[which[rows]]
        grid = F.affine_grid(theta[rows], list(drawn.shape), align_corners=False)
        drawn = F.grid_sample(drawn, grid, align_corners=False)
        small[rows] = F.avg_pool2d(drawn, _SUPERSAMPLE)
    return small


def _glyphs(size: int) -> Tensor:
    """Return each letter in each font, centred, its larger side 0.8 of the size; shape (count, 1, size, size)."""
    from matplotlib import get_data_path
    from PIL import Image, ImageDraw, ImageFont

    fonts = sorted(
        path for path in Path(get_data_path(), "fonts", "ttf").glob("DejaVu*.ttf") if "Display" not in path.name
    )
    drawn = []
    for path in fonts:
        for letter in "ABCDEFGHIJ":
            probe = ImageFont.truetype(str(path), 100).getbbox(letter)
            larger = max(probe[2] - probe[0], probe[3] - probe[1])
            font = ImageFont.truetype(str(path), 100 * 0.8 * size / larger)
            left, top, right, bottom = font.getbbox(letter)
            canvas = Image.new("L", (size, size))
            corner = ((size - left - right) / 2, (size - top - bottom) / 2)
            ImageDraw.Draw(canvas).text(corner, letter, fill=255, font=font)
            drawn.append(np.asarray(canvas))
    return unit_images(np.stack(drawn)[:, None], 255)


def patches(count: int, size: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Cut patches at random places of scikit-learn's two photographs: (count, 3, height, width) in [0, 1].

    Photographs (427 x 640) that are smaller than `size`, (height, width), are enlarged first.
    """
    from sklearn.datasets import load_sample_images

    photographs = unit_images(np.stack(load_sample_images().images).transpose(0, 3, 1, 2), 255)
    height, width = (max(have, want) for have, want in zip(photographs.shape[2:], size, strict=True))
    photographs = conform(photographs, 3, (height, width))
    photo = torch.randint(len(photographs), (count,), generator=generator)
    top = torch.randint(height - size[0] + 1, (count,), generator=generator)
    left = torch.randint(width - size[1] + 1, (count,), generator=generator)
    rows = (top[:, None] + torch.arange(size[0]))[:, :, None]
    columns = (left[:, None] + torch.arange(size[1]))[:, None, :]
    return photographs[photo[:, None, None], :, rows, columns].permute(0, 3, 1, 2).contiguous()
