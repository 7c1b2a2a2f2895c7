"""Where the members of a run begin."""

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
    """Weights, buffers and seeds of members before the first step.

    Attributes:
        weights_MD: weights of each member, or of the networks that a member begins at, one after the other.
        buffers: the network's buffers there, (M, ...).
        seeds: one seed per member.
        scale_MD: standard deviations to begin with; None for the method's own.
    """

    weights_MD: Tensor
    buffers: Buffers
    seeds: Sequence[int]
    scale_MD: Tensor | None = None

    def some(self, members: slice, modes: int = 1) -> Begin:
        """Return some of the members.

        Args:
            members: which of them, one after the other.
            modes: networks that each of them begins at.
        """
        first, end, _ = members.indices(len(self.seeds))
        where = slice(modes * first, modes * end)
        return replace(
            self,
            weights_MD=self.weights_MD[where],
            buffers={name: buffer[where] for name, buffer in self.buffers.items()},
            seeds=self.seeds[members],
            scale_MD=None if self.scale_MD is None else self.scale_MD.expand(len(self.seeds), -1)[where],
        )

    def with_learned(self, least: Sequence[float] | None) -> Begin:
        """Return the same with learned parameters of the likelihood that are at least these, where any are given."""
        return replace(self, weights_MD=at_least(self.weights_MD, least))

    def state(self, method: Method, density: Any, steps_per_epoch: int) -> Any:
        """Return the state of a method before its first step."""
        about = {"seeds": self.seeds, "steps_per_epoch": steps_per_epoch}
        state = method.init(density, self.weights_MD, self.buffers, **about)
        if self.scale_MD is None:
            return state
        return cast(Spreading, method).spread(density, state, self.scale_MD)
