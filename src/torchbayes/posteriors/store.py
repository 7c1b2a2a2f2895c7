"""Draws on disk: a file that only grows, so that a chain may be longer than memory.

draws.json   format, chains M, weights D, dtype, layout: written once
draws.bin    draw after draw, each the M rows of D weights, little-endian; the number of draws is the file's length

A reader maps the file into memory and sees every whole draw; a draw cut short by a kill or a full disk does not count.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchbayes.posteriors.files import write_whole

FORMAT = 1
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.float64, torch.bfloat16)}


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
            ValueError: if the folder holds draws of another shape or dtype.
        """
        folder = Path(folder)
        members, size = like_MD.shape
        about = {
            "format": FORMAT,
            "chains": members,
            "weights": size,
            "dtype": str(like_MD.dtype).removeprefix("torch."),
            "layout": {name: list(shape) for name, shape in layout.items()},
        }
        header = folder / "draws.json"
        if not header.exists():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "draws.bin").write_bytes(b"")
            write_whole(header, (json.dumps(about, indent=2) + "\n").encode())
        elif json.loads(header.read_text()) != about:
            raise ValueError(f"{folder} holds draws of another shape, dtype or layout. Choose another directory.")
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
        try:
            about = json.loads((folder / "draws.json").read_text())
            if about["format"] > FORMAT:
                raise ValueError(f"{folder} holds draws of format {about['format']}. Upgrade torchbayes to read them.")
            return cls(folder, int(about["chains"]), int(about["weights"]), dtype=_DTYPES[about["dtype"]])
        except (KeyError, TypeError, json.JSONDecodeError) as error:
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
        """
        assert sys.byteorder == "little", "draws.bin is little-endian"
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

    def truncate(self, count: int) -> None:
        """Forget all draws but the first `count`, as when a run resumes from a checkpoint.

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
        os.truncate(self.path, count * self.row_bytes)

    def read(self) -> Tensor:
        """Return all whole draws as one tensor (M, S, D), mapped into memory: only what is used is read."""
        count = len(self)
        if not count:
            return torch.empty(self.members, 0, self.size, dtype=self.dtype)
        numbers = count * self.members * self.size
        flat = torch.from_file(str(self.path), shared=False, size=numbers, dtype=self.dtype)
        return flat.view(count, self.members, self.size).transpose(0, 1)
