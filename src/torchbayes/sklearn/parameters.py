"""Settings of the objects that an estimator is given, as parameters of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from torchbayes.checks import nearest, seen


def settings_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a method, a likelihood or another such object, and theirs: `optimizer__lr`."""
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
    return dataclasses.replace(value, **outer)
