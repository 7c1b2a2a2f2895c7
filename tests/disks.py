"""Disks that fill up, for tests of what is left then."""

from __future__ import annotations

import builtins
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class Full:
    """An open file that stores only the beginning of a write."""

    def __init__(self, file: Any, room: int) -> None:
        """Wrap the file.

        Args:
            file: open to be written to.
            room: bytes that arrive.
        """
        self._file, self._room = file, room

    def __enter__(self) -> Full:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def seek(self, place: int) -> None:
        """Go to a place."""
        self._file.seek(place)

    def truncate(self, size: int) -> None:
        """Cut the file."""
        self._file.truncate(size)

    def write(self, content: Any) -> None:
        """Write a part, and fail.

        Raises:
            OSError: always.
        """
        self._file.write(bytes(content)[: self._room])
        self._file.flush()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fill(monkeypatch: pytest.MonkeyPatch, applies: Callable[[Path, str], bool], room: int) -> None:
    """Let writing to some files fail half way.

    Args:
        monkeypatch: undoes it.
        applies: whether to a file of this path, opened in this mode.
        room: bytes of a write that arrive.
    """
    for place in (builtins, Path):
        open_ = place.open

        def opened(file: Any, mode: str = "r", *more: Any, open_: Any = open_, **others: Any) -> Any:
            made = open_(file, mode, *more, **others)
            return Full(made, room) if isinstance(file, str | Path) and applies(Path(file), mode) else made

        monkeypatch.setattr(place, "open", opened)


def fill_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let writing to `draws.bin` fail half way."""
    fill(monkeypatch, lambda path, mode: path.name == "draws.bin" and "+" in mode, room=50)
