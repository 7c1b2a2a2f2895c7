"""Data by name: the sets of this library, those of installed packages, and those of users by import path."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from torchbayes import data as room
from torchbayes.catalogue.entries import Entry
from torchbayes.catalogue.imports import call, path_of, registered
from torchbayes.data.base import Data
from torchbayes.data.own import as_data

GROUP = "torchbayes.data"


def data_names() -> dict[str, str]:
    """Return the names of all data sets with one line each, those of installed packages included."""
    others = {name: f"of an installed package: {point.value}" for name, point in registered(GROUP).items()}
    return {**others, **room.names()}


def load(
    name: str, settings: Mapping[str, Any] | None = None, *, split: int = 0, train_size: int | None = None
) -> Data:
    """Load a data set by its name in the catalogue, an entry point, or the import path of a function.

    Args:
        name: the name; or `my_module:load`, a function that takes the settings and gives what `own.as_data` takes.
        settings: of a function of the user; the sets of the catalogue have none.
        split: which split.
        train_size: training rows to keep; all if None.

    Returns:
        The data set.

    Raises:
        ValueError: if there is no such set or split, or a set of the catalogue is given settings.
    """
    path = None if name in room.names() else path_of(name, GROUP)
    if path is not None:
        made = Entry(name, "", path).load()
        return as_data(name, _called(made, path, json.dumps(settings or {})), split=split, train_size=train_size)
    if settings:
        raise ValueError(
            f"`data_settings` are of a function of your own, such as my_module:load; `{name}` has none. Leave them out."
        )
    return room.load(name, split=split, train_size=train_size)


@lru_cache(maxsize=1)  # the defaults of a command depend on the data, which the run then needs again
def _called(made: Any, path: str, settings: str) -> Any:
    return call(made, path, **json.loads(settings))
