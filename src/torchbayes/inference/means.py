"""What is averaged over the steps of an epoch for its line of the log."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Means:
    """Sums over the steps of an epoch of the numbers that a method's `Info` names.

    Attributes:
        count: steps so far.
    """

    def __init__(self, count: int, totals: dict[str, Tensor]) -> None:
        """Go on from earlier sums."""
        self.count, self._totals = count, totals

    @classmethod
    def restored(cls, sums: dict[str, Any] | None) -> Means:
        """Return sums as a checkpoint kept them; empty ones for None."""
        if sums is None:
            return cls(0, {})
        return cls(sums["count"], {n: torch.tensor(t, dtype=torch.float64) for n, t in sums["totals"].items()})

    @property
    def sums(self) -> dict[str, Any]:
        """The sums as JSON-serialisable lists, one number per member."""
        return {"count": self.count, "totals": {name: total.tolist() for name, total in self._totals.items()}}

    def add(self, info: Any) -> None:
        """Add what a step saw: the tensors (M,) of `info.means()`."""
        for name, seen_M in info.means().items():
            value_M = seen_M.detach().double().cpu()
            self._totals[name] = self._totals[name] + value_M if name in self._totals else value_M
        self.count += 1

    def values(self) -> dict[str, list[float]]:
        """Return the means by name, one number per member."""
        return {name: (total / self.count).tolist() for name, total in self._totals.items()}
