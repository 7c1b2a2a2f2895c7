"""Batch norm as a posterior: a draw is a network whose batch norms have the statistics of one training minibatch.

At every step of training, a network with batch norm has seen the mean and variance of a random minibatch of B rows.
Drawing them again at test time gives functions that differ as the networks of training did (Teye, Azizpour and
Smith 2018). For a first pre-activation with variance v over the N training rows, the mean of a minibatch drawn
without replacement has variance v/B · (N − B)/(N − 1): B plays the role of a rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from torchbayes.checks import as_seed
from torchbayes.model.model import Model
from torchbayes.posteriors.functions import check_weights, in_turn
from torchbayes.posteriors.posterior import Beside, Posterior, readable
from torchbayes.randomness.seeds import Purpose, generator

_PREFIX = "statistics."


@readable
@dataclass(frozen=True, repr=False)
class BatchNormPosterior(Posterior):
    """q = (1/M) Σ_m of the networks with weights w_m under the statistics of K minibatches each.

    Attributes:
        weights_MD: the members' weights.
        statistics_MK: running means and variances by name, each (M, K, channels); the variances are those of
            training mode, without Bessel's correction. Other buffers are in `buffers_M`.
    """

    weights_MD: Tensor
    statistics_MK: Mapping[str, Tensor]

    kind = "batch_norm"

    def __post_init__(self) -> None:
        check_weights(self.model, "M", weights_MD=self.weights_MD)
        buffers = self.model.network.buffers
        for name, values in self.statistics_MK.items():
            if name not in buffers or values.shape[:1] + values.shape[2:] != (self.members, *buffers[name].shape):
                raise ValueError(
                    f"`statistics_MK` must hold (M, K, channels) of batch norms of the network for {self.members} "
                    f"members; got `{name}` of shape {tuple(values.shape)}. Build the network that they are of."
                )

    @property
    def members(self) -> int:
        return len(self.weights_MD)

    def sample(self, draws: int, *, seed: int = 0) -> Tensor:
        """Return the members' weights, repeated to (S, D), without using the seed: functions differ by statistics."""
        as_seed(seed)
        return in_turn(self.weights_MD, self.check_draws(draws))

    def beside(self, draws: int, *, seed: int) -> Beside | None:
        """Return buffers with the statistics of one minibatch per draw; after K draws of a member they repeat."""
        rounds, members = draws // self.members, self.members
        minibatch_SM = torch.stack([self._order(rounds, seed, m) for m in range(members)], 1)
        member_S, minibatch_S = torch.arange(draws) % members, minibatch_SM.flatten()
        buffers_M = self.buffers_M or self.model.network.stacked_buffers(members)
        buffers_S = {name: buffer[member_S] for name, buffer in buffers_M.items()}
        drawn_S = {name: values[member_S, minibatch_S] for name, values in self.statistics_MK.items()}
        return Beside({**buffers_S, **drawn_S})

    def _order(self, rounds: int, seed: int, m: int) -> Tensor:
        """Return which minibatches a member's draws take; a shorter request has the first of a longer one."""
        count = next(iter(self.statistics_MK.values())).shape[1]
        source = generator(Purpose.MINIBATCH, seed, m)
        return torch.cat([torch.randperm(count, generator=source) for _ in range(-(-rounds // count))])[:rounds]

    def tensors(self) -> dict[str, Tensor]:
        return {"weights_MD": self.weights_MD, **{_PREFIX + name: t for name, t in self.statistics_MK.items()}}

    def settings(self) -> dict[str, Any]:
        return {}

    @classmethod
    def restore(cls, model: Model, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        statistics = {name.removeprefix(_PREFIX): t for name, t in tensors.items() if name.startswith(_PREFIX)}
        return cls(model, tensors["weights_MD"], statistics)
