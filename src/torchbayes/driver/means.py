"""Averages over the steps of an epoch, for its line of the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torchbayes.driver.processes import Shard


class Means:
    """Sums over the steps of an epoch of the numbers that a method's `Info` names.

    Attributes:
        count: steps so far.
    """

    def __init__(self, shard: Shard, found: Mapping[str, Any] | None = None) -> None:
        """Start at zero, or from the sums in a checkpoint.

        Args:
            shard: the members of this process.
            found: sums as `sums` returned them.
        """
        self._shard = shard
        totals = found["totals"] if found else {}
        self.count: int = found["count"] if found else 0
        self._totals = {n: torch.tensor(t[shard.local], dtype=torch.float64) for n, t in totals.items()}

    def sums(self) -> dict[str, Any]:
        """Return the sums as JSON-serialisable lists, one number per member of the fit."""
        return {"count": self.count, "totals": self._gathered()}

    def add(self, info: Any) -> None:
        """Add what a step reported: the tensors (M,) of `info.means()`."""
        for name, seen_M in info.means().items():
            value_M = seen_M.detach().double()  # stays on its device: to look at it here would wait for a GPU
            total_M = self._totals.get(name)
            self._totals[name] = value_M if total_M is None else total_M.to(value_M.device) + value_M
        self.count += 1

    def values(self) -> dict[str, list[float]]:
        """Return the means by name, one number per member of the fit."""
        return {name: [number / self.count for number in totals] for name, totals in self._gathered().items()}

    def _gathered(self) -> dict[str, list[float]]:
        if not self._totals:
            return {}
        totals = torch.stack([total_M.cpu() for total_M in self._totals.values()], dim=1)
        whole_NM = self._shard.gather(totals).mT
        return dict(zip(self._totals, whole_NM.tolist(), strict=True))
