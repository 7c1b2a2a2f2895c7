"""Results of fits, a file each, so that an interrupted certificate goes on where it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torchbayes.native.process import full_path
from torchbayes.posteriors.files import read_described, write_described

_SETTINGS = "about.json"
_RESTORE = "Remove the file: it is then computed again."


class Results:
    """Numbers that were computed once, by name; in files of a directory if there is one."""

    def __init__(self, directory: Path | None, settings: Mapping[str, Any]) -> None:
        """Open the results of what `settings` describe.

        A ValueError if the directory holds those of something else.
        """
        self._directory = None if directory is None else full_path(directory)
        if self._directory is None:
            return
        path = self._directory / _SETTINGS
        if not path.is_file():
            write_described(path, settings)
            return
        there = read_described(path, restore="Remove the directory, or choose another.")
        different = [name for name, value in settings.items() if there.get(name, value) != value]
        if different:
            raise ValueError(
                f"{self._directory} holds results of another {different[0]} ({there.get(different[0])}; now "
                f"{settings[different[0]]}). Choose another directory, or remove it."
            )

    def get(self, name: str, compute: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Return the numbers of a name, computed if they are not there yet; `name` may have folders."""
        path = None if self._directory is None else self._directory / f"{name}.json"
        if path is not None and path.is_file():
            return read_described(path, restore=_RESTORE)
        numbers = dict(compute())
        if path is not None:
            write_described(path, numbers)
        return numbers
