"""Draws on disk: a file that only grows, so that a chain may be longer than memory.

draws.json   format, run, chains M, weights D, dtype, layout, checksum: written once
draws.bin    draw after draw, each a row for every chain: D weights and 8 bytes of checksum, little-endian; the number
             of draws is the file's length

A reader maps the file into memory and sees every complete draw; a draw cut short by a kill or a full disk does not
count. All rows have one stride, so the map can be viewed as (M, S, D) and as (S M, D), without copying. The checksum of
row r, counted from 0 through the whole file, is r plus the CRC-32 of the run's name and the weights, so that a row is
valid only at its place in its run. Up to 256 MiB are verified whenever they are read, which takes 0.1 to 0.2 s, and 0.2
s more for each million rows; longer files when `torchbayes diagnose` reads them or a run resumes. The file grows or is
replaced. It is never shortened by a complete draw, since reading a mapping beyond the end of its file kills the
process.
"""

from __future__ import annotations

import mmap
import os
import shutil
import sys
import zlib
from collections.abc import Mapping
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from torchbayes.native.process import full_path
from torchbayes.posteriors.files import FORMAT, advice, read_described, sweep, whole_file, write_described
from torchbayes.posteriors.locks import open_own, shorten

_SUM = 8  # bytes of a checksum: a multiple of every dtype's, so that rows can be viewed as an array
_AT_ONCE = 1 << 28  # bytes that are verified whenever they are read
_PIECE = 1 << 20  # bytes read at a time, so that they stay in the cache; at least one row
# Without this flag a private mapping counts as committed memory. Python 3.11 has no name for it.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
_KINDS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_RESTORE = "Restore it or sample again."
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in _KINDS}


