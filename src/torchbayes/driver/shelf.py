"""The shelf of a run holds its draws, in memory or in the run directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchbayes.driver.processes import Shard
from torchbayes.model.model import Model
from torchbayes.posteriors.load import read_draws
from torchbayes.posteriors.posterior import Posterior, packed
from torchbayes.posteriors.store import DrawFile


class MemoryShelf:
    """Draws kept in memory. Where several processes share the members, each of them keeps the draws of all."""

    def __init__(self, shard: Shard) -> None:
        """Make an empty shelf, for the members of this process."""
        self._shard = shard
        self._draws: list[Tensor] = []

    def add(self, weights_MD: Tensor | None) -> None:
        """Keep a copy of the weights; None is ignored."""
        if weights_MD is not None:
            self._draws.append(self._shard.gather(weights_MD.clone()))

    @property
    def count(self) -> int | None:
        """Number of draws that a checkpoint can rely on; None, because draws in memory do not outlive the process."""
        return None

    @property
    def whole(self) -> bool:
        """Whether all draws could be kept."""
        return True

    def sync(self) -> None:
        """Do nothing, because there is no disk."""

    def weights_MSD(self) -> Tensor:
        """Return the draws, (M, S, D), a view of memory in the order (S, M, D) in which they were taken."""
        if not self._draws:
            raise ValueError(_NONE)
        return torch.stack(self._draws).transpose(0, 1)

    def packed(self, posterior: Posterior) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors and the header of the posterior's file."""
        return packed(posterior)


class DiskShelf:
    """Draws streamed to a run directory by the first process, from which all of them are read."""

    def __init__(self, model: Model, shard: Shard, *, directory: Path, run: str, count: int = 0) -> None:
        """Continue the draws of a run from the `count` in its checkpoint, or begin.

        Later draws, of a run that was killed, are dropped.
        """
        self._model, self._shard, self._directory = model, shard, directory
        self._file: DrawFile | None = None
        self._taken = count
        self._read: Tensor | None = None
        if shard.ranks.first:
            like_MD = torch.empty((), dtype=model.network.dtype).expand(shard.members, model.layout.size)
            self._file = DrawFile.create(directory, like_MD, model.layout.shapes, run=run)
            self._file.truncate(count)

    def add(self, weights_MD: Tensor | None) -> None:
        """Write the weights to disk; None is ignored."""
        if weights_MD is None:
            return
        self._taken += 1
        whole_MD = self._shard.gather(weights_MD)
        if self._file is not None:
            self._file.append(whole_MD)

    @property
    def count(self) -> int | None:
        """Number of draws of each member on disk; None in processes that do not write."""
        return None if self._file is None else len(self._file)

    @property
    def whole(self) -> bool:
        """Whether all draws could be written."""
        return self._file is None or len(self._file) >= self._taken

    def sync(self) -> None:
        """Wait until all draws are physically on disk."""
        if self._file is not None:
            self._file.sync()

    def weights_MSD(self) -> Tensor:
        """Return the draws, (M, S, D), mapped into memory where the model is on a CPU."""
        self._shard.ranks.wait()
        if self._read is None:
            self._read = read_draws(self._directory, self._model)
        if not self._read.shape[1]:
            raise ValueError(_NONE)
        return self._read

    def packed(self, posterior: Posterior) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors and the header of the posterior's file, which refers to the file of draws next to it."""
        tensors, header = packed(posterior)
        if self._read is None or tensors.get(_DRAWS) is not self._read:  # the posterior holds other draws
            return tensors, header
        others = {name: tensor for name, tensor in tensors.items() if name != _DRAWS}
        settings: Mapping[str, Any] = {**header["settings"], "draws": self.count, "beside": True}
        return others, {**header, "settings": settings}


_DRAWS = "weights_MSD"  # a posterior's tensor that may stay in the file of draws
_NONE = "the run ended within its burn-in, before weights were kept. Resume it with more steps."
Shelf = MemoryShelf | DiskShelf
