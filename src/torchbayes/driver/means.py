"""Averages over the steps of an epoch, for its line of the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torchbayes.driver.processes import Shard


class Means:
    """Sums over the steps of an epoch of the numbers that a method's `Info` names; `count` is the number of steps."""

    def __init__(self, shard: Shard, found: Mapping[str, Any] | None = None) -> None:
        """Start at zero, or from the sums in a checkpoint, as `sums` returned them."""
        self._shard = shard
        totals = found["totals"] if found else {}
        self.count: int = found["count"] if found else 0
        self._totals = {n: torch.tensor(t[shard.local], dtype=torch.float64) for n, t in totals.items()}

    def sums(self) -> dict[str, Any]:
        """Return the sums as JSON-serialisable lists, one number per member of the fit."""
        return {"count": self.count, "totals": self._gathered()}

    def add(self, info: Any) -> None:
        """Add the report of a step: the tensors (M,) of `info.means()`."""
        for name, number_M in info.means().items():
            value_M = number_M.detach().double()  # stays on its device, because reading it would wait for a GPU
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
