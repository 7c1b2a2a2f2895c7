"""Dropout as a posterior: a draw is a network with one mask for each of its dropout layers (Gal and Ghahramani 2016).

    q(W_l) = M_l diag(z_l),    z_lj ~ Bernoulli(k_l),    k_l = 1 − p_l

for weights M_l that act on units behind a dropout of rate p_l. PyTorch's inverted dropout stores W_l = k_l M_l and
divides by k_l. The average prediction over S such networks has mean (1/S) Σ f_s and, for Gaussian noise of
precision τ, covariance I/τ + (1/S) Σ f_s f_sᵀ − mean meanᵀ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchbayes.checks import as_seed, check_memory
from torchbayes.model.dropout import Mask, check_dropout, dropouts, rates
from torchbayes.model.model import Model
from torchbayes.posteriors.functions import check_weights, in_turn
from torchbayes.posteriors.layers.folded import folded, folds
from torchbayes.posteriors.point import Point
from torchbayes.posteriors.posterior import Beside, ByFields, readable
from torchbayes.posteriors.trained import Trained
from torchbayes.randomness.seeds import Purpose, mix


@readable
@dataclass(frozen=True, repr=False)
class DropoutPosterior(ByFields):
    """q = (1/M) Σ_m of the networks with weights w_m whose units are dropped at random.

    A drawn function has one mask for each call of dropout, the same for all rows of all batches; it depends on
    (seed, s) and the position in a row. In a plain stack of linear layers, and with nn.Dropout2d beside
    convolutions, masks are put into the weights, and prediction costs as much as for plain networks. Dropout in
    parts of the network without random weights is off, as in training.

    Attributes:
        weights_MD: the members' weights, with all units.
        rates_ML: probabilities of being dropped in each dropout layer, in the order of the network, float64; the
            layers' own if None.
    """

    weights_MD: Tensor
    rates_ML: Tensor | None = None

    kind = "dropout"

    def __post_init__(self) -> None:
        check_weights(self.model, "M", weights_MD=self.weights_MD)
        rates_L = torch.tensor(rates(self.model.network), dtype=torch.float64)
        if self.rates_ML is None:
            object.__setattr__(self, "rates_ML", rates_L.expand(self.members, -1).clone())
        elif self.rates_ML.shape != (self.members, len(rates_L)) or not _are_shares(self.rates_ML):
            raise ValueError(
                f"`rates_ML` must hold the rates, from 0 to 1, of the {len(rates_L)} dropout layers of the network for "
                f"each of {self.members} members; got shape {tuple(self.rates_ML.shape)}. Build the network that they "
                f"were found for."
            )

    @classmethod
    def of(cls, model: Model, networks: Trained | Sequence[Trained]) -> DropoutPosterior:
        """Return the dropout posterior of networks that were trained with dropout elsewhere. Nothing is trained.

        Args:
            model: the model of these networks; what is not random must be equal in all of them.
            networks: as for `Point.of`: a module, a state dict or the path of a checkpoint; or a list of these, one
                per member.

        Raises:
            ValueError: as `Point.of` does, or if the network has no dropout.
        """
        point = Point.of(model, networks)
        check_dropout(model.network)
        return cls(model, point.weights_MD, buffers_M=point.buffers_M, statistics_known=True)

    def sample(self, draws: int, *, seed: int = 0) -> Tensor:
        """Return weights (S, D), zero for dropped units; the members' weights where masks are not part of the weights.

        Raises:
            ValueError: if S is not a multiple of M, or the weights do not fit in memory.
        """
        draws, seed = self.check_draws(draws), as_seed(seed)
        check_memory(draws * self.weights_MD[0].nbytes, "the drawn weights", self.weights_MD.device, draws=draws)
        masked_SD = folded(self.model.network, self.weights_MD, self._masks(draws, seed))
        return in_turn(self.weights_MD, draws) if masked_SD is None else masked_SD

    def beside(self, draws: int, *, seed: int) -> Beside | None:
        """Return the masks of draws; None where they are in the weights."""
        return None if folds(self.model.network) is not None else Beside(masks_S=self._masks(draws, seed))

    def _masks(self, draws: int, seed: int) -> tuple[Mask, ...]:
        """Return the masks of draws, which depend on (seed, s) alone."""
        assert self.rates_ML is not None, "set when it was made"
        names = dropouts(self.model.network)
        of_M = [dict(zip(names, rates_L, strict=True)) for rates_L in self.rates_ML.tolist()]
        return tuple(Mask(mix(Purpose.MASKED_DRAW, seed, s), of_M[s % self.members]) for s in range(draws))


def _are_shares(values: Tensor) -> bool:
    return bool(((values >= 0) & (values <= 1)).all())
