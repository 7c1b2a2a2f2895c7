"""What `method="auto"` is, by the number of rows."""

from __future__ import annotations

from typing import Any

from torchbayes.catalogue.methods import check_method, method_named, method_names
from torchbayes.checks import nearest, seen
from torchbayes.methods.optimise.swag import SWAG

_SEARCHED = 20_000  # rows


def method_of(method: Any, *, rows: int) -> Any:
    """Return a method: the default for a table of so many rows, one by its name with its own defaults, or itself.

    Raises:
        TypeError: if it is no method.
        ValueError: if there is no method of the name.
    """
    if method == "auto":
        return automatic(rows)
    if not isinstance(method, str):
        check_method("`method`", method)
        return method
    named = method_named(method)
    if named is None:
        raise ValueError(f"There is no method {seen(method)}. {nearest(method, method_names())}")
    return named() if isinstance(named, type) else named


def automatic(rows: int) -> Any:
    """Return the default for a table of so many rows: five networks, and the neighbourhood of each, by SWAG.

    Rows that are held out choose how long they train; beyond 20,000 rows that is set, so that time grows no faster than
    rows do.
    """
    if rows <= _SEARCHED:
        return SWAG(members=5)
    return SWAG(members=5 if rows <= 5 * _SEARCHED else 2, epochs=10, batch_size=512)
