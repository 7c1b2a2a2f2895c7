"""What `method="auto"` is, and the prior of the network of "auto"."""

from __future__ import annotations

from typing import Any

from torchbayes.catalogue.methods import check_method, method_named, method_names
from torchbayes.catalogue.models import build_prior
from torchbayes.catalogue.tables import recommended, trained_prior
from torchbayes.checks import nearest, seen
from torchbayes.methods.optimise.swag import SWAG

_ANY = SWAG(members=5)  # for a network of which nothing is known


def method_of(method: Any, *, num_data: int, task: str, encoded: bool) -> Any:
    """Return a method: the default for a table of so many rows, one by its name with its own defaults, or itself.

    `encoded` says whether the network is that of "auto".

    Raises:
        TypeError: if it is no method.
        ValueError: if there is no method of the name.
    """
    if not isinstance(method, str):
        check_method("`method`", method)
        return method
    if is_automatic(method):
        return recommended(num_data, task).method if encoded else _ANY
    named = method_named(method)
    if named is None:
        raise ValueError(f"There is no method {seen(method)}. {nearest(method, method_names())}")
    return named() if isinstance(named, type) else named


def is_automatic(method: Any) -> bool:
    """Return whether a method is left to the library."""
    return isinstance(method, str) and method == "auto"


def prior_of(*, automatic: bool, num_data: int, task: str) -> Any:
    """Return the prior of the network of "auto", for the `automatic` method or one that trains to a mode."""
    return build_prior(*(recommended(num_data, task).prior if automatic else trained_prior(task)))
