"""Batches: rows of inputs and targets, the parts of the inputs that all rows share, and what a loader yields.

Inputs and targets are trees: a tensor, or a tuple or mapping of trees. The first axis of every tensor is the rows (the
second, after the members, where each member has its own rows). Tensors that all rows share, such as a table of context
or the edges of a graph, are wrapped in `Shared`; they reach the network unchanged and are never sliced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from torchbayes.checks import seen
from torchbayes.native.process import usable

NUMBERS = (
    "Where rows are not tensors, let the inputs be row numbers, torch.arange(B), next to what they number, named in "
    "`shared`, and the network return its outputs at those rows."
)
_TARGETS = ("labels", "label", "targets", "target")
_NAMED = 4  # how many tensors a message names at most


@dataclass(frozen=True, eq=False)
class Shared:
    """A part of the inputs that belongs to all rows; the network gets its `value`."""

    value: Any


class Batch(NamedTuple):
    """The rows that a step reads: a tuple, so it can be built by hand.

    Attributes:
        inputs: tensor (B, ...), or a tuple or mapping of such; (M, B, ...) when members have their own rows. Inputs
            that the model names in `shared` have neither axis.
        targets: tensor (B, ...), or a tuple or mapping of such, likewise.
    """

    inputs: Any
    targets: Any

    @property
    def size(self) -> int:
        """B, the number of rows (axis 0 of the inputs)."""
        return batch_size(self.inputs)

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """Return the batch with `function` applied to every tensor except those that all rows share."""
        return Batch(on_rows(function, self.inputs), on_rows(function, self.targets))


def on_rows(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """Return the tree with `function` applied to every tensor; shared parts and other leaves stay as they are."""
    if isinstance(tree, Tensor):  # most trees are one tensor, and walking a tree costs more than a small kernel
        return function(tree)
    return pytree.tree_map(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def rows_of(tree: Any, where: slice | int | Tensor) -> Any:
    """Return some rows of inputs or targets."""
    return on_rows(lambda tensor: tensor[where], tree)


def repeated(tree: Any, count: int) -> Any:
    """Return inputs or targets that consist of `count` copies of their first row."""
    return on_rows(lambda tensor: tensor[:1].expand(count, *tensor.shape[1:]).clone(), tree)


def in_chunks(batch: Batch, size: int | None, *, axis: int = 0) -> Iterator[Batch]:
    """Yield a batch, whose rows are on an axis of its tensors, in parts of at most `size` rows; whole if it is None."""
    rows = batch_size(batch.inputs, axis)
    if size is None or rows <= size:
        yield batch
        return
    for start in range(0, rows, size):
        where = (slice(None),) * axis + (slice(start, start + size),)
        yield batch.map(lambda t, where=where: t[where])


def row_axes(tree: Any, axis: int | None) -> Any:
    """Return `axis` for every tensor of the tree and None for everything else: the `in_dims` of `vmap`."""
    return pytree.tree_map(lambda leaf: axis if isinstance(leaf, Tensor) else None, tree)


def batch_size(tree: Any, axis: int = 0) -> int:
    """Return the number of rows, the length of an axis of the first unshared tensor; ValueError if there is none."""
    leaves = [tree] if isinstance(tree, Tensor) else pytree.tree_leaves(tree)
    first = next((leaf for leaf in leaves if isinstance(leaf, Tensor)), None)
    if first is None or first.ndim <= axis:
        raise ValueError(f"a batch needs a tensor whose first axis is that of the rows; got {seen(tree)}.")
    return first.shape[axis]


def unshared(tree: Any) -> Any:
    """Return the tree with shared parts unwrapped."""
    if isinstance(tree, Tensor):
        return tree
    return pytree.tree_map(lambda leaf: leaf.value if isinstance(leaf, Shared) else leaf, tree)


def arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword arguments that inputs (a tuple, a mapping or one tensor) stand for."""
    inputs = unshared(inputs)
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs), {}) if isinstance(inputs, tuple | list) else ((inputs,), {})


def copied(tree: Any) -> Any:
    """Return the tree with all tensors copied, shared ones too."""
    return pytree.tree_map_only(Tensor, torch.clone, unshared(tree))


