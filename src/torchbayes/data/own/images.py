"""Folders of images: FOLDER/CLASS/image.png, or FOLDER/train/CLASS/... and FOLDER/test/CLASS/..."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from torchbayes.checks import check_memory, is_whole, seen
from torchbayes.data.base import Data
from torchbayes.data.own.rows import Encoded, Encoder, Form, Rows, assemble, shortened

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
SIZE = 32  # height and width of images that come in several sizes


def read_folder(
    path: Path,
    *,
    size: int | Sequence[int] | None = None,
    grey: bool | None = None,
    split: int = 0,
    train_size: int | None = None,
) -> Data:
    """Return a folder of images as a data set.

    Args:
        path: of a folder with a folder for each class; or with folders train and test that have these.
        size: height and width, or one number for both, to which images are scaled after their longer side is cut to
            the same shape; if None that of the images where they have one, else 32.
        grey: whether images have one channel; if None, where all of them have.
        split: which draw of the test rows, where none are given.
        train_size: keep this many training rows, drawn at random; all by default.

    Returns:
        The data set.

    Raises:
        ValueError: if there are no such folders, or a file is no image.
    """
    folders = [path / word for word in ("train", "test")]
    folders = folders if all(folder.is_dir() for folder in folders) else [path]
    files = [by_class(folder) for folder in folders]
    every = [file for found in files for group in found.values() for file in group]
    shape, notes = _shape(path, every, size, grey)
    parts = []
    for folder, found in zip(folders, files, strict=True):
        listed = [file for group in found.values() for file in group]
        labels = np.repeat(list(found), [len(group) for group in found.values()])
        parts.append(Rows(load(listed, shape), labels, [str(file.relative_to(folder)) for file in listed]))
    form = Form(path.name, f"{path.name}, a folder of images", partial(read_images, shape=shape), partial(_fit, notes))
    return assemble(form, parts, split=split, train_size=train_size)


def _fit(notes: tuple[str, ...], _: np.ndarray) -> tuple[Encoder, tuple[str, ...]]:
    return Encoded, notes


def by_class(folder: Path) -> dict[str, list[Path]]:
    """Return the images in each folder of a folder.

    Raises:
        ValueError: if there are not at least two folders with images.
    """
    found = {
        inner.name: [file for file in sorted(inner.rglob("*")) if is_image(file)]
        for inner in sorted(folder.iterdir())
        if inner.is_dir() and not inner.name.startswith(".")
    }
    found = {name: files for name, files in found.items() if files}
    if len(found) < 2:
        raise ValueError(
            f"{folder} must hold a folder of images for each class, such as {folder.name}/cat and {folder.name}/dog; "
            f"folders with images: {', '.join(found) or 'none'}. Images have names that end in "
            f"{shortened(SUFFIXES)}."
        )
    return found


def is_image(path: Path) -> bool:
    """Return whether a path has the name of an image."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def _shape(
    path: Path, files: Sequence[Path], size: int | Sequence[int] | None, grey: bool | None
) -> tuple[tuple[int, int, int], tuple[str, ...]]:
    """Return channels, height and width that all images get, and sentences on it.

    Raises:
        ValueError: if the settings are no size, or a file is no image.
    """
    sides = [size, size] if is_whole(size) else size
    if sides is not None and not (isinstance(sides, list | tuple) and len(sides) == 2 and all(map(_is_side, sides))):
        raise ValueError(f"`size` must be height and width in pixels, or one number for both; got {seen(size)}.")
    if grey not in {None, True, False}:
        raise ValueError(f"`grey` must be true or false; got {seen(grey)}.")
    found = Counter(_look(file) for file in files)
    sizes = Counter()
    for (height, width, _), count in found.items():
        sizes[height, width] += count
    without_colour = all(mode for *_, mode in found) if grey is None else grey
    if sides is not None:
        height, width = (int(side) for side in sides)  # type: ignore[arg-type]
    else:
        height, width = next(iter(sizes)) if len(sizes) == 1 else (SIZE, SIZE)
    changed = sum(count for shape, count in sizes.items() if shape != (height, width))
    shape = (1 if without_colour else 3, height, width)
    notes = [
        f"Inputs: images of {height} x {width}, {'grey' if without_colour else 'in colour'}, standardised by channel."
    ]
    if changed:
        notes.append(
            f"{changed:,} of {len(files):,} images are of another size: cut to that shape around their middle and "
            f"scaled (--data_settings.size 64 or [48, 64] says another)."
        )
    check_memory(5 * len(files) * int(np.prod(shape)), "the images", images=len(files))
    return shape, tuple(notes)


def _is_side(value: object) -> bool:
    return is_whole(value) and int(value) > 0  # type: ignore[call-overload]


def _look(path: Path) -> tuple[int, int, bool]:
    with _opened(path) as image:
        return image.height, image.width, image.mode in {"L", "1", "LA", "I", "I;16", "F"}


def _opened(path: Path) -> Image.Image:
    """Return an image whose pixels are not read yet.

    Raises:
        ValueError: if it is no image.
    """
    from PIL import Image

    try:
        return Image.open(path)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} is not a whole image ({_said(error)}). Remove or replace it.") from error


def pixels(image: Image.Image, shape: tuple[int, int, int]) -> np.ndarray:
    """Return an image as bytes, cut around its middle and scaled.

    Args:
        image: any.
        shape: channels, height and width.

    Returns:
        uint8 (channels, height, width).
    """
    from PIL import Image, ImageOps

    channels, height, width = shape
    if image.mode in {"I", "I;16", "F"}:  # 16 bits or more: the range of the image becomes 0 to 255
        deep = np.asarray(image, dtype=np.float64)
        image = Image.fromarray((255 * (deep - deep.min()) / max(np.ptp(deep), 1e-12)).round().astype(np.uint8))
    if "A" in image.getbands() or "transparency" in image.info:  # what is transparent is white
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    return np.asarray(image, dtype=np.uint8).reshape(height, width, channels).transpose(2, 0, 1)


def load(files: Sequence[Path], shape: tuple[int, int, int]) -> np.ndarray:
    """Return the pixels of images.

    Args:
        files: of the images.
        shape: channels, height and width.

    Returns:
        uint8 (N, channels, height, width).

    Raises:
        ValueError: if a file is no whole image.
    """
    found = np.empty((len(files), *shape), dtype=np.uint8)
    for i, file in enumerate(files):
        with _opened(file) as image:
            try:
                found[i] = pixels(image, shape)
            except (OSError, ValueError, SyntaxError) as error:
                raise ValueError(f"{file} is not a whole image ({_said(error)}). Remove or replace it.") from error
    return found


def read_images(path: Path, shape: tuple[int, int, int]) -> Rows:
    """Return new images.

    Args:
        path: of an image, of a folder of images, or of one with a folder for each class.
        shape: channels, height and width.

    Returns:
        The rows, with targets where there are folders for classes.

    Raises:
        ValueError: if there are no images.
    """
    if path.is_file():
        return Rows(load([path], shape), None, [path.name])
    files = [file for file in sorted(path.rglob("*")) if is_image(file)]
    if not files:
        raise ValueError(f"{path} holds no images. Images have names that end in {shortened(SUFFIXES)}.")
    names = [str(file.relative_to(path)) for file in files]
    inner = [file.relative_to(path).parts for file in files]
    labels = np.array([parts[0] for parts in inner]) if all(len(parts) > 1 for parts in inner) else None
    return Rows(load(files, shape), labels, names)


def _said(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".")
