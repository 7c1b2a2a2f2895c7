"""Draws on disk: a file that only grows, so that a chain may be longer than memory.

draws.json   format, chains M, weights D, dtype, layout: written once
draws.bin    draw after draw, each the M rows of D weights, little-endian; the number of draws is the file's length

A reader maps the file into memory and sees every whole draw; a draw cut short by a kill or a full disk does not count.
The file grows or is replaced. It is never cut by a whole draw, since the kernel kills who reads from a mapping behind
the end of its file.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchbayes.posteriors.files import whole_file, write_whole

FORMAT = 1
# a private mapping would be charged to memory as if all of it were written; Python 3.11 has no name for the flag
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
_KINDS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in _KINDS}


class DrawFile:
    """Draws of M chains in a folder.

    Attributes:
        path: draws.bin.
        members: M.
        size: D.
        dtype: dtype of the weights.
    """

    def __init__(self, folder: Path, members: int, size: int, *, dtype: torch.dtype) -> None:
        """Describe the file; `create` and `open` are how to get one."""
        self.path, self.members, self.size, self.dtype = folder / "draws.bin", members, size, dtype

    @classmethod
    def create(cls, folder: str | Path, like_MD: Tensor, layout: Mapping[str, Any]) -> DrawFile:
        """Start an empty file, or take up the one that is there if it is of the same kind.

        Args:
            folder: where it goes; made if needed.
            like_MD: weights with the shape and dtype of a draw.
            layout: name -> shape of the weights, for readers.

        Returns:
            The file.

        Raises:
            TypeError: if the weights have a dtype that is not stored.
            ValueError: if the folder holds draws of another shape, dtype or layout, or its description is damaged.
        """
        folder = Path(folder)
        members, size = like_MD.shape
        dtype = str(like_MD.dtype).removeprefix("torch.")
        if dtype not in _DTYPES:
            raise TypeError(f"draws must be one of {', '.join(_DTYPES)}; got {dtype}. Convert the network.")
        about = {
            "format": FORMAT,
            "chains": members,
            "weights": size,
            "dtype": dtype,
            "layout": {name: list(shape) for name, shape in layout.items()},
        }
        header, content = folder / "draws.json", folder / "draws.bin"
        for left in folder.glob(f".{content.name}.*"):  # of a copy that was killed
            left.unlink(missing_ok=True)
        if header.exists():
            if _described(header) != about:
                raise ValueError(f"{folder} holds draws of another shape, dtype or layout. Choose another directory.")
        elif content.exists() and content.stat().st_size:
            raise ValueError(f"{content} has no {header.name} beside it. Restore that, or choose another directory.")
        else:
            folder.mkdir(parents=True, exist_ok=True)
            content.write_bytes(b"")
            write_whole(header, (json.dumps(about, indent=2) + "\n").encode())
        return cls(folder, members, size, dtype=like_MD.dtype)

    @classmethod
    def open(cls, folder: str | Path) -> DrawFile:
        """Open what `create` and `append` left, whether the run ended or not.

        Args:
            folder: the run directory.

        Returns:
            The file.

        Raises:
            FileNotFoundError: if there are no draws.
            ValueError: if the description is damaged or of a newer format.
        """
        folder = Path(folder)
        if not (folder / "draws.json").is_file() or not (folder / "draws.bin").is_file():
            raise FileNotFoundError(f"there are no draws in {folder}.")
        about = _described(folder / "draws.json")
        try:
            if about["format"] > FORMAT:
                raise ValueError(f"{folder} holds draws of format {about['format']}. Upgrade torchbayes to read them.")
            return cls(folder, int(about["chains"]), int(about["weights"]), dtype=_DTYPES[about["dtype"]])
        except (KeyError, TypeError) as error:
            raise ValueError(f"{folder / 'draws.json'} is damaged ({error}). Restore it or sample again.") from error

    @property
    def row_bytes(self) -> int:
        """Bytes of one draw of all chains."""
        return self.members * self.size * self.dtype.itemsize

    def __len__(self) -> int:
        """Return the number of whole draws."""
        return self.path.stat().st_size // self.row_bytes

    def append(self, weights_MD: Tensor) -> None:
        """Write one draw of every chain behind the others.

        Args:
            weights_MD: the draw.

        Raises:
            OSError: if it cannot be written, as on a full disk; what was there before is whole and readable.
            ValueError: if it is not of the file's shape and dtype.
        """
        assert sys.byteorder == "little", "draws.bin is little-endian"
        if weights_MD.shape != (self.members, self.size) or weights_MD.dtype != self.dtype:
            raise ValueError(
                f"a draw for {self.path} must have shape {(self.members, self.size)} and {self.dtype}; got "
                f"{tuple(weights_MD.shape)} and {weights_MD.dtype}."
            )
        whole = len(self) * self.row_bytes
        content = weights_MD.detach().cpu().contiguous().view(torch.uint8).numpy().data
        try:
            with self.path.open("r+b") as file:
                file.seek(whole)
                file.write(content)
        except OSError as error:
            os.truncate(self.path, whole)
            raise OSError(
                error.errno,
                f"draw {len(self) + 1} could not be written to {self.path} ({error.strerror}); the {len(self)} draws "
                f"before it are whole. Make room, then resume the run",
            ) from error

    def sync(self) -> None:
        """Wait until all draws are on the disk itself, so that they outlive a power cut."""
        with self.path.open("rb") as file:
            os.fsync(file.fileno())

    def truncate(self, count: int) -> None:
        """Forget all draws but the first `count`, as when a run resumes from a checkpoint.

        Who has read the file keeps the draws he sees: where whole draws are forgotten, the others go to a new file that
        takes the place of the old one, which takes as much room as they do until nobody reads that any more.

        Args:
            count: draws to keep.

        Raises:
            ValueError: if there are fewer.
        """
        if len(self) < count:
            raise ValueError(
                f"{self.path} holds {len(self)} draws, but the checkpoint is {count} draws into the run. "
                f"The file was cut; start the run anew."
            )
        whole = count * self.row_bytes
        if len(self) == count:  # at most a draw that was cut short is behind them
            os.truncate(self.path, whole)
            return
        with whole_file(self.path) as temporary:
            shutil.copyfile(self.path, temporary)
            os.truncate(temporary, whole)

    def read(self) -> Tensor:
        """Return all whole draws as one tensor (M, S, D), mapped into memory: only what is used is read.

        What is written to the tensor is the reader's own, and never reaches the file.
        """
        with self.path.open("rb") as file:
            count = os.fstat(file.fileno()).st_size // self.row_bytes  # of this very file: another may take its place
            if not count:
                return torch.empty(self.members, 0, self.size, dtype=self.dtype)
            flags, rights = mmap.MAP_PRIVATE | _NO_RESERVE, mmap.PROT_READ | mmap.PROT_WRITE
            mapped = mmap.mmap(file.fileno(), count * self.row_bytes, flags=flags, prot=rights)
        flat = torch.frombuffer(mapped, dtype=self.dtype)
        return flat.view(count, self.members, self.size).transpose(0, 1)


def _described(header: Path) -> Any:
    """Return what draws.json holds.

    Raises:
        ValueError: if it is damaged.
    """
    try:
        return json.loads(header.read_text())
    except ValueError as error:  # no JSON, or no text
        raise ValueError(f"{header} is damaged ({error}). Restore it or sample again.") from error