def moved(tree: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Return a tree of tensors on a device, floating-point ones of a dtype; arrays, tables and numbers become tensors.

    In shared parts, other leaves such as flags are left unchanged. A leaf that is neither a tensor nor made of numbers
    is a TypeError.
    """

    def moved_leaf(leaf: Any) -> Any:
        if isinstance(leaf, Shared):
            array = (Tensor, np.ndarray)
            return Shared(pytree.tree_map(lambda x: moved_leaf(x) if isinstance(x, array) else x, leaf.value))
        if leaf is None:
            return None
        try:
            tensor = leaf if isinstance(leaf, Tensor) else torch.as_tensor(_in_order(leaf))
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(
                f"inputs and targets must be tensors, arrays or numbers; got {seen(leaf)}. {_advice(leaf)}"
            ) from error
        return usable(tensor.to(device, dtype) if tensor.is_floating_point() else tensor.to(device))

    return moved_leaf(tree) if isinstance(tree, Tensor) else pytree.tree_map(moved_leaf, tree, is_leaf=_is_packed)


def sent(inputs: Any, device: torch.device) -> Any:
    """Return inputs with all tensors on a device, shared ones too."""

    def sent_leaf(leaf: Any) -> Any:
        if isinstance(leaf, Shared):
            return Shared(sent(leaf.value, device))
        return leaf.to(device) if isinstance(leaf, Tensor) else leaf

    return pytree.tree_map(sent_leaf, inputs)


def _in_order(leaf: Any) -> Any:
    """Return a column or table of pandas as an array: torch would read it as a sequence, by labels, not rows."""
    return np.array(leaf) if hasattr(leaf, "__array__") and not isinstance(leaf, np.ndarray | np.generic) else leaf


def _is_packed(tree: Any) -> bool:
    return isinstance(tree, PackedSequence)


def _advice(leaf: Any) -> str:
    """Return what to do about an object that has no axis of rows."""
    if _is_packed(leaf):
        return "Give padded sequences and their lengths, and let the network pack them: pack_padded_sequence."
    return NUMBERS


def tensors_of(tree: Any) -> list[Tensor]:
    """Return all tensors of a tree, including shared ones."""
    return [leaf for leaf in pytree.tree_leaves(unshared(tree)) if isinstance(leaf, Tensor)]


def all_equal(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Return whether two lists hold equal tensors."""
    return len(tensors) == len(others) and all(map(torch.equal, tensors, others))


def with_shared(inputs: Any, names: Sequence[str | int]) -> Any:
    """Return inputs with the entries named in `names` wrapped in `Shared`: keys of a mapping, or positions in a tuple.

    It raises ValueError if the inputs do not have such an entry, or no other one.
    """
    if not names:
        return inputs
    if isinstance(inputs, Mapping):
        entries: dict[Any, Any] = dict(inputs)
    else:
        entries = dict(enumerate(inputs if isinstance(inputs, tuple | list) else [inputs]))
    missing = [name for name in names if name not in entries]
    if missing:
        raise ValueError(
            f"`shared` names {missing[0]!r}, which the inputs do not have; they have "
            f"{', '.join(repr(name) for name in entries)}. Name keys of a mapping, or places in a tuple."
        )
    if len(entries) == len(set(names)):
        raise ValueError(f"`shared` names all inputs, {', '.join(map(repr, names))}, so none has rows. {NUMBERS}")
    for name in names:
        if not isinstance(entries[name], Shared):
            entries[name] = Shared(entries[name])
    return entries if isinstance(inputs, Mapping) else tuple(entries.values())


def check_rows(tree: Any, name: str = "inputs") -> None:
    """Raise ValueError if tensors differ in their number of rows, or have no axis of rows."""
    if isinstance(tree, Tensor) and tree.ndim:
        return
    leaves = [each for each in pytree.tree_flatten_with_path(tree)[0] if not isinstance(each[1], Shared | None)]
    sizes = [(path, tuple(np.shape(leaf))[:1]) for path, leaf in leaves]
    if len({size for _, size in sizes}) < 2 and (not sizes or sizes[0][1]):
        return
    if any(isinstance(leaf, int | float) for _, leaf in leaves):
        raise ValueError(
            f"the {name} must be tensors or arrays; got {len(leaves)} separate values, {_listed(sizes, name)}. "
            f"Make one tensor of a list of numbers: torch.as_tensor."
        )
    shared = " What all rows share is named to the model: Model(..., shared=...)." if name == "inputs" else ""
    raise ValueError(f"every tensor of the {name} must have the same number of rows; {_listed(sizes, name)}.{shared}")


def _listed(sizes: Sequence[tuple[Any, tuple[int, ...]]], label: str) -> str:
    """Return the leaves and their numbers of rows: at most four, and first one leaf for each number."""
    first = {size: index for index, (_, size) in reversed([*enumerate(sizes)])}
    chosen = sorted([*first.values(), *(set(range(len(sizes))) - {*first.values()})][:_NAMED])
    named = [(_named(sizes[n][0], label), sizes[n][1]) for n in chosen]
    text = ", ".join(f"{name} has {size[0] if size else 'no row axis'}" for name, size in named)
    return text + (", …" if len(sizes) > _NAMED else "")


def check_equally_many(batch: Batch) -> None:
    """Raise ValueError if inputs and targets differ in their number of rows."""
    if (rows := batch.size) != (seen := batch_size(batch.targets)):
        raise ValueError(f"inputs and targets must have equally many rows; got {rows}, {seen}.")


def check_outputs(run: Callable[[Any], Tensor], inputs: Any, outputs: Tensor) -> None:
    """Raise ValueError if the first axis of a network's outputs is not that of the rows.

    If another axis is as long, the network (`run`) is tried with another number of rows, which it need not accept.
    """
    rows = batch_size(inputs)
    pairs = [(len(outputs), rows)]
    if rows in outputs.shape[1:]:
        other_rows = 2 if rows != 2 else 3
        with suppress(Exception):
            pairs.append((len(run(repeated(inputs, other_rows))), other_rows))
    for made, expected in pairs:
        if made != expected:
            raise ValueError(f"the network must give one output row per input row; got {made} for {expected}.")


def stack(batches: Sequence[Batch]) -> Batch:
    """Return the members' batches stacked along a new first axis M; ValueError if their shared inputs differ."""
    return _joined(batches, torch.stack) if len(batches) > 1 else batches[0].map(lambda t: t.unsqueeze(0))


def concatenate(batches: Sequence[Batch]) -> Batch:
    """Return the rows of all batches; ValueError if their shared inputs, or the shapes of their rows, differ."""
    return _joined(batches, _concatenated) if len(batches) > 1 else batches[0]


def check_alike(first: Any, tree: Any, name: str) -> None:
    """Raise ValueError if rows differ in shape from those of the first batch, so that they cannot be joined."""
    before, here = ([tuple(t.shape[1:]) for t in tensors_of(rows)] for rows in (first, tree))
    for old_shape, new_shape in zip(before, here, strict=True):
        if old_shape != new_shape:
            raise ValueError(
                f"the {name} of all batches must have one shape a row; got {new_shape} after {old_shape}. Pad all "
                f"batches to one length, or take them one by one with `stream`. `evaluate` takes labels of any length "
                f"where the likelihood leaves padding out: Categorical(ignore_index=-100)."
            )


def padded(tensors: Sequence[Tensor], value: float) -> list[Tensor]:
    """Return tensors (B, ...) padded by a value to the longest length along each axis but the first."""
    longest = [max(sizes) for sizes in zip(*(t.shape[1:] for t in tensors), strict=True)]

    def padded_tensor(tensor: Tensor) -> Tensor:
        ends = [want - have for want, have in zip(longest, tensor.shape[1:], strict=True)]
        return F.pad(tensor, [n for end in reversed(ends) for n in (0, end)], value=value)

    return [padded_tensor(tensor) for tensor in tensors]


def _concatenated(tensors: Sequence[Tensor]) -> Tensor:
    for tensor in tensors[1:]:
        check_alike(tensors[0], tensor, "tensors")
    return torch.cat([*tensors])


def _joined(batches: Sequence[Batch], join: Callable[..., Tensor]) -> Batch:
    def joined_leaves(*leaves: Any) -> Any:
        if isinstance(leaves[0], Tensor):
            return join(leaves)
        if isinstance(leaves[0], Shared) and not all(_equal(leaf, leaves[0]) for leaf in leaves[1:]):
            raise ValueError(
                "an input that all rows share must be the same in every batch that is read together, and is not. Fit "
                "one member on minibatches, give a list of batches, or make it an input with rows."
            )
        return leaves[0]

    return pytree.tree_map(joined_leaves, *batches)


def _equal(first: Shared, second: Shared) -> bool:
    return first.value is second.value or all_equal(tensors_of(first), tensors_of(second))


def _named(path: Any, name: str) -> str:
    """Return a name for a leaf, such as `context` or `inputs[1]`."""
    text = pytree.keystr(path)
    simple = text.startswith("['") and text.endswith("']") and text.count("[") == 1
    return f"`{text[2:-2]}`" if simple else f"`{name}{text}`"


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
