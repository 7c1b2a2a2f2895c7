"""DropConnect: dropout of single weights in the place of units (Wan, Zeiler, Zhang, LeCun and Fergus 2013)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from torchbayes.checks import check_share, seen


class DropConnect(nn.Module):
    """A layer whose weights are dropped at random: f = layer with (Z/k) ∘ W, Z_ij ~ Bernoulli(k), k = 1 − rate.

    In training all rows of a batch share a mask, which is new at every step: like a prediction, a step uses one draw
    of q(W) = M ∘ Z, M = W/k. `MCDropout` trains it and draws from it: a drawn function has one mask for all batches.
    Biases are not dropped. Under a normal prior N(0, s²) of W the ELBO that is maximised is that of the prior N(0,
    s²/k) of M, as for units.

    Attributes:
        layer: with a parameter `weight`, such as nn.Linear or nn.Conv2d.
        dropout: the rate, the probability that a weight is dropped.
    """

    def __init__(self, layer: nn.Module, dropout: float = 0.1) -> None:
        """Wrap a layer, which is used as it is.

        Args:
            layer: the layer.
            dropout: the rate, from 0 to below 1.

        Raises:
            TypeError: if the layer has no parameter of the name `weight`.
            ValueError: if the rate is not in [0, 1).
        """
        super().__init__()
        if not isinstance(layer, nn.Module) or not isinstance(getattr(layer, "weight", None), nn.Parameter):
            raise TypeError(f"`layer` must be a layer with weights, such as nn.Linear(4, 8); got {seen(layer)}.")
        check_share(dropout=dropout)
        self.layer, self.dropout = layer, float(dropout)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs of the layer, in training mode under a random mask of its weights."""
        if not self.training or not self.dropout:
            return self.layer(inputs)
        weight: Tensor = self.layer.weight  # type: ignore[assignment]
        return functional_call(self.layer, {"weight": F.dropout(weight, self.dropout)}, (inputs,))

    def extra_repr(self) -> str:
        """Return the rate."""
        return f"dropout={self.dropout}"
