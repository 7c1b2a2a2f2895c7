"""Settings of the objects that an estimator is given, as parameters of its own."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from torch import nn

from torchbayes.checks import nearest, seen


def settings_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a method, a likelihood or another such object, and theirs: `optimizer__lr`.

    Those of a function that makes a network are its arguments with a default, behind the numbers of inputs and outputs.
    """
    if _makes_network(value):
        yield from ((each.name, each.default) for each in [*_arguments(value)][2:] if each.default is not each.empty)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            if field.init:
                inner = getattr(value, field.name)
                yield field.name, inner
                yield from ((f"{field.name}__{name}", each) for name, each in settings_of(inner))


def changed(name: str, value: Any, settings: dict[str, Any]) -> Any:
    """Return an object such as a method with other settings; `optimizer__lr` is one of its optimizer."""
    known, outer = dict(settings_of(value)), dict[str, Any]()
    for key, setting in settings.items():
        first, nested, rest = key.partition("__")
        if not known:
            raise ValueError(
                f"`{name}` is {seen(value)}, which has no settings such as {first!r}. Give an object first."
            )
        if first not in known:
            raise ValueError(
                f"`{name}` has no setting {first!r}. {nearest(first, [key for key in known if '__' not in key])}"
            )
        outer[first] = changed(first, outer.get(first, known[first]), {rest: setting}) if nested else setting
    return partial(value, **outer) if _makes_network(value) else dataclasses.replace(value, **outer)


def _makes_network(value: Any) -> bool:
    return (
        isinstance(value, partial)
        or inspect.isfunction(value)
        or (inspect.isclass(value) and issubclass(value, nn.Module))
    )


def _arguments(function: Any) -> Iterable[inspect.Parameter]:
    try:
        return inspect.signature(function).parameters.values()
    except ValueError:  # of a function in C
        return ()
