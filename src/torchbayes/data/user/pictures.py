"""Images as arrays: their look (size, colour), the shape they get, and their pixels."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from torchbayes.checks import check_memory, is_whole, seen

if TYPE_CHECKING:
    from PIL import Image

_T = TypeVar("_T")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
_MANY = 50_000  # entries of a folder that are examined before the share of images counts
_SHARE = 0.1  # least share of images beyond that
_DEEP = {"I", "I;16", "I;16B", "F"}  # modes of more than 8 bits
SIZE = 32  # height and width of images that come in several sizes
_ORIENTATION = 0x0112  # tag of EXIF
Look = tuple[int, int, bool]  # height, width, and whether an image is without colour


def is_image(path: Path) -> bool:
    """Return whether a path has the name of an image and is not hidden."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def images_in(folder: Path) -> list[Path]:
    """Return the images in a folder and in those within it, sorted; hidden ones are skipped."""
    return [file for file in sorted(files_in(folder)) if is_image(file)]


def files_in(folder: Path) -> list[Path]:
    """Return the files in a folder and in those within it; hidden ones are skipped.

    Links to folders are followed only in the folder itself, as they may be its classes, and never to a place that the
    folder lies in. Raises ValueError if there are very many files, and hardly one is an image.
    """
    files, images, entries, waiting = [], 0, 0, [folder]
    while waiting:
        directory = waiting.pop()
        inner = folders_in(folder) if directory == folder else None
        with os.scandir(directory) as listing:
            for entry in listing:
                entries += 1
                path = directory / entry.name
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False) if inner is None else path in inner:
                    waiting.append(path)
                elif entry.is_file():
                    files.append(path)
                    images += is_image(path)
                if entries > _MANY and images < entries * _SHARE:
                    raise ValueError(
                        f"{folder} has more than {_MANY:,} files, and {images:,} of those seen so far are images. Name "
                        f"the folder that holds the images."
                    )
    return files


def folders_in(folder: Path) -> list[Path]:
    """Return the folders in a folder, sorted, without hidden ones and links to a place that the folder lies in."""
    resolved = folder.resolve()
    inner = [child for child in sorted(folder.iterdir()) if not child.name.startswith(".") and child.is_dir()]
    return [child for child in inner if not child.is_symlink() or not resolved.is_relative_to(child.resolve())]


def shape_of(
    looks: Counter[Look], *, size: int | Sequence[int] | None, grey: bool | None
) -> tuple[tuple[int, int, int], tuple[str, ...]]:
    """Return the shape (channels, height, width) that all images get, and sentences on it.

    `looks` counts the images of each look. `size` is height and width, or one number for both; if None, that of the
    images where they have one, else 32. If `grey` is None, images have one channel where none has colour. Raises
    ValueError for a wrong setting, or if the images do not fit in memory.
    """
    sides: Any = [size, size] if is_whole(size) else size
    if sides is not None and not (isinstance(sides, list | tuple) and len(sides) == 2 and all(map(_is_side, sides))):
        raise ValueError(f"`size` must be height and width in pixels, or one number for both; got {seen(size)}.")
    if grey not in {None, True, False}:
        raise ValueError(f"`grey` must be true or false; got {seen(grey)}.")
    sizes = {shape[:2] for shape in looks}
    if sides is not None:
        height, width = (int(side) for side in sides)
    else:
        height, width = next(iter(sizes)) if len(sizes) == 1 else (SIZE, SIZE)
    without_colour = all(colourless for *_, colourless in looks) if grey is None else grey
    shape, images = (1 if without_colour else 3, height, width), looks.total()
    check_memory(5 * images * int(np.prod(shape)), "the images", images=images)
    colour = "grey" if without_colour else "in colour"
    notes = [f"Inputs: images of {height} x {width}, {colour}, standardised by channel."]
    notes += [f"{note[:-1]} (--data_settings.size 64 or [48, 64] says another)." for note in resized(looks, shape)]
    return shape, tuple(notes)


def resized(looks: Counter[Look], shape: Sequence[int]) -> tuple[str, ...]:
    """Return a sentence on images that are scaled to `shape` (channels, height, width); empty if there are none."""
    height, width = shape[1:]
    changed = sum(count for look, count in looks.items() if look[:2] != (height, width))
    if not changed:
        return ()
    return (
        f"{changed:,} of {looks.total():,} images are of another size than {height} x {width}: cut to that shape "
        f"around their middle and scaled.",
    )


def _is_side(value: Any) -> bool:
    return is_whole(value) and int(value) > 0


def look(image: Image.Image) -> Look:
    """Return height, width, and whether an image is without colour; upright, as its camera says."""
    # Pillow itself turns TIFF, including its height and width
    turned = image.format != "TIFF" and _orientation(image) in {5, 6, 7, 8}
    width, height = reversed(image.size) if turned else image.size
    return height, width, image.mode in {"L", "1", "LA", *_DEEP}


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 (upright) where there is none."""
    try:
        return image.getexif().get(_ORIENTATION, 1)
    except Exception:  # Pillow raises anything for a damaged header; damaged pixels are found later
        return 1


def of_file(file: Path, of: Callable[[Image.Image], _T]) -> _T:
    """Apply `of`, which may read the pixels, to the image in a file. Raises ValueError for no whole image."""
    from PIL import Image

    try:
        with Image.open(file) as image:
            return of(image)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{file} cannot be read as an image ({said(error)}). Remove or replace it.") from error


def pixels(image: Image.Image, shape: tuple[int, int, int]) -> np.ndarray:
    """Return an image as uint8 (channels, height, width): turned upright, cut around its middle and scaled."""
    from PIL import Image, ImageOps

    channels, height, width = shape
    if image.mode in _DEEP:
        raise ValueError(
            "it has more than 8 bits a pixel, and does not say which value is white; convert it to 8 bits, or write a "
            "function that gives arrays: --data my_module:load"
        )
    image.load()  # some formats tell their orientation only after loading
    image = ImageOps.exif_transpose(image)
    if "A" in image.getbands() or "transparency" in image.info:  # transparent pixels become white
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    return np.asarray(image, dtype=np.uint8).reshape(height, width, channels).transpose(2, 0, 1)


def load(files: Sequence[Path], shape: tuple[int, int, int]) -> tuple[np.ndarray, Counter[Look]]:
    """Return the pixels of images, uint8 (N, channels, height, width), and how many had each look."""
    values, looks = np.empty((len(files), *shape), dtype=np.uint8), Counter[Look]()
    for i, file in enumerate(files):
        image_look, values[i] = of_file(file, lambda image: (look(image), pixels(image, shape)))
        looks[image_look] += 1
    return values, looks


def said(error: BaseException) -> str:
    """Return the message of an error as part of a sentence."""
    return " ".join(str(error).split()).rstrip(".")
