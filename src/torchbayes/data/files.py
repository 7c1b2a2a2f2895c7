"""Where files come from, and whether they hold what their set should; messages name the file.

A file is taken from a local folder, otherwise from the official address, and checked by its published checksum.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from torchbayes.checks import as_file, check_kind, free_memory, size_of
from torchbayes.native.process import full_path

ENVIRONMENT = "TORCHBAYES_DATA"


@dataclass(frozen=True)
class Remote:
    """One official file."""

    folder: str  # under the data root
    file: str
    urls: tuple[str, ...]  # tried in order
    checksum: str  # published, as `algorithm:hex`


def data_root(root: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the local data folder: the argument, else the environment variable TORCHBAYES_DATA, else None.

    Raises FileNotFoundError for a folder that does not exist.
    """
    named = root if root is not None else os.environ.get(ENVIRONMENT) or None
    if named is None:
        return None
    check_kind((str, os.PathLike), "a path", root=named)
    folder = full_path(named)
    if not folder.is_dir():
        origin = "`root`" if root is not None else f"the environment variable {ENVIRONMENT}"
        raise FileNotFoundError(f"{origin} must name an existing folder; got {folder}. Correct it or leave it out.")
    return folder


def local_file(folder: str, file: str, root: Path | None) -> Path | None:
    """Return root/folder/file if it exists, else None."""
    path = None if root is None else root / folder / file
    return path if path is not None and path.is_file() else None


def require_local(name: str, folder: str, file: str, *, root: Path | None, hint: str) -> Path:
    """Return root/folder/file, which cannot be downloaded.

    `hint` is a sentence on what the file must hold, or what to use instead. Raises FileNotFoundError if it is absent.
    """
    path = local_file(folder, file, root)
    if path is None:
        raise FileNotFoundError(
            f"`{name}` was not found: {_looked_in(folder, file, root)}. It is not downloaded, because no trustworthy "
            f"checksum of it is published. {hint} Name the folder that holds {folder}/{file} with `root` or "
            f"{ENVIRONMENT}."
        )
    return path


def obtain(name: str, remote: Remote, root: Path | None) -> Path:
    """Return a file from the local folder, else from the download cache, else download it there.

    A download is written to a temporary name, checked, and only then renamed; a failed one leaves nothing behind.
    Raises FileNotFoundError if neither folder nor network has it, ValueError if the checksum differs.
    """
    path = local_file(remote.folder, remote.file, root)
    if path is not None:
        return path
    import pooch

    cache = Path(pooch.os_cache("torchbayes")) / remote.folder
    failures: list[str] = []
    mismatch = False
    for url in remote.urls:
        try:
            fetched = pooch.retrieve(url, known_hash=remote.checksum, fname=remote.file, path=cache)
            return Path(str(fetched))
        except OSError as error:  # no network, or an answer such as 404
            failures.append(f"{url}: {type(error).__name__}")
        except ValueError as error:  # pooch: the checksum differs; it has removed its temporary file
            mismatch = True
            failures.append(f"{url}: {error}")
    tried = "; ".join(failures)
    advice = f"Put the official file at {remote.folder}/{remote.file} under the folder named by `root` or {ENVIRONMENT}"
    if mismatch:
        raise ValueError(
            f"The download of `{name}` does not have the published checksum {remote.checksum} and was thrown away "
            f"({tried}). Try again later. {advice}, if you have it."
        )
    raise FileNotFoundError(
        f"`{name}` was not found: {_looked_in(remote.folder, remote.file, root)}, and the download to {cache} failed "
        f"({tried}). {advice}, or try again with a network connection."
    )


def _looked_in(folder: str, file: str, root: Path | None) -> str:
    """Return where a file was looked for, in words."""
    if root is None:
        return f"no local folder is named (`root` is None, {ENVIRONMENT} is not set)"
    return f"no file {root / folder / file}"


# what Python and numpy raise for an archive that is cut short, overwritten, or of another kind
_BROKEN = (
    zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, struct.error, pickle.UnpicklingError, EOFError,
    OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError,
)  # fmt: skip


_ROOM = 2.0  # free memory that an archive must leave: arrays are copied as they are read
_PACKED = 1 << 28  # bytes up to which anything may be unpacked
_DENSE = 100  # times its size in the file that data may take: text and images take 2 to 20 times
_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


def check_unpacked(path: Path, needed: int) -> None:
    """Raise ValueError if `needed` unpacked bytes exceed half the free memory, or max(256 MiB, 100 × the file)."""
    free, packed = free_memory() / _ROOM, path.stat().st_size
    if needed > free or needed > max(_PACKED, _DENSE * packed):
        raise ValueError(
            f"{path} has {size_of(packed)}, and holds {size_of(needed)} or more once it is unpacked; at most "
            f"{size_of(min(free, max(_PACKED, _DENSE * packed)))} are taken. Unpack it yourself if it is what you "
            f"expect, or use fewer rows."
        )


