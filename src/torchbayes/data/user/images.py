"""Folders of images: FOLDER/CLASS/image.png, or FOLDER/train/CLASS/... and FOLDER/test/CLASS/...; and new images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from torchbayes.data.base import Data
from torchbayes.data.user.pictures import (
    SUFFIXES,
    Look,
    folders_in,
    images_in,
    is_image,
    load,
    look,
    of_file,
    pixels,
    resized,
    shape_of,
)
from torchbayes.data.user.rows import Encoded, Encoder, Form, Rows, assemble, shortened
from torchbayes.data.user.saved import (
    TARGETS,
    Parts,
    chosen,
    columns_of,
    is_saved,
    kind_of,
    labels_of,
    new_rows_of,
    of_images,
)


def read_folder(
    path: Path,
    *,
    size: int | Sequence[int] | None = None,
    grey: bool | None = None,
    split: int = 0,
    train_size: int | None = None,
) -> Data:
    """Return a folder of images as a data set.

    `path` holds a folder for each class; or folders train and test, or the like, that have these. `size` is the height
    and width, or one number for both, to which images are scaled after their longer side is cut to that shape; if None
    that of the images where they have one, else 32. If `grey` is None, images have one channel where all of them are
    grey. `split` numbers the draw of the test rows, where none are given; `train_size` keeps that many training rows,
    drawn at random.
    """
    names, of_parts = parts_in(path) or Parts((".",), ())
    files = [by_class(path / name) for name in names]
    looks = Counter(of_file(file, look) for classes in files for group in classes.values() for file in group)
    shape, notes = shape_of(looks, size=size, grey=grey)
    parts = []
    for classes in files:
        listed = [file for group in classes.values() for file in group]
        labels = np.repeat(list(classes), [len(group) for group in classes.values()])
        parts.append(Rows(load(listed, shape)[0], labels))

    def read(new: Path) -> Rows:
        return read_images(new, shape, data)

    form = Form(path.name, f"{path.name}, a folder of images", read, partial(_fit, (*notes, *of_parts)))
    data = assemble(form, parts, split=split, train_size=train_size)
    return data


def _fit(notes: tuple[str, ...], _: np.ndarray) -> tuple[Encoder, tuple[str, ...]]:
    return Encoded, notes


def parts_in(folder: Path) -> Parts | None:
    """Return the folders for training and testing within a folder, with sentences; None where its folders are classes.

    A folder that itself holds images is a class, whatever its name. Raises ValueError if names do not tell parts from
    classes, or there is no part for training.
    """
    inner = [child for child in folders_in(folder) if images_in(child)]
    named = [child for child in inner if kind_of(child.name)]
    flat = [child.name for child in named if any(map(is_image, child.iterdir()))]
    parts, others = (
        [child.name for child in named if child.name not in flat],
        [e.name for e in inner if e not in named],
    )
    trains = any(kind_of(name) == "train" for name in parts)
    if (trains and flat) or (len(flat) > 1 and not others):
        raise ValueError(
            f"{', '.join(flat)} of {folder} must hold a folder of images for each class, as parts of a data set do; "
            f"images lie there by themselves. Sort them into such folders or, if these are classes, rename them."
        )
    if not parts or (not trains and (flat or others)):
        return None
    if len(parts) == 1 and trains and others:
        raise ValueError(
            f"{folder} holds the part {parts[0]}, which has folders within it, beside {shortened(others)}. Move either "
            f"elsewhere or, if {parts[0]} is a class, rename it."
        )
    return chosen(str(folder), [*parts, *others])


def by_class(folder: Path) -> dict[str, list[Path]]:
    """Return the images in each folder of a folder. Raises ValueError for fewer than two with images."""
    images = {inner.name: images_in(inner) for inner in folders_in(folder)}
    images = {name: files for name, files in images.items() if files}
    if len(images) < 2:
        raise ValueError(
            f"{folder} must hold a folder of images for each class, such as {folder.name}/cat and {folder.name}/dog; "
            f"folders with images: {', '.join(images) or 'none'}. Images have names that end in "
            f"{shortened(SUFFIXES)}."
        )
    return images


def read_images(path: Path, shape: tuple[int, int, int], data: Data, *, target: str | None = None) -> Rows:
    """Return new images, with targets where every image has one of the data set.

    `path` is an image, a folder of images, one with a folder for each class, or a Hugging Face data set, in which
    `target` names the column of targets (label or target if None). `shape` is (channels, height, width).
    """
    if is_saved(path):
        return _saved_images(path, shape, data, target)
    files = [path]
    if path.is_dir():
        files = images_in(path)
        if not files:
            raise ValueError(f"{path} holds no images. Images have names that end in {shortened(SUFFIXES)}.")
        _check_one_part(path, data)
    elif not is_image(path) and not _opens(path):
        raise ValueError(
            f"new rows of {data.name} are images: a file, a folder of such, or a Hugging Face data set with a column "
            f"of images; got {path.name}. Images have names that end in {shortened(SUFFIXES)}."
        )
    inner = [file.relative_to(path).parts if path.is_dir() else (file.name,) for file in files]
    labels = np.array([parts[0] for parts in inner]) if all(len(parts) > 1 for parts in inner) else None
    targets, notes = _known(labels, data, "the folder")
    values, looks = load(files, shape)
    return Rows(values, targets, [str(Path(*parts)) for parts in inner], (*resized(looks, shape), *notes))


def _opens(path: Path) -> bool:
    """Return whether a file is an image whatever its name."""
    try:
        of_file(path, look)
    except ValueError:
        return False
    return True


def _check_one_part(path: Path, data: Data) -> None:
    """Raise ValueError if a folder of new images is a whole data set with parts."""
    names = [child.name for child in folders_in(path) if kind_of(child.name) and images_in(child)]
    if any(child not in data.classes and not any(map(is_image, (path / child).iterdir())) for child in names):
        example = next((name for name in names if kind_of(name) == "test"), names[0])
        raise ValueError(
            f"{path} has the parts {', '.join(names)}, and new images are one of them. Name it: {path / example}."
        )


def _known(labels: np.ndarray | None, data: Data, source: str) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Return targets if all are classes of the data set, else None and a sentence on it."""
    if labels is None:
        return None, ()
    if data.task == "classification":
        wrong = next((label for label in map(str, labels.tolist()) if label not in data.classes), None)
        if wrong is not None:
            return None, (f"No targets: {source} {wrong!r} is no class of {data.name} ({shortened(data.classes)}).",)
    elif source == "the folder":
        return None, ()
    return labels, ()


def _saved_images(path: Path, shape: tuple[int, int, int], data: Data, target: str | None) -> Rows:
    """Return new images of a Hugging Face data set. Raises ValueError if no column holds images."""
    saved = new_rows_of(path)
    columns = columns_of(saved, {"Image"})
    if not columns:
        raise ValueError(
            f"new rows of {data.name} are images, and no column of {path.name} holds any: it has "
            f"{shortened(saved.column_names)}. Give one with a column of the kind Image."
        )
    looked_at = [*of_images(path, saved[columns[0]], lambda image: (look(image), pixels(image, shape)))]
    column = target or next((name for name in TARGETS if name in saved.column_names), None)
    labels = None
    if column is not None and column in saved.column_names:
        values_found, rows = labels_of(path, saved, column)
        labels = values_found if len(rows) == len(saved) else None
    targets, notes = _known(labels, data, "the label")
    looks: Counter[Look] = Counter(image_look for image_look, _ in looked_at)
    return Rows(np.stack([values for _, values in looked_at]), targets, None, (*resized(looks, shape), *notes))
