"""Draws: an empirical posterior, S kept states of each of M chains or trajectories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchbayes.checks import as_seed
from torchbayes.model.seeds import Purpose, generator
from torchbayes.posteriors.functions import check_weights
from torchbayes.posteriors.posterior import Posterior


@dataclass(frozen=True)
class Draws(Posterior):
    """q(w) = (1/(M S)) Σ_m Σ_s δ(w − w_ms).

    Attributes:
        weights_MSD: kept weights of each chain, in the order they were visited.
    """

    weights_MSD: Tensor

    kind = "draws"

    def __post_init__(self) -> None:
        check_weights(self.model, "M", "S", weights_MSD=self.weights_MSD)

    @property
    def members(self) -> int:
        """M, the number of chains."""
        return self.weights_MSD.shape[0]

    @property
    def default_draws(self) -> int:
        """All kept draws, M · S."""
        return self.weights_MSD.shape[0] * self.weights_MSD.shape[1]

    def sample(self, draws: int, *, seed: int = 0) -> Tensor:
        """Return kept weights: all of them when `draws` is their number, else a random choice from each chain.

        Up to S draws per chain are taken without replacement; more repeat the chain.

        Args:
            draws: number of rows, a multiple of M.
            seed: seed of the choice.

        Returns:
            Tensor (draws, D); row s is from chain s mod M.
        """
        members, kept, size = self.weights_MSD.shape
        draws, seed = self.check_draws(draws), as_seed(seed)
        per_chain = draws // members
        if per_chain == kept:
            return self.weights_MSD.transpose(0, 1).reshape(draws, size)
        source = generator(Purpose.KEPT, seed)
        rounds = -(-per_chain // kept)
        order = torch.stack([
            torch.cat([torch.randperm(kept, generator=source) for _ in range(rounds)]) for _ in range(members)
        ])[:, :per_chain].to(self.weights_MSD.device)
        chosen = self.weights_MSD[torch.arange(members, device=order.device).unsqueeze(1), order]
        return chosen.transpose(0, 1).reshape(draws, size)

    def tensors(self) -> dict[str, Tensor]:
        """Return the draws by name."""
        return {"weights_MSD": self.weights_MSD}

    def settings(self) -> dict[str, Any]:
        """Return no settings."""
        return {}

    @classmethod
    def restore(cls, model: Any, tensors: dict[str, Tensor], settings: dict[str, Any]) -> Draws:
        """Return the posterior rebuilt from what `tensors` and `settings` gave."""
        del settings
        return cls(model, tensors["weights_MSD"])
