"""Batches of a loader, split into inputs and targets, or read as inputs alone, for a model without a hook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

_TARGETS = ("labels", "label", "targets", "target")


def _keys(batch: Any) -> set[Any]:
    """Return the names of the entries of a mapping, or of an object like one."""
    return set(batch.keys()) if isinstance(batch, Mapping) or hasattr(batch, "keys") else set()


def is_unlabelled(batch: Any) -> bool:
    """Return whether a batch is of inputs alone: a tensor, one in a list, or a mapping without targets."""
    if isinstance(batch, tuple | list):
        return len(batch) == 1
    return isinstance(batch, Tensor) or (isinstance(batch, Mapping) and not _keys(batch) & {*_TARGETS})


def default_batch(batch: Any) -> tuple[Any, Any]:
    """Return (inputs, targets) of a pair, or of a mapping with `labels`, `label`, `targets` or `target`.

    Other batches are a TypeError. The other entries of a mapping, such as a Hugging Face batch, become keyword
    arguments; a single one named `inputs` or `x` is the inputs itself.
    """
    if _keys(batch):
        entries = {key: batch[key] for key in batch.keys()}  # noqa: SIM118  (others than mappings may iterate over pairs)
        for key in _TARGETS:
            if key in entries:
                targets = entries.pop(key)
                if set(entries) in ({"inputs"}, {"x"}):
                    return next(iter(entries.values())), targets
                return entries, targets
    elif isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    raise TypeError(
        f"cannot find inputs and targets in a batch of type {type(batch).__name__}. "
        f"Give Model `batch=`, a function that returns (inputs, targets)."
    )


def only_inputs(batch: Any) -> Any:
    """Return the inputs of a batch without targets, or of a mapping that may hold some."""
    if isinstance(batch, tuple | list):
        return only_inputs(batch[0])
    if not isinstance(batch, Mapping):
        return batch
    entries = {key: value for key, value in batch.items() if key not in _TARGETS}
    return next(iter(entries.values())) if set(entries) in ({"inputs"}, {"x"}) else entries
