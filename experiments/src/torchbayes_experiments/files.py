"""What an experiment leaves on disk: JSON files, written whole, and read when a run is called again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torchbayes.posteriors.files import read_json, write_whole
from torchbayes.posteriors.locks import Locked, folder_in

__all__ = [
    "Locked",
    "as_json",
    "folder_in",
    "load_or_compute",
    "read_json",
    "rounded",
    "significant",
    "write_whole",
]


def as_json(record: Mapping[str, Any]) -> bytes:
    """Return a record as the text of a JSON file."""
    return (json.dumps(record, indent=1) + "\n").encode()


def load_or_compute(path: Path, compute: Callable[..., Mapping[str, Any]], *args: Any, **settings: Any) -> Any:
    """Return what a JSON file holds; if there is none, compute it and write it first, with its folder.

    The numbers are those read from the file, so that a first call returns the same as a later one.
    """
    if not path.exists():
        write_whole(path, as_json(compute(*args, **settings)))
    return read_json(path)


def rounded(values: Any, digits: int = 5) -> list[float]:
    """Return the numbers of a tensor, row after row, rounded to so many decimals."""
    return [round(float(value), digits) for value in values.flatten()]


def significant(values: Any) -> list[Any]:
    """Return a tensor as nested lists of numbers with four significant digits."""
    return [significant(value) if value.ndim else float(f"{value:.4g}") for value in values]
