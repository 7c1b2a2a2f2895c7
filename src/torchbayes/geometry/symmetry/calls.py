"""One call of an operator: its arguments and results, and the axes of units that they have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from torchbayes.geometry.symmetry.units import Axis, Ties, fixed, is_fixed

Axes = list[Axis]


@dataclass(frozen=True)
class Call:
    """One call of an operator."""

    name: str  # without the overload, such as "addmm"
    values: Mapping[str, Any]  # arguments by name
    out: Any  # what it returned
    ties: Ties
    axes_of: Callable[[Tensor], Axes]  # tensor -> its axes
    used: Callable[[Tensor, int], None]  # called with activations and an axis that they are summed over with weights
    pointwise: bool  # whether PyTorch says that it works element by element

    def tensor(self, *names: str) -> Tensor:
        """Return the first argument that exists under one of these names."""
        return next(self.values[name] for name in names if name in self.values)

    def axes(self, *names: str) -> Axes:
        """Return the axes of the first argument that exists under one of these names."""
        return list(self.axes_of(self.tensor(*names)))

    @property
    def tensors(self) -> list[Tensor]:
        """All arguments that are tensors, those in lists too."""
        return [value for value in pytree.tree_leaves(dict(self.values)) if isinstance(value, Tensor)]

    @property
    def results(self) -> list[Tensor]:
        """All tensors it returned."""
        return [value for value in pytree.tree_leaves(self.out) if isinstance(value, Tensor)]

    def fix(self, axis: Axis) -> None:
        """Fix the order of an axis, because of this operator."""
        self.ties.fix(axis, f"the operator {self.name} depends on the order of units")


def shaped(sizes: Sequence[int]) -> Axes:
    """Return axes in fixed order."""
    return [fixed(size) for size in sizes]


def broadcast(call: Call, tensors: Sequence[Tensor], ndim: int) -> Axes:
    """Join the axes of tensors that are combined element by element, and return the `ndim` axes of the result."""
    joined: list[Axis | None] = [None] * ndim
    for tensor in tensors:
        for back, axis in enumerate(reversed(call.axes_of(tensor)), 1):
            if tensor.shape[-back] != 1:
                known = joined[-back]
                joined[-back] = axis if known is None else call.ties.join(known, axis)
    return [fixed(1) if axis is None else call.ties.resolved(axis) for axis in joined]


def moving(call: Call) -> Iterator[Axis]:
    """Yield the axes of the arguments that are not in fixed order."""
    for tensor in call.tensors:
        for axis in call.axes_of(tensor):
            if not is_fixed(resolved := call.ties.resolved(axis)):
                yield resolved


def pointwise(func: Any) -> bool:
    """Return whether PyTorch says that an operator works element by element."""
    return torch.Tag.pointwise in func.tags
