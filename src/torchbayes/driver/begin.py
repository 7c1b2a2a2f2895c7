"""The weights, buffers and seeds at which the members of a run begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import Tensor

from torchbayes.methods.optimise.learned import at_least
from torchbayes.methods.protocol import Method, Spreading
from torchbayes.model.network import Buffers


@dataclass(frozen=True)
class Begin:
    """Weights, buffers and seeds of members before the first step."""

    weights_MD: Tensor  # of each member, or of all networks at which a member begins, one after the other
    buffers: Buffers  # of the network at these weights, (M, ...)
    seeds: Sequence[int]  # one per member
    scale_MD: Tensor | None = None  # standard deviations to begin with; None for the method's own

    def some(self, members: slice, modes: int = 1) -> Begin:
        """Return some of the members, each of which begins at `modes` networks."""
        first, end, _ = members.indices(len(self.seeds))
        rows = slice(modes * first, modes * end)
        return replace(
            self,
            weights_MD=self.weights_MD[rows],
            buffers={name: buffer[rows] for name, buffer in self.buffers.items()},
            seeds=self.seeds[members],
            scale_MD=None if self.scale_MD is None else self.scale_MD.expand(len(self.seeds), -1)[rows],
        )

    def with_learned(self, least: Sequence[float] | None) -> Begin:
        """Return a copy whose learned parameters of the likelihood are at least these, where any are given."""
        return replace(self, weights_MD=at_least(self.weights_MD, least))

    def state(self, method: Method, density: Any, steps_per_epoch: int) -> Any:
        """Return the state of a method before its first step."""
        options = {"seeds": self.seeds, "steps_per_epoch": steps_per_epoch}
        state = method.init(density, self.weights_MD, self.buffers, **options)
        if self.scale_MD is None:
            return state
        return cast(Spreading, method).spread(density, state, self.scale_MD)
