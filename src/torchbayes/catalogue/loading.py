"""Data by name: sets of this library and of installed packages, and those of users by file, folder or import path."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from torchbayes import data as room
from torchbayes.catalogue.imports import call, load_path, path_of, registered
from torchbayes.data.base import Data
from torchbayes.data.user import as_data, is_file_name, read_data
from torchbayes.native.process import full_path

GROUP = "torchbayes.data"


def data_names() -> dict[str, str]:
    """Return the names of all data sets with one line each, including those of installed packages."""
    others = {name: f"of an installed package: {point.value}" for name, point in registered(GROUP).items()}
    return {**others, **room.names()}


def load(
    name: str, settings: Mapping[str, Any] | None = None, *, split: int = 0, train_size: int | None = None
) -> Data:
    """Load a data set by its name in the catalogue, an entry point, an import path, or a file or folder.

    An import path names a function that takes the settings and returns what `user.as_data` takes; `user.read_data`
    reads a file or folder. The sets of the catalogue have no settings. Raises ValueError if there is no such set or
    split, or a set of the catalogue is given settings.
    """
    path = None if name in room.names() else path_of(name, GROUP)
    if path is not None:
        return as_data(
            name, _called(load_path(path), path, json.dumps(settings or {})), split=split, train_size=train_size
        )
    if is_file(name):
        return read_data(Path(name), settings, split=split, train_size=train_size)
    if settings:
        raise ValueError(
            f"settings of data, here {' and '.join(f'`{key}`' for key in settings)}, are those of a file, a folder, or "
            f"a function such as my_module:load; `{name}` has none. Leave them out."
        )
    return room.load(name, split=split, train_size=train_size)


def is_file(name: str) -> bool:
    """Return whether a name is that of a file or folder, and not one of the catalogue or of an import path."""
    return name not in {**room.names(), **room.ood_names()} and path_of(name, GROUP) is None and is_file_name(name)


def settled(name: str) -> str:
    """Return the name of a data set as a run keeps it: a file or folder by its full path, so that it is found again."""
    return str(full_path(name)) if is_file(name) else name


@lru_cache(maxsize=1)  # a command reads the data twice: for its defaults, and for the run
def _called(made: Any, path: str, settings: str) -> Any:
    return call(made, path, **json.loads(settings))
