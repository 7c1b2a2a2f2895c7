"""Point masses: one weight vector per member. One is standard training, M are a deep ensemble."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchbayes.checks import as_seed, check_memory
from torchbayes.posteriors.functions import check_weights
from torchbayes.posteriors.posterior import Posterior, readable


@readable
@dataclass(frozen=True)
class Point(Posterior):
    """q(w) = (1/M) Σ_m δ(w − w_m).

    Attributes:
        weights_MD: the members' weights.
    """

    weights_MD: Tensor

    kind = "point"

    def __post_init__(self) -> None:
        check_weights(self.model, "M", weights_MD=self.weights_MD)

    @property
    def members(self) -> int:
        """M."""
        return len(self.weights_MD)

    @property
    def default_draws(self) -> int:
        """M: a point mass has one distinct draw per member."""
        return self.members

    def sample(self, draws: int, *, seed: int = 0) -> Tensor:
        """Return the members' weights, repeated to S rows; the seed is not used.

        Args:
            draws: S, a multiple of M.
            seed: ignored, as a point mass has no randomness.

        Returns:
            Tensor (S, D).

        Raises:
            ValueError: if S is not a multiple of M, or the weights do not fit in memory.
        """
        as_seed(seed)
        draws = self.check_draws(draws)
        check_memory(draws * self.weights_MD[0].nbytes, "the drawn weights", self.weights_MD.device, draws=draws)
        return self.weights_MD[torch.arange(draws) % self.members]

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights by name."""
        return {"weights_MD": self.weights_MD}

    def settings(self) -> dict[str, Any]:
        """Return no settings."""
        return {}

    @classmethod
    def restore(cls, model: Any, tensors: dict[str, Tensor], settings: dict[str, Any]) -> Point:
        """Return the posterior rebuilt from what `tensors` and `settings` gave."""
        del settings
        return cls(model, tensors["weights_MD"])
