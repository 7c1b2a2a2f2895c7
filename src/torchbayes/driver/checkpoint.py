"""Checkpoints: any state of nested dataclasses, tensors and numbers, written atomically and restored exactly."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchbayes.model.description import CONSTANTS, fingerprint_differences
from torchbayes.posteriors.files import aligned, read_header, read_tensors, write_tensors
from torchbayes.posteriors.problems import is_finite


def flatten(state: Any, prefix: str = "") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Split a state into tensors and numbers, by dotted name.

    A state is a dataclass, mapping, tensor, number or tuple of numbers; a TypeError is raised if it holds anything
    else.
    """
    if isinstance(state, Tensor):
        return {prefix: state}, {}
    if isinstance(state, int | float | str) or (isinstance(state, tuple) and all(isinstance(s, int) for s in state)):
        return {}, {prefix: state}
    if dataclasses.is_dataclass(state):
        entries = {_stored_name(f): getattr(state, f.name) for f in _lasting(state)}
    elif isinstance(state, Mapping):
        entries = dict(state)
    else:
        raise TypeError(f"a state may hold tensors, numbers, mappings and dataclasses; got {type(state).__name__}.")
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for name, entry in entries.items():
        more = flatten(entry, f"{prefix}/{name}")
        tensors.update(more[0])
        numbers.update(more[1])
    return tensors, numbers


def _lasting(state: Any) -> list[dataclasses.Field[Any]]:
    """Return the fields of a state that must outlive a step."""
    return [f for f in dataclasses.fields(state) if not f.metadata.get("workspace")]


def released(state: Any) -> Any:
    """Return the last state of a run without what only further steps need, which frees its memory."""
    if not dataclasses.is_dataclass(state):
        return state
    entries = {f: getattr(state, f.name) for f in dataclasses.fields(state)}
    parts = {f.name: _emptied(e) if f.metadata.get("for_steps") else released(e) for f, e in entries.items()}
    return dataclasses.replace(state, **parts)  # type: ignore[type-var]


def _emptied(entry: Tensor | Mapping[str, Tensor] | tuple[Any, ...]) -> Any:
    return entry.new_empty(0) if isinstance(entry, Tensor) else type(entry)()


def _stored_name(field: dataclasses.Field[Any]) -> str:
    """Return the name of a field in files: its own, or an earlier one that older files have."""
    return field.metadata.get("stored_as", field.name)


def restore(like: Any, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any], *, prefix: str = "") -> Any:
    """Rebuild a state from its parts, as `flatten` gave them, in the structure of `like`, such as a fresh state.

    Raises a ValueError if a part is missing or a tensor has another shape or dtype; its message is a clause.
    """
    if isinstance(like, Tensor):
        tensor = tensors.get(prefix)
        if tensor is None or tensor.shape != like.shape or tensor.dtype != like.dtype:
            description = "nothing" if tensor is None else f"{tuple(tensor.shape)} and {tensor.dtype}"
            raise ValueError(f"`{prefix}` must have shape {tuple(like.shape)} and {like.dtype}; got {description}")
        return tensor.to(like.device)
    if dataclasses.is_dataclass(like):
        parts = {
            f.name: restore(getattr(like, f.name), tensors, numbers, prefix=f"{prefix}/{_stored_name(f)}")
            for f in _lasting(like)
        }
        return dataclasses.replace(like, **parts)  # type: ignore[type-var]
    if isinstance(like, Mapping):
        if not like:  # filled by the first step, with names that a fresh state cannot know
            return {n.removeprefix(f"{prefix}/"): t for n, t in tensors.items() if n.startswith(f"{prefix}/")}
        return {name: restore(entry, tensors, numbers, prefix=f"{prefix}/{name}") for name, entry in like.items()}
    if prefix not in numbers:
        raise ValueError(f"`{prefix}` is missing")
    return tuple(numbers[prefix]) if isinstance(like, tuple) else numbers[prefix]


