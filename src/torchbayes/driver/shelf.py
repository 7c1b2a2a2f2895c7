"""The weights a sampler keeps: in memory, or streamed to the run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchbayes.driver.log import records
from torchbayes.driver.processes import Share
from torchbayes.methods.mcmc.health import Seen
from torchbayes.methods.sampler import Sampler
from torchbayes.model.model import Model
from torchbayes.posteriors.draws import Draws
from torchbayes.posteriors.load import read_draws
from torchbayes.posteriors.posterior import header_of
from torchbayes.posteriors.store import DrawFile


class Kept:
    """Draws of a run, in the order they are taken.

    Where several processes share the chains, all of them keep all draws in memory, or the first writes all to disk.
    """

    def __init__(
        self, model: Model, method: Sampler, state: Any, *, directory: Path | None, share: Share, run: str = ""
    ) -> None:
        """Take up the draws of the steps before `state`; those after it, of a run that was killed, are forgotten."""
        self._model, self._method, self._directory, self._share = model, method, directory, share
        self._like_MD: Tensor = share.gather(state.weights_MD)
        self._memory: list[Tensor] = []
        self._file: DrawFile | None = None
        before = [] if directory is None else [r for r in records(directory) if r["step"] <= state.step]
        self.seen = Seen(method.burn_in, before)
        if directory is not None and share.ranks.first:
            self._file = DrawFile.create(directory, self._like_MD, model.layout.shapes, run=run)
            self._file.truncate(method.kept(state.step))

    def add(self, state: Any) -> None:
        """Keep the weights of a state if the method says so."""
        if not self._method.keeps(state.step):
            return
        weights_MD = self._share.gather(state.weights_MD)
        if self._file is not None:
            self._file.append(weights_MD)
        elif self._directory is None:
            self._memory.append(weights_MD.clone())

    def holds(self, state: Any) -> bool:
        """Return whether the weights of a state, if it is kept, and all before them could be written."""
        return self._file is None or self.count >= self._method.kept(state.step)

    @property
    def count(self) -> int:
        """Number of weights of each chain that are on disk."""
        return 0 if self._file is None else len(self._file)

    def sync(self) -> None:
        """Wait until all draws are on the disk itself."""
        if self._file is not None:
            self._file.sync()

    def posterior(self) -> Draws:
        """Return the draws as a posterior; those on disk are mapped into memory.

        Raises:
            ValueError: if there are none yet.
        """
        self._share.ranks.wait()
        if self._directory is not None:
            weights_MSD = read_draws(self._directory, self._model)
        else:
            # draw after draw, as in the file: all of them then are one view (S M, D)
            weights_MSD = torch.stack(self._memory).transpose(0, 1) if self._memory else self._like_MD[:, None][:, :0]
        if not weights_MSD.shape[1]:
            raise ValueError("the run ended within its burn-in, before weights were kept. Resume it with more steps.")
        weights_MSD = weights_MSD.to(self._model.network.device)
        return Draws(self._model, weights_MSD)

    def header(self, posterior: Draws) -> dict[str, Any]:
        """Return the header of a posterior file without tensors, which refers to the draws beside it."""
        return {**header_of(posterior, {"draws": self.count, "beside": True}), "statistics_known": True}