class DrawFile:
    """Draws of M chains (`members`) of D weights (`size`) in draws.bin (`path`).

    `description` is the content of draws.json: `chains` M, `weights` D, `dtype`, `layout` and the `run` to which they
    belong.
    """

    def __init__(self, folder: Path, description: Mapping[str, Any]) -> None:
        """Describe the file; use `create` or `open` to get one."""
        self.path, self.description = folder / "draws.bin", description
        self.members, self.size = int(description["chains"]), int(description["weights"])
        self.dtype = _DTYPES[description["dtype"]]

    @classmethod
    def create(cls, folder: str | Path, like_MD: Tensor, layout: Mapping[str, Any], *, run: str = "") -> DrawFile:
        """Start an empty file, or continue one of the same kind; `like_MD` has the shape and dtype of a draw.

        `layout` maps names to shapes of the weights, for readers. A TypeError if the dtype is not supported; a
        ValueError if the folder holds draws of another shape, dtype, layout or run, or its description is damaged.
        """
        folder = full_path(folder)
        members, size = like_MD.shape
        dtype = str(like_MD.dtype).removeprefix("torch.")
        if dtype not in _DTYPES:
            raise TypeError(f"draws must be one of {', '.join(_DTYPES)}; got {dtype}. Convert the network.")
        shapes = {name: list(shape) for name, shape in layout.items()}
        description = {
            "format": FORMAT,
            "run": run,
            "chains": members,
            "weights": size,
            "dtype": dtype,
            "layout": shapes,
        }
        header, content = folder / "draws.json", folder / "draws.bin"
        sweep(folder, content.name)
        if header.exists():
            if read_described(header, restore=_RESTORE) != description:
                raise ValueError(
                    f"{folder} holds draws of another shape, dtype, layout or run. Choose another directory."
                )
        elif content.exists() and content.stat().st_size:
            raise ValueError(f"{content} has no {header.name} beside it. Restore that, or choose another directory.")
        else:
            folder.mkdir(parents=True, exist_ok=True)
            _make(content)  # before its description, so that a reader who finds the description finds both
            write_described(header, description)
        _make(content)
        return cls(folder, description)

    @classmethod
    def open(cls, folder: str | Path) -> DrawFile:
        """Open the file in a run directory, whether the run is finished or not.

        A FileNotFoundError if there are no draws, a ValueError if the description is damaged or of another format.
        """
        folder = full_path(folder)
        if not (folder / "draws.json").is_file() or not (folder / "draws.bin").is_file():
            raise FileNotFoundError(f"there are no draws in {folder}.")
        description = read_described(folder / "draws.json", restore=_RESTORE)
        if "chains" not in description:
            raise ValueError(f"{folder / 'draws.json'} is a description of something else than draws. {_RESTORE}")
        return cls(folder, description)

    @property
    def row_bytes(self) -> int:
        """Bytes of one draw of one chain, including its checksum."""
        return self.size * self.dtype.itemsize + _SUM

    @property
    def draw_bytes(self) -> int:
        """Bytes of one draw of all chains."""
        return self.members * self.row_bytes

    def __len__(self) -> int:
        """Return the number of complete draws."""
        return self.path.stat().st_size // self.draw_bytes

    def append(self, weights_MD: Tensor) -> None:
        """Append one draw of every chain.

        A FileExistsError if the file is a link, an OSError if it cannot be written, as on a full disk; earlier
        draws stay readable. A ValueError if the draw does not have the file's shape and dtype.
        """
        assert sys.byteorder == "little", "draws.bin is little-endian"
        if weights_MD.shape != (self.members, self.size) or weights_MD.dtype != self.dtype:
            raise ValueError(
                f"a draw for {self.path} must have shape {(self.members, self.size)} and {self.dtype}; got "
                f"{tuple(weights_MD.shape)} and {weights_MD.dtype}."
            )
        count, begun = len(self), _begun(self.description["run"])
        whole = count * self.draw_bytes
        rows = weights_MD.detach().cpu().contiguous().view(torch.uint8).numpy()
        try:
            with open(self.path, "r+b", opener=open_own) as file:
                file.seek(whole)
                for number, row in enumerate(rows, count * self.members):
                    file.write(row.data)
                    file.write((number + zlib.crc32(row, begun)).to_bytes(_SUM, "little"))
        except FileExistsError:
            raise
        except OSError as error:
            with suppress(OSError):
                shorten(self.path, whole)
            raise OSError(
                error.errno,
                f"draw {count + 1} could not be written to {self.path} ({error.strerror}); the {count} draws "
                f"before it are whole.{advice(error.errno, 'resume the run')}",
            ) from error

    def sync(self) -> None:
        """Wait until all draws are physically on disk, so that they survive a power cut."""
        with self.path.open("rb") as file:
            os.fsync(file.fileno())

    def truncate(self, count: int) -> None:
        """Drop all but the first `count` draws, as when a run resumes from a checkpoint.

        A ValueError if one of these is missing or damaged. Readers keep the draws that they have mapped. Where
        complete draws are dropped, the others go to a new file that replaces the old one, whose space is freed once
        nobody reads it any more.
        """
        if len(self) < count:
            raise ValueError(
                f"{self.path} holds {len(self)} draws, but the checkpoint is {count} draws into the run. "
                f"The file was cut; start the run anew."
            )
        with self.path.open("rb") as file:
            _verify(self, file, count)
        whole = count * self.draw_bytes
        if len(self) == count:  # at most an incomplete draw follows
            shorten(self.path, whole)
            return
        with whole_file(self.path) as temporary:
            shutil.copyfile(self.path, temporary)
            os.truncate(temporary, whole)

    def read(self, count: int | None = None, *, verify: bool = False) -> Tensor:
        """Return the first `count` draws, by default all, as a tensor (M, S, D) that is mapped into memory.

        Only what is used is read, and what is written to the tensor never reaches the file. `verify` compares draws
        with their checksums even beyond 256 MiB, which reads all of them. A ValueError if there are fewer, or a
        verified one is damaged.
        """
        with self.path.open("rb") as file:
            # The size of this open file, because another may replace it.
            complete = os.fstat(file.fileno()).st_size // self.draw_bytes
            count = complete if count is None else count
            if complete < count:
                raise ValueError(f"{self.path} is damaged: it holds {complete} draws, not {count}. {_RESTORE}")
            if not count:
                return torch.empty(self.members, 0, self.size, dtype=self.dtype)
            if verify or count * self.draw_bytes <= _AT_ONCE:
                _verify(self, file, count)
            flags, rights = mmap.MAP_PRIVATE | _NO_RESERVE, mmap.PROT_READ | mmap.PROT_WRITE
            mapped = mmap.mmap(file.fileno(), count * self.draw_bytes, flags=flags, prot=rights)
        rows_SMD = torch.frombuffer(mapped, dtype=self.dtype).view(count, self.members, -1)[..., : self.size]
        return rows_SMD.transpose(0, 1)


def _make(path: Path) -> None:
    """Make an empty file unless it exists."""
    with open(path, "ab", opener=open_own):
        pass


def _begun(run: str) -> int:
    """Return the initial value of the checksums of a run's rows."""
    return zlib.crc32(run.encode())


def _verify(draws: DrawFile, file: BinaryIO, count: int) -> None:
    """Compare the first draws of an open file with their checksums; a ValueError if one is damaged."""
    begun, rows, at_once = _begun(draws.description["run"]), count * draws.members, max(1, _PIECE // draws.row_bytes)
    file.seek(0)
    for first in range(0, rows, at_once):
        expected = min(at_once, rows - first)
        content = file.read(expected * draws.row_bytes)
        whole = len(content) // draws.row_bytes  # fewer if another program has shortened the file
        content_rows = np.frombuffer(content, np.uint8, whole * draws.row_bytes).reshape(whole, draws.row_bytes)
        sums = np.fromiter(map(zlib.crc32, content_rows[:, :-_SUM], repeat(begun)), np.uint64, whole)
        sums += np.arange(first, first + whole, dtype=np.uint64)
        same = sums == content_rows[:, -_SUM:].copy().view("<u8")[:, 0]
        sound = whole if same.all() else int(same.argmin())
        if sound < expected:
            number = (first + sound) // draws.members
            raise ValueError(
                f"{draws.path} is damaged: draw {number + 1} is not what was written there. The {number} before it are "
                f"whole. {_RESTORE}"
            )
