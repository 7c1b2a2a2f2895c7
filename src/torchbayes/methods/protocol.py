"""Method: frozen settings of one way to infer, plus its pure `step`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.model.model import Batch
from torchbayes.model.network import Buffers
from torchbayes.posteriors.posterior import Posterior


class Method(Protocol):
    """What `fit` needs of a method. Settings are fields of a frozen dataclass; there is no other state."""

    @property
    def members(self) -> int:
        """M, independent runs."""
        ...

    @property
    def epochs(self) -> int | None:
        """Passes over the data; None for the usual length, of `descent.epochs_of`."""
        ...

    @property
    def batch_size(self) -> int:
        """Rows per step where the data do not bring their own batches."""
        ...

    @property
    def plan(self) -> Any:
        """How the stack of members is run: auto, native, loop, vmap or compiled."""
        ...

    def init(
        self, density: LogDensity, weights_MD: Tensor, buffers: Buffers, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> Any:
        """Return the state before the first step."""
        ...

    def step(self, density: LogDensity, state: Any, batch: Batch, *, donate: bool = False) -> tuple[Any, Any]:
        """Return the new state and what was seen: an object whose `means()` and `now()` are the numbers of the log."""
        ...

    def posterior(self, density: LogDensity, state: Any) -> Posterior:
        """Return the posterior a state stands for."""
        ...
