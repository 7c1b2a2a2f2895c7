"""Names, shapes and offsets of the one flat vector that holds all random weights.

Masks say which elements of a parameter are random, where the others are constant.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from torchbayes.checks import seen
from torchbayes.model.precision import widened
from torchbayes.native.sharding import whole

Globs = str | Sequence[str]


def matches(name: str, globs: Globs) -> bool:
    """Return whether `name` matches any of the shell-style `globs` (`*` also crosses dots)."""
    return any(fnmatchcase(name, glob) for glob in ([globs] if isinstance(globs, str) else globs))


@dataclass(frozen=True)
class Layout:
    """Where each named tensor lies in the flat vector `weights`, whose last axis is D.

    Attributes:
        shapes: name -> shape, in the order of the vector.
    """

    shapes: Mapping[str, tuple[int, ...]]

    def __post_init__(self) -> None:
        # computed now: torch.compile cannot trace the lock that Python 3.11 takes around a cached property's first use
        _ = self.size, self.slices

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Layout:
        """Return the layout of named tensors, in their order."""
        return cls({name: tuple(tensor.shape) for name, tensor in tensors.items()})

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of elements of each tensor, in order."""
        return tuple(math.prod(shape) for shape in self.shapes.values())

    @cached_property
    def size(self) -> int:
        """D, the length of the flat vector."""
        return sum(self.sizes)

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Name -> slice of the last axis of `weights`."""
        bounds = pairwise(accumulate(self.sizes, initial=0))
        return {name: slice(*pair) for name, pair in zip(self.shapes, bounds, strict=True)}

    @property
    def names(self) -> tuple[str, ...]:
        """Names in the order of the vector."""
        return tuple(self.shapes)

    def split(self, weights: Tensor) -> dict[str, Tensor]:
        """Return named views (..., *shape) of `weights` (..., D); a gradient through them is again one flat tensor.

        Returns:
            name -> view. Nothing is copied.

        Raises:
            ValueError: if the last axis is not D.
        """
        if weights.shape[-1] != self.size:
            raise ValueError(
                f"`weights` must have {self.size} elements on its last axis, as the layout says; "
                f"got shape {tuple(weights.shape)}."
            )
        lead = weights.shape[:-1]
        parts = weights.split_with_sizes(self.sizes, dim=-1)
        shapes = zip(self.shapes.items(), parts, strict=True)
        return {n: flat if len(shape) == 1 else flat.view((*lead, *shape)) for (n, shape), flat in shapes}

    def join(self, tensors: Mapping[str, Tensor], *, out: Tensor | None = None) -> Tensor:
        """Return the flat vector (..., D) of named tensors (..., *shape) with equal leading axes: inverse of `split`.

        Args:
            tensors: name -> tensor, at least the names of this layout.
            out: tensor (..., D) to write to; a new one if None.

        Returns:
            Tensor (..., D).

        Raises:
            ValueError: if a name is missing or a shape differs from the layout.
        """
        missing = [name for name in self.shapes if name not in tensors]
        if missing:
            raise ValueError(f"`tensors` must hold every name of the layout; missing: {', '.join(missing)}.")
        parts = []
        for name, shape in self.shapes.items():
            tensor = tensors[name]
            lead = tensor.shape[: tensor.ndim - len(shape)]
            if tuple(tensor.shape[len(lead) :]) != tuple(shape):
                raise ValueError(f"`{name}` must end in shape {shape}; got {tuple(tensor.shape)}.")
            parts.append(tensor.reshape(*lead, math.prod(shape)))
        return torch.cat(parts, dim=-1, out=out)

    def select(self, globs: Globs) -> tuple[str, ...]:
        """Return the names that match one shell-style pattern or several, such as `"head.*"`, in order."""
        return tuple(name for name in self.shapes if matches(name, globs))

    def differences(self, other: Layout) -> list[str]:
        """Return how `other` differs from this layout: a clause for each name, or one if only the order differs."""
        clauses = [f"`{n}` is missing" for n in self.shapes if n not in other.shapes]
        clauses += [f"`{n}` is not expected" for n in other.shapes if n not in self.shapes]
        clauses += [
            f"`{n}` has shape {tuple(other.shapes[n])}, expected {tuple(shape)}"
            for n, shape in self.shapes.items()
            if n in other.shapes and tuple(other.shapes[n]) != tuple(shape)
        ]
        if not clauses and self.names != other.names:
            clauses.append("the names come in another order")
        return clauses

    def __add__(self, other: Layout) -> Layout:
        return Layout({**self.shapes, **other.shapes})


def weight_name(layout: Layout, index: int) -> str:
    """Return the name of the weight at an index of the flat vector, for example "1.weight[3, 17]"."""
    name, where = next((n, s) for n, s in layout.slices.items() if s.start <= index < s.stop)
    shape = layout.shapes[name]
    if not shape:
        return name
    places = torch.unravel_index(torch.tensor(index - where.start, device="cpu"), shape)
    return f"{name}[{', '.join(str(int(place)) for place in places)}]"


def only(names: Iterable[str], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the entries of `tensors` under `names`, in that order."""
    return {name: tensors[name] for name in names}


