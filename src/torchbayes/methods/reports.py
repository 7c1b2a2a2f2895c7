"""What a step reports for the log, by the names of its fields."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Report:
    """A record whose fields `name_M`, (M,), are averaged over an epoch unless None; the others hold for its last step.

    No later step needs it: it is the `torchbayes.methods.protocol.Info` of most methods.
    """

    def means(self) -> dict[str, Tensor]:
        """Return what is averaged over an epoch, by name, each (M,)."""
        return means_of(self)

    def now(self) -> dict[str, Any]:
        """Return what is true of the last step of an epoch."""
        return {f.name: getattr(self, f.name) for f in fields(self) if not f.name.endswith("_M")}


def means_of(record: Any) -> dict[str, Tensor]:
    """Return the fields of a record that are averaged over an epoch, by name, each (M,)."""
    values = {f.name: getattr(record, f.name) for f in fields(record) if f.name.endswith("_M")}
    return {name.removesuffix("_M"): value_M for name, value_M in values.items() if value_M is not None}
