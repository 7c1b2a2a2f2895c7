"""Draws: an empirical posterior, S draws from each of M chains or trajectories."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchbayes.checks import as_seed, check_memory
from torchbayes.model.batches.loaders import evenly_spaced
from torchbayes.posteriors.functions import check_weights
from torchbayes.posteriors.posterior import ByFields, readable
from torchbayes.randomness.seeds import Purpose, generator

_FEWEST = 20  # draws by which it is judged whether a chain moves


@readable
@dataclass(frozen=True, repr=False)
class Draws(ByFields):
    """q(w) = (1/(M S)) Σ_m Σ_s δ(w − w_ms).

    Attributes:
        weights_MSD: draws of each chain, in the order they were visited.
    """

    weights_MSD: Tensor

    kind = "draws"

    def __post_init__(self) -> None:
        check_weights(self.model, "M", "S", weights_MSD=self.weights_MSD)

    @property
    def default_draws(self) -> int:
        """All draws, M · S."""
        return self.weights_MSD.shape[0] * self.weights_MSD.shape[1]

    @property
    def chain_length(self) -> int:
        return self.weights_MSD.shape[1]

    @property
    def still(self) -> bool:
        """Whether no chain ever moved, over at least 20 draws: each proposal was rejected or too small."""
        first_MD, *others = self.weights_MSD.unbind(1)
        return len(others) + 1 >= _FEWEST and all(torch.equal(draw_MD, first_MD) for draw_MD in others)

    def sample(self, draws: int, *, seed: int = 0) -> Tensor:
        """Return weights (draws, D), row s from chain s mod M: all draws, or a random subsample of each chain.

        Up to S draws of a chain are taken without replacement; beyond S the chain is repeated. If all draws are
        asked for and they are stored draw after draw, as samplers store them, the result is a view.

        Raises:
            ValueError: if `draws` is not a multiple of M, or weights that must be copied do not fit in memory.
        """
        members, length, _ = self.weights_MSD.shape
        draws, seed = self.check_draws(draws), as_seed(seed)
        if draws == members * length and _in_order(self.weights_MSD):
            return self.weights_MSD.transpose(0, 1).flatten(0, 1)
        check_memory(draws * self.weights_MSD[0, 0].nbytes, "the drawn weights", self.weights_MSD.device, draws=draws)
        order_SM = self._order(draws // members, seed).to(self.weights_MSD.device)
        chain_SM = torch.arange(members, device=order_SM.device).expand_as(order_SM)
        return self.weights_MSD[chain_SM.flatten(), order_SM.flatten()]

    def _order(self, per_chain: int, seed: int) -> Tensor:
        """Return the indices of the draws taken from each chain, (S, M)."""
        members, length, _ = self.weights_MSD.shape
        if per_chain == length:
            return torch.arange(length).unsqueeze(1).expand(-1, members)
        source, rounds = generator(Purpose.SUBSAMPLE, seed), -(-per_chain // length)
        return torch.stack(
            [torch.cat([torch.randperm(length, generator=source) for _ in range(rounds)]) for _ in range(members)], 1
        )[:per_chain]


def thinned(posterior: Any, draws: int) -> Any:
    """Return evenly spaced draws of each chain, in the order in which they were visited; without chains the posterior.

    R-hat and effective sizes are those of chains, where the subsample of `sample` has no order.

    Args:
        posterior: any posterior.
        draws: S in all, a multiple of M; all draws if more are asked for.

    Raises:
        ValueError: if S is not a multiple of M.
    """
    per_chain, length = posterior.check_draws(draws) // posterior.members, posterior.chain_length
    if length is None or per_chain >= length:
        return posterior
    kept_S = torch.tensor(evenly_spaced(per_chain, length))
    stats = posterior.sample_stats and {name: each[:, kept_S] for name, each in posterior.sample_stats.items()}
    in_order_SMD = posterior.weights_MSD.transpose(0, 1)[kept_S.to(posterior.weights_MSD.device)]
    return replace(posterior, weights_MSD=in_order_SMD.transpose(0, 1), sample_stats=stats)


def _in_order(weights_MSD: Tensor) -> bool:
    """Return whether the rows lie draw after draw, then chain after chain, so that (S M, D) is a view."""
    (members, length, _), (of_chain, of_draw, _) = weights_MSD.shape, weights_MSD.stride()
    return members == 1 or length == 1 or of_draw == members * of_chain
