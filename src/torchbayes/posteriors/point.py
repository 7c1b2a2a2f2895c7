"""Point masses: one weight vector per member. One member is standard training, M are a deep ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchbayes.checks import as_seed, check_kind
from torchbayes.model.model import PREFIX, Model, having_learned
from torchbayes.posteriors.functions import check_weights, in_turn
from torchbayes.posteriors.posterior import ByFields, readable
from torchbayes.posteriors.trained import Trained, named, weights_of


@readable
@dataclass(frozen=True, repr=False)
class Point(ByFields):
    """q(w) = (1/M) Σ_m δ(w − w_m).

    Attributes:
        weights_MD: the members' weights.
    """

    weights_MD: Tensor

    kind = "point"

    def __post_init__(self) -> None:
        check_weights(self.model, "M", weights_MD=self.weights_MD)

    @classmethod
    def of(cls, model: Model, networks: Trained | Sequence[Trained]) -> Point:
        """Return the ensemble of networks that were trained elsewhere, each with its own batch-norm statistics.

        Args:
            model: the model of these networks; what is not random must be equal in all of them.
            networks: a module, a state dict or the path of a checkpoint, as for `Collector.collect`; or a list of
                these, one per member.

        Raises:
            ValueError: if parameters are missing, have other shapes or are not finite; if one that is not random
                differs from the model's; if the likelihood has learned parameters that a network does not hold; or
                if a file is damaged.
            FileNotFoundError: if there is no such file.
            TypeError: if a network is none of these.
        """
        check_kind(Model, "a Model", model=model)
        trained = [weights_of(model, network, label) for label, network in named("networks", networks)]
        names = [PREFIX + name for name in model.likelihood.parameters()]
        if names and not all(each.learned for each in trained):
            raise ValueError(
                f"`{names[0]}` is learned, and a network does not hold it. Put it in its state dict, as in "
                f"`{{**net.state_dict(), '{names[0]}': value}}`, or estimate it by `SWA(members={len(trained)})"
                f".collector(model)`."
            )
        buffers_M = {name: torch.stack([each.buffers[name] for each in trained]) for name in model.network.buffers}
        weights_MD = torch.stack([each.weights_D for each in trained])
        return cls(model, weights_MD, buffers_M=buffers_M or None, statistics_known=True)

    @property
    def centre(self) -> Point:
        """The posterior itself."""
        return self

    @property
    def default_draws(self) -> int:
        """M, because a point mass has one distinct draw per member."""
        return self.members

    def with_learned(self, learned: Sequence[float] | Tensor) -> Point:
        return replace(self, weights_MD=having_learned(self.weights_MD, learned))

    def sample(self, draws: int, *, seed: int = 0) -> Tensor:
        """Return the members' weights, repeated to (S, D); the seed is not used."""
        as_seed(seed)
        return in_turn(self.weights_MD, self.check_draws(draws))
