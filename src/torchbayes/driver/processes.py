"""Shard: the members of a fit that this process holds, where several processes share them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from torchbayes.density.ranks import Ranks, check_equal
from torchbayes.driver.checkpoint import flatten, mapped


@dataclass(frozen=True)
class Shard:
    """A slice of the M axis of the whole fit."""

    members: int
    ranks: Ranks = field(default_factory=Ranks)

    @property
    def local(self) -> slice:
        """Members of this process."""
        return self.ranks.members(self.members)

    @property
    def count(self) -> int:
        """Number of members of this process."""
        start, stop, step = self.local.indices(self.members)
        return max(0, -((start - stop) // step))

    def gather(self, tensor: Tensor) -> Tensor:
        """Return a tensor (M, ...) of all members from each process's rows of it."""
        return self.ranks.gather(tensor, self.members)

    def whole(self, state: Any) -> Any:
        """Return the state of all members, on every process."""
        return state if self.ranks.chains == 1 else mapped(state, self.gather)

    def agree(self, choice: bool) -> bool:
        """Return the first process's choice, if the next operation needs all processes."""
        return choice if self.ranks.chains == 1 else self.ranks.agree(choice)

    def check_equal(self, state: Any) -> None:
        """Raise a ValueError if processes that share data hold different states."""
        if self.ranks.data > 1:
            check_equal(self.ranks, [t for t in flatten(state)[0].values() if t.is_floating_point()])
