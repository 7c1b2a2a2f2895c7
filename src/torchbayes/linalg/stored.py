"""How structures and curvatures are stored: frozen dataclasses of tensors and parts, with names in files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, replace
from typing import Any, ClassVar, Literal, Protocol, Self

from torch import Tensor

ONE: Mapping[str, Literal["one", "several"]] = {"parts": "one"}
"""Metadata of a dataclass field that holds one part: a structure or curvature."""
SEVERAL: Mapping[str, Literal["one", "several"]] = {"parts": "several"}
"""Metadata of a dataclass field that holds a tuple of parts."""


class Stored(Protocol):
    """A frozen dataclass of tensors, and of parts of the same kind in fields whose metadata are `ONE` or `SEVERAL`.

    The letters at the end of a tensor's name are its axes. If the first is M, the tensor has one entry per member.

    Attributes:
        kind: name under which it is saved.
    """

    kind: ClassVar[str]

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that define it, by field name; `NUMBER.KIND.FIELD` for those of its parts."""
        tensors, parts = _contents(self)
        numbered = [(f"{n}.{structure.kind}", structure.tensors()) for n, structure in enumerate(parts)]
        nested = {f"{start}.{name}": tensor for start, of_part in numbered for name, tensor in of_part.items()}
        return tensors | nested

    def mapped(self, function: Callable[[str, Tensor], Tensor]) -> Self:
        """Return a copy with every tensor, also of its parts, replaced by function(field name, tensor)."""
        copy: Any = self
        changed: dict[str, Any] = {}
        for field in fields(copy):
            value = getattr(self, field.name)
            if field.metadata.get("parts") == "several":
                changed[field.name] = tuple(structure.mapped(function) for structure in value)
            elif field.metadata.get("parts") == "one":
                changed[field.name] = value.mapped(function)
            elif value is not None:
                changed[field.name] = function(field.name, value)
        return replace(copy, **changed)

    def member(self, m: int) -> Self:
        """Return the structure of member m alone, M = 1."""
        return self.mapped(lambda name, t: t[m : m + 1] if name.rpartition("_")[2].startswith("M") else t)


def double(_: str, tensor: Tensor) -> Tensor:
    """Return a tensor of real numbers in double precision, for `Stored.mapped`."""
    return tensor.double() if tensor.is_floating_point() else tensor


def restored(table: Mapping[str, type[Any]], kind: str, tensors: Mapping[str, Tensor]) -> Any:
    """Return a stored object, rebuilt from the tensors that `Stored.tensors` returned.

    `table` maps kinds, also of parts, to classes. Raises a KeyError if a kind is unknown or a tensor is missing.
    """
    grouped: dict[int, tuple[str, dict[str, Tensor]]] = {}
    for name in (name for name in tensors if "." in name):
        number, part_kind, field_name = name.split(".", 2)
        grouped.setdefault(int(number), (part_kind, {}))[1][field_name] = tensors[name]
    parts = [restored(table, *grouped[number]) for number in sorted(grouped)]
    values: dict[str, Any] = {}
    for field in fields(table[kind]):
        if field.metadata.get("parts") == "several":
            values[field.name] = tuple(parts)
        elif "parts" in field.metadata:
            if len(parts) != 1:
                raise KeyError(field.name)
            values[field.name] = parts[0]
        elif field.name in tensors or field.default is MISSING:
            values[field.name] = tensors[field.name]
    return table[kind](**values)


def _contents(stored: Any) -> tuple[dict[str, Tensor], list[Any]]:
    """Return tensors by field name, without those that are None, and parts."""
    tensors: dict[str, Tensor] = {}
    parts: list[Any] = []
    for field in fields(stored):
        value = getattr(stored, field.name)
        if "parts" in field.metadata:
            parts += value if field.metadata["parts"] == "several" else [value]
        elif value is not None:
            tensors[field.name] = value
    return tensors, parts
