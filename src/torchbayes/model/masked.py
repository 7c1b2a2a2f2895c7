"""Masks of random weights: parameters of which only some elements are random, the others constant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchbayes.checks import seen
from torchbayes.model.layout import Globs, matches
from torchbayes.model.precision import widened

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
        return cls(indices, {name: widened(named[name].detach().clone()) for name in indices})

    def select(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the parameters, of which partly random ones are reduced to their random elements, (n,)."""
        return {n: t.flatten()[self.indices[n]] if n in self.indices else t for n, t in named.items()}

    def fill(self, views: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return parameters in their own shapes, with the constant elements filled in."""
        if not self.indices:
            return views
        filled = {
            n: self
            .tensors[n]
            .flatten()
            .index_copy(0, where, views[n].to(self.tensors[n].dtype))
            .view(self.tensors[n].shape)
            for n, where in self.indices.items()
            if n in views
        }
        return {**views, **filled}


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
