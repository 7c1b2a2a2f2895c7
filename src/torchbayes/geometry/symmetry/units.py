"""Which positions along the axes of tensors are the same units, found by joining axes one after another.

An axis is a list of segments. A segment has some units, each with `inner` neighbouring positions: the axis of a
linear layer behind 50 flattened channels of 4x4 pixels is one segment of 50 units with 16 positions each. Axes that
must be in the same order, such as those of tensors that are added, have their segments joined. If they can only be
joined in a fixed order, they become fixed. Every axis begins free, so units that are still free at the end may be
permuted. What an operator does to axes is a rule, a function of its `Call`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils import _pytree as pytree


class Segment(NamedTuple):
    """Neighbouring positions of an axis."""

    group: int | None  # number of the group of units; None where the order is fixed
    units: int
    inner: int = 1  # positions of each unit

    @property
    def size(self) -> int:
        """Number of positions."""
        return self.units * self.inner


Axis = tuple[Segment, ...]
Axes = list[Axis]


def fixed(size: int) -> Axis:
    """Return an axis in fixed order."""
    return (Segment(None, size),)


def shaped(sizes: Sequence[int]) -> Axes:
    """Return axes in fixed order."""
    return [fixed(size) for size in sizes]


def widened(axis: Axis, factor: int) -> Axis:
    """Return an axis with so many positions in the place of each."""
    return tuple(
        Segment(None, s.size * factor) if s.group is None else s._replace(inner=s.inner * factor) for s in axis
    )


def is_fixed(axis: Axis) -> bool:
    """Return whether all of a resolved axis is in fixed order."""
    return all(segment.group is None for segment in axis)


class Ties:
    """Groups of units, and the axis that each was found to consist of."""

    def __init__(self) -> None:
        self._next = 0
        self._parts: dict[int, Axis] = {}
        self.reasons: dict[str, None] = {}  # an ordered set

    def free(self, count: int) -> Axis:
        """Return an axis of units that may be in any order until they are joined or fixed."""
        if count < 2:
            return fixed(count)
        self._next += 1
        return (Segment(self._next - 1, count),)

    def resolved(self, axis: Axis) -> Axis:
        """Return an axis in groups that are neither divided nor joined to others; fixed neighbours become one."""
        segments: list[Segment] = []
        for segment in axis:
            for opened in self._opened(segment):
                if opened.group is None and segments and segments[-1].group is None:
                    segments[-1] = Segment(None, segments[-1].units + opened.size)
                else:
                    segments.append(opened)
        return tuple(segments)

    def _opened(self, segment: Segment) -> Axis:
        group, count, inner = segment
        if group is None or count == 1:
            return fixed(count * inner)
        if group not in self._parts:
            return (segment,)
        self._parts[group] = self.resolved(self._parts[group])
        return widened(self._parts[group], inner)

    def fix(self, *axes: Axis, why: str = "") -> None:
        """Fix the order of axes, and note the reason if it may surprise."""
        for segment in (segment for axis in axes for segment in self.resolved(axis)):
            if segment.group is not None:
                self._parts[segment.group] = fixed(segment.units)
                if why:
                    self.reasons[why] = None

    def join(self, one: Axis, other: Axis) -> Axis:
        """Put two axes of equal size in the same order, and return that axis, resolved."""
        mine, yours = list(self.resolved(one)), list(self.resolved(other))
        while mine and yours:
            a, b = mine[0], yours[0]
            if a.group is None and b.group is None:
                step = min(a.units, b.units)
                mine[:1] = fixed(a.units - step) if a.units > step else ()
                yours[:1] = fixed(b.units - step) if b.units > step else ()
            elif a.size == b.size and a.group == b.group:
                del mine[0], yours[0]
            else:
                self._reconcile(a, b)
                mine, yours = list(self.resolved(tuple(mine))), list(self.resolved(tuple(yours)))
        return self.resolved(one)

    def _reconcile(self, a: Segment, b: Segment) -> None:
        """Bind or divide the groups of two different segments that begin at the same position."""
        if a.group is None or (b.group is not None and a.size < b.size):
            a, b = b, a
        assert a.group is not None
        if b.group is None:
            self._divide(a, -(-b.size // a.inner), then_fix=True)
        elif a.size > b.size:
            if b.size % a.inner:
                self.fix((a, b), why="units of different size share an axis")
            else:
                self._divide(a, b.size // a.inner)
        elif a.inner % b.inner == 0 and (a.inner != b.inner or a.group < b.group):
            self._parts[b.group] = (Segment(a.group, a.units, a.inner // b.inner),)
        elif b.inner % a.inner == 0:
            self._parts[a.group] = (Segment(b.group, b.units, b.inner // a.inner),)
        else:
            self.fix((a, b), why="units of different size share an axis")

    def _divide(self, segment: Segment, first: int, then_fix: bool = False) -> None:
        """Divide a group of units after the first few, which may be fixed."""
        assert segment.group is not None
        first = min(first, segment.units)
        rest = self.free(segment.units - first) if first < segment.units else ()
        self._parts[segment.group] = (*(fixed(first) if then_fix else self.free(first)), *rest)

    def merged(self, axes: Sequence[Axis], sizes: Sequence[int]) -> Axis:
        """Return the axis that several become when they are flattened into one."""
        axes = [self.resolved(axis) for axis in axes]
        moving = [k for k, axis in enumerate(axes) if not is_fixed(axis)]
        self.fix(*(axes[k] for k in moving[1:]), why="two axes of units are flattened into one")
        if not moving:
            return fixed(math.prod(sizes))
        k = moving[0]
        inner, outer = math.prod(sizes[k + 1 :]), math.prod(sizes[:k])
        return widened(axes[k], inner) * outer

    def split(self, axis: Axis, sizes: Sequence[int]) -> list[Axis]:
        """Return the axes that one becomes when it is unflattened.

        If its units do not lie along one of them, they move along the last of two, as in each head of attention, or
        the first of more, as channels before places, in the same order at all positions of the others.
        """
        axis = self.resolved(axis)
        if is_fixed(axis):
            return [fixed(size) for size in sizes]
        wide = [k for k, size in enumerate(sizes) if size > 1]
        chosen = next((k for k in wide if self._lies_along(axis, sizes, k)), wide[-1] if len(wide) == 2 else wide[0])
        unit = self.free(sizes[chosen])
        inner, outer = math.prod(sizes[chosen + 1 :]), math.prod(sizes[:chosen])
        if not is_fixed(unit):
            self.join(widened(unit, inner) * outer, axis)
        return [self.resolved(unit) if k == chosen else fixed(size) for k, size in enumerate(sizes)]

    @staticmethod
    def _lies_along(axis: Axis, sizes: Sequence[int], k: int) -> bool:
        wanted = sizes[k], math.prod(sizes[k + 1 :])
        alike = len(set(axis)) == 1 and len(axis) == math.prod(sizes[:k])
        return alike and (axis[0].units, axis[0].inner) == wanted

    def reshaped(self, axes: Sequence[Axis], old: Sequence[int], new: Sequence[int]) -> list[Axis]:
        """Return the axes of a tensor in another shape."""
        if 0 in old or 0 in new:
            return [fixed(size) for size in new]
        axes_made: list[Axis] = []
        i = j = 0
        while i < len(old) or j < len(new):
            a, b = i, j
            left = right = 1
            while left != right or (a == i and b == j):
                if (left <= right and a < len(old)) or b == len(new):
                    left, a = left * old[a], a + 1
                else:
                    right, b = right * new[b], b + 1
            if a - i == 1 and b - j == 1:
                axes_made.append(self.resolved(axes[i]))
            else:
                axes_made += self.split(self.merged(axes[i:a], old[i:a]), new[j:b]) if b > j else []
            i, j = a, b
        return axes_made


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

    def fix(self, *axes: Axis) -> None:
        """Fix the order of axes, because of this operator."""
        self.ties.fix(*axes, why=f"the operator {self.name} depends on the order of units")


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