Random = Globs | Mapping[str, Tensor]
"""Globs of parameters, or the name of a parameter -> which of its elements, a bool tensor of its shape."""


@dataclass(frozen=True, eq=False)
class RandomMask:
    """Which elements of partly random parameters are random."""

    # parameter -> flat indices of the random elements, int64
    indices: Mapping[str, Tensor] = field(default_factory=dict)
    # parameter -> its tensor, at least float32, whose other elements are the constants
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, named: Mapping[str, Tensor], random: Random) -> RandomMask:
        """Return the mask that a mapping describes, without parameters whose elements are all random.

        The mask of globs is empty. It raises ValueError if a name is no parameter's, or a tensor is not a mask of its
        shape.
        """
        _check_random(random)
        if not isinstance(random, Mapping):
            return cls()
        indices = {}
        for name, mask in random.items():
            if name not in named:
                raise ValueError(f"`random` names `{name}`, which is no parameter; they are {', '.join(named)}.")
            if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != named[name].shape:
                seen = f"{mask.dtype} of shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else repr(mask)
                raise ValueError(
                    f"`random['{name}']` must be a bool tensor of shape {tuple(named[name].shape)}; got {seen}."
                )
            if not mask.all() and mask.any():
                indices[name] = mask.flatten().nonzero()[:, 0].to(named[name].device)
        return cls(indices, {name: widened(whole(named[name].detach()).clone()) for name in indices})

    def select(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the parameters, of which partly random ones are reduced to their random elements, (n,)."""
        return {n: t.flatten()[self.indices[n]] if n in self.indices else t for n, t in named.items()}

    def fill(self, views: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return parameters in their own shapes, with the constant elements filled in."""
        if not self.indices:
            return views
        filled = {
            n: self.tensors[n].flatten().index_copy(0, where, views[n].to(self.tensors[n])).view(self.tensors[n].shape)
            for n, where in self.indices.items()
            if n in views
        }
        return {**views, **filled}


def broadcasting(learned: Mapping[str, Tensor], outputs_SBK: Tensor) -> dict[str, Tensor]:
    """Return learned parameters of the likelihood, each (S, ...), so that they broadcast against outputs."""
    extra = [1] * (outputs_SBK.ndim - 2)  # B, and places of a sequence or an image
    return {name: value.view(len(value), *extra, *value.shape[1:]) for name, value in learned.items()}


def _check_random(random: Random) -> None:
    """Raise TypeError if `random` is neither a string, nor a sequence of strings, nor a mapping."""
    globs = [random] if isinstance(random, str) else random
    if not isinstance(globs, Mapping | list | tuple) or not all(isinstance(glob, str) for glob in globs):
        raise TypeError(f"`random` must be a glob such as 'head.*', several, or parameter -> mask; got {seen(random)}.")


def is_random(name: str, random: Random) -> bool:
    """Return whether any element of a parameter is random."""
    if isinstance(random, Mapping):
        return name in random and bool(random[name].any())
    return matches(name, random)


def names_of(random: Random) -> Globs:
    """Return the globs, or the names of a mapping, for a message."""
    return list(random) if isinstance(random, Mapping) else random
