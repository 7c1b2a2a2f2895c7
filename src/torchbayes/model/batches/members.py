"""Batches of several members, collated so that they can be stacked.

Collation may pad each batch to its own longest row. Members have different rows, so their batches may differ in width;
then the rows of all members are collated together, which pads them to the longest of all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Size

from torchbayes.model.batches.batch import Batch, stack, tensors_of


@dataclass(frozen=True)
class ForMembers:
    """Collates the rows of M members for one step; a function of the rows alone, whatever was read before."""

    collate: Callable[[list[Any]], Any]
    members: int

    def __call__(self, rows: list[Any]) -> list[Any]:
        """Return the batch of each member, or one batch of all of them if these differ in shape.

        `rows` are equally many of each member, member by member.
        """
        size = len(rows) // self.members
        each = [self.collate(rows[start : start + size]) for start in range(0, len(rows), size)]
        return each if len({_shapes(batch) for batch in each}) == 1 else [self.collate(rows)]


def for_members(found: Sequence[Batch], members: int, size: int) -> Batch:
    """Return the batches of all members, (M, B, ...), from what `ForMembers` collated, unpacked; B is `size`.

    It raises ValueError if one batch of all members has another number of rows than M B.
    """
    if len(found) == members:
        return stack(found)
    (whole,) = found
    if whole.size != members * size:
        raise ValueError(
            f"the batches of the {members} members differ in shape, and collated together their {members * size} rows "
            f"make {whole.size}. Let `collate_fn` make one row of each, in their order, or fit one member at a time."
        )
    return whole.map(lambda tensor: tensor.unflatten(0, (members, size)))


def _shapes(batch: Any) -> tuple[Size, ...]:
    return tuple(tensor.shape for tensor in tensors_of(dict(batch) if isinstance(batch, Mapping) else batch))