def mapped(state: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a state with `change` applied to tensors (M, ...) and to tuples of one number per member."""
    if isinstance(state, Tensor):
        return change(state) if state.ndim else state  # a counter is the same for all members
    if isinstance(state, tuple):
        return tuple(change(torch.tensor(state)).tolist())
    if dataclasses.is_dataclass(state):
        return dataclasses.replace(state, **{f.name: mapped(getattr(state, f.name), change) for f in _lasting(state)})  # type: ignore[type-var]
    if isinstance(state, Mapping):
        return {name: mapped(entry, change) for name, entry in state.items()}
    return state


def all_finite(state: Any) -> bool:
    """Return whether every floating-point tensor of a state is finite."""
    return all(is_finite(t) for t in flatten(state)[0].values() if t.is_floating_point())


def save_checkpoint(path: Path, state: Any, description: Mapping[str, Any]) -> None:
    """Write a state and a description of the run to one file, atomically."""
    tensors, numbers = flatten(state)
    write_tensors(path, tensors, {"kind": "checkpoint", "numbers": numbers, "about": dict(description)})


def about_of(path: Path) -> dict[str, Any]:
    """Return the description of a checkpoint's run, without reading the rest of the file.

    Raises a ValueError if its header is damaged, or it is not a checkpoint.
    """
    return _about(path, read_header(path))


def _about(path: Path, header: Mapping[str, Any]) -> dict[str, Any]:
    if header.get("kind") != "checkpoint":
        raise ValueError(f"{path} is not a checkpoint but a {header.get('kind')!r}.")
    return header["about"]


def load_checkpoint(
    path: Path, like: Any, requested: Mapping[str, Any], *, members: slice = slice(None)
) -> tuple[Any, dict[str, Any]]:
    """Read a state that `save_checkpoint` wrote, if it belongs to the same run, and the file's whole description.

    `like` is a fresh state of the wanted members. Every entry of `requested`, the description of the run, must equal
    the file's. Raises a ValueError if the file is damaged, not a checkpoint, or of another run or version; the
    message names the difference.
    """
    tensors, header = read_tensors(path)
    description = _about(path, header)
    check_same_run(path, description, requested)
    # All tensors go to the device of the weights, also those that a fresh state does not hold yet.
    device = max(flatten(like)[0].values(), key=Tensor.numel).device
    wanted = {name: aligned(tensor[members] if tensor.ndim else tensor).to(device) for name, tensor in tensors.items()}
    numbers = {name: entry[members] if isinstance(entry, list) else entry for name, entry in header["numbers"].items()}
    try:
        state = restore(like, wanted, numbers)
        if more := sorted((wanted.keys() | numbers) - {name for group in flatten(state) for name in group}):
            raise ValueError(f"`{more[0]}` has no place")
    except ValueError as error:
        raise ValueError(
            f"{path} does not hold a state of this run: {error}. Resume with the network and the version of torchbayes "
            f"that wrote it, or start the run anew."
        ) from error
    return state, description


def check_same_run(path: Path, recorded: Mapping[str, Any], requested: Mapping[str, Any]) -> None:
    """Raise a ValueError that names every entry in which a description found at `path` differs from the requested run.

    Entries that only `recorded` has are ignored.
    """
    known = {key: entry for key, entry in requested.items() if key != CONSTANTS}
    clauses = differences({key: recorded.get(key) for key in known}, known)
    clauses += fingerprint_differences(recorded.get(CONSTANTS) or {}, requested.get(CONSTANTS) or {})
    if clauses:
        raise ValueError(
            f"{path} belongs to another run: {'; '.join(clauses[:5])}. "
            f"Resume with the same settings or choose another directory."
        )


def differences(recorded: Any, requested: Any, name: str = "") -> list[str]:
    """Return where nested descriptions differ, one clause each; `name` is the dotted name of the entry compared."""
    if isinstance(recorded, Mapping) and isinstance(requested, Mapping):
        keys = {**recorded, **requested}
        return [d for k in keys for d in differences(recorded.get(k), requested.get(k), f"{name}.{k}" if name else k)]
    return [] if recorded == requested else [f"its {name} is {recorded!r}, now {requested!r}"]