def check_archive(path: Path) -> None:
    """Check the total size of the members of a zip archive, such as an npz file, as `check_unpacked` does."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            check_unpacked(path, sum(member.file_size for member in archive.infolist()))


def check_stream(path: Path) -> None:
    """Check a text as `check_unpacked` does, unpacking it piece by piece if it is packed."""
    size, suffix = 0, path.suffix.lower()
    if suffix == ".zip":
        check_archive(path)
    elif suffix in _OPENERS:
        try:
            with _OPENERS[suffix](path, "rb") as stream:
                while piece := stream.read(1 << 22):
                    size += len(piece)
                    check_unpacked(path, size)
        except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
            raise ValueError(f"{path} is not a whole {suffix[1:]} file ({error}). Fetch or write it again.") from error
    else:
        check_unpacked(path, path.stat().st_size)


@contextmanager
def opened(path: Path, expected: str) -> Iterator[BinaryIO]:
    """Open an archive to read it whole; any damage found inside the `with` becomes one ValueError.

    `expected` says what the archive should be, with an article.
    """
    with as_file(path).open("rb") as file:
        try:
            check_archive(path)
            yield file
        except MemoryError as error:
            reason = f" ({error})" if str(error) else ""
            raise ValueError(
                f"{path} takes more memory than is free{reason}. Free some, or use fewer rows; if it is damaged, as a "
                f"size beyond any memory shows, fetch it again."
            ) from error
        except _BROKEN as error:
            raise ValueError(f"{path} is not {expected} ({error}). Fetch it again.") from error


def read_arrays(path: Path, *names: str) -> list[np.ndarray]:
    """Return arrays of numbers of an npz archive, in the order of `names`."""
    with opened(path, "a whole npz archive of arrays") as file:
        archive = np.load(file, allow_pickle=False)
        present = set(getattr(archive, "files", ()))  # a single array is no archive
        arrays = [archive[name] for name in names if name in present]
    if missing := [name for name in names if name not in present]:
        raise ValueError(
            f"{path} must hold {', '.join(names)}; it has no {', '.join(missing)}. Fetch or write it again."
        )
    for name, array in zip(names, arrays, strict=True):
        if array.dtype.kind not in "iuf":
            raise ValueError(f"`{name}` of {path} must be numbers; got {array.dtype}. Fetch it again.")
    return arrays


def check_finite(path: Path, **arrays: np.ndarray) -> None:
    """Raise ValueError if an array of a file is not finite."""
    for name, array in arrays.items():
        if bad := int((~np.isfinite(array)).sum()):
            raise ValueError(
                f"`{name}` of {path} must be finite; {bad} of {array.size} values are NaN or infinite. Fetch it again."
            )


def check_shape(path: Path, shape: tuple[int | None, ...], **arrays: np.ndarray) -> None:
    """Check that arrays have the given axis sizes; None stands for any size but zero."""
    for name, array in arrays.items():
        alike = array.ndim == len(shape) and all(s in {None, n} for s, n in zip(shape, array.shape, strict=True))
        if not alike or not array.size:
            wanted = ", ".join("n" if size is None else str(size) for size in shape)
            raise ValueError(f"`{name}` of {path} must have shape ({wanted}); got {array.shape}. Fetch it again.")


def check_indices(path: Path, below: int, **arrays: np.ndarray) -> None:
    """Check that arrays hold whole numbers from 0 to `below` − 1, each used once along the last axis."""
    for name, array in arrays.items():
        if array.dtype.kind not in "iu" or not array.size or array.min() < 0 or array.max() >= below:
            seen = f"{array.min()} to {array.max()}" if array.size else "nothing"
            raise ValueError(
                f"`{name}` of {path} must be whole numbers from 0 to {below - 1}; got {seen} of {array.dtype}. "
                f"Fetch it again."
            )
        ordered = np.sort(array, axis=-1)
        if (ordered[..., 1:] == ordered[..., :-1]).any():
            raise ValueError(f"`{name}` of {path} must name nothing twice, and does. Fetch it again.")


def check_labels(path: Path, labels: np.ndarray, rows: int, *, classes: int) -> None:
    """Check that there is one label in 0..K−1 for each row, K = `classes`."""
    if labels.shape != (rows,):
        raise ValueError(
            f"{path} must hold a label for each of {rows} rows; got shape {labels.shape}. Fetch both again."
        )
    if labels.dtype.kind not in "iu" or not rows or labels.min() < 0 or labels.max() >= classes:
        seen = f"{labels.min()} to {labels.max()}" if rows else "none"
        raise ValueError(
            f"labels of {path} must lie in 0..{classes - 1}; got {seen} of {labels.dtype}. Fetch it again."
        )


def check_apart(name: str, train: np.ndarray, test: np.ndarray) -> None:
    """Raise ValueError if more than half of the test rows are among the training rows; a few may be."""
    train_hashes = {hash(row.tobytes()) for row in train}  # 64 bits: no two rows collide by chance
    if (shared := sum(hash(row.tobytes()) in train_hashes for row in test)) > len(test) / 2:
        raise ValueError(
            f"{shared} of the {len(test)} test rows of `{name}` are among its training rows. A file stands under "
            f"another's name: fetch them again."
        )
